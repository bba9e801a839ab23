"""The small transformer of the experiments: any attention, with or without norm and MLP."""

import contextlib
import dataclasses
import math
from typing import Annotated, Literal, overload

import torch
from torch import Tensor, nn
from typing_extensions import Doc

from attnflow import attention as registry
from attnflow._checks import at_least, choice
from attnflow.torch.attention import attend
from attnflow.torch.kernels import kernel
from attnflow.torch.modules import ReadableAttention
from attnflow.torch.statistics import Attention, attention_rows

POSITIONS = ("additive", "concatenated", "none")
PLACES = {"all": slice(None), "first": 0, "last": -1}


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
    """Of inputs that are token numbers (`vocabulary`) or vectors (`patch`, with vocabulary 0)."""

    vocabulary: Annotated[int, Doc("tokens, start and class tokens among them; 0: vectors")] = 51
    outputs: Annotated[int, Doc("logits of a position")] = 51
    layers: Annotated[int, Doc("attention layers")] = 2
    heads: Annotated[int, Doc("heads of a layer")] = 4
    width: Annotated[int, Doc("width of the residual stream")] = 128
    length: Annotated[int, Doc("greatest number of positions, a start vector included")] = 12
    mlp: Annotated[int, Doc("hidden width of the MLPs; 0: none")] = 512
    norm: Annotated[bool, Doc("LayerNorm before each part and at the end")] = True
    causal: Annotated[bool, Doc("positions see themselves and earlier ones only")] = True
    positions: Annotated[str, Doc("additive, concatenated (half of the width) or none")] = (
        "additive"
    )
    attention: Annotated[str | tuple[str, ...], Doc("its name, or one name a layer")] = "softmax"
    learn_bias: Annotated[bool, Doc("sink logits, or biases of joint heads, are learned")] = False
    patch: Annotated[int, Doc("numbers of an input vector, if there is no vocabulary")] = 0
    start: Annotated[bool, Doc("a learned vector is put before the inputs")] = False
    read: Annotated[str, Doc("positions that get logits: all, first or last")] = "all"
    tied: Annotated[bool, Doc("token embeddings are the output weights")] = False

    def __post_init__(self):
        for name in ("outputs", "layers", "heads", "width", "length"):
            at_least(name, getattr(self, name), 1)
        for name in ("vocabulary", "patch", "mlp"):
            at_least(name, getattr(self, name), 0)
        if bool(self.vocabulary) == bool(self.patch):
            raise ValueError(
                "inputs are either tokens (vocabulary > 0, patch = 0) or vectors (vocabulary = 0, "
                f"patch > 0) (got vocabulary {self.vocabulary}, patch {self.patch})"
            )
        if self.width % self.heads:
            raise ValueError(
                f"heads share the width equally: {self.width} is no multiple of {self.heads}"
            )
        choice("positions", self.positions, POSITIONS)
        choice("read", self.read, PLACES)
        if self.positions == "concatenated" and self.width % 2:
            raise ValueError(
                f"concatenated positions take half of the width: it must be even (got {self.width})"
            )
        if len(self.attentions) != self.layers:
            raise ValueError(
                f"attention: {len(self.attentions)} names for {self.layers} layers: "
                "give one for all, or one a layer"
            )
        biased = [registry.get(kernel(name).law).takes_bias for name in self.attentions]
        if self.learn_bias and not any(biased):
            raise ValueError(
                f"learn_bias: {self.attention} has no bias; softmax_1 and bayes_softmax have one"
            )
        if self.tied and (self.vocabulary != self.outputs or self.positions == "concatenated"):
            raise ValueError(
                "tied: embeddings and output weights must have one shape, so as many outputs as "
                "tokens, and no concatenated positions"
            )

    @property
    def attentions(self) -> tuple[str, ...]:
        """One name a layer."""
        one = isinstance(self.attention, str)
        return (self.attention,) * self.layers if one else tuple(self.attention)  # pyright: ignore


class SelfAttention(ReadableAttention):
    """Heads of one layer, queries, keys and values from one weight, all with biases."""

    def __init__(self, config: TransformerConfig, name: str):
        super().__init__()
        made = kernel(name)
        self.heads = self.key_heads = config.heads
        self.head_dim = config.width // config.heads
        self.causal, self.law = config.causal, made.law
        self.scaling = 1 / math.sqrt(self.head_dim) if made.scaled else 1.0
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.o_proj = nn.Linear(config.width, config.width)
        self.feature = None if made.feature is None else made.feature(self.head_dim)
        if config.learn_bias and registry.get(self.law).takes_bias:
            self.attnflow_bias = nn.Parameter(torch.zeros(config.heads))

    def forward(self, x: Tensor, maps: list[Tensor] | None = None) -> Tensor:
        each = self.qkv(x).unflatten(-1, (3, self.heads, self.head_dim))
        q, k, v = each.permute(2, 0, 3, 1, 4)  # (batch, heads, T, d)
        if self.feature is not None:
            q, k = self.feature(q), self.feature(k)
        options = {"causal": self.causal, "scale": self.scaling, "bias": self.bias}
        mixed = attend(self.law, q, k, v, **options)
        if maps is not None:
            rows = torch.arange(x.shape[1], device=x.device)
            maps.append(attention_rows(q, k, self.described(), rows).weights)
        if self.reader is not None:
            self.reader(q, k, v, self.described(), mixed)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))

    @property
    def bias(self) -> Tensor | None:
        """The sinks' logits or the joint heads' biases, where they are learned."""
        return getattr(self, "attnflow_bias", None)

    def described(self) -> Attention:
        """How it makes weights of scores, for the instruments."""
        sink = None if self.bias is None else self.bias.detach()
        return Attention(causal=self.causal, sink=sink, scale=self.scaling, function=self.law)


class Block(nn.Module):
    """x + attention(norm(x)), then x + MLP(norm(x)) at the places that are wanted."""

    def __init__(self, config: TransformerConfig, name: str):
        super().__init__()
        self.attention_norm = _norm(config)
        self.attention = SelfAttention(config, name)
        self.mlp = None
        if config.mlp:
            up, down = nn.Linear(config.width, config.mlp), nn.Linear(config.mlp, config.width)
            self.mlp = nn.Sequential(_norm(config), up, nn.GELU(), down)

    def forward(
        self, x: Tensor, maps: list[Tensor] | None = None, places: slice | int = slice(None)
    ) -> Tensor:
        x = (x + self.attention(self.attention_norm(x), maps))[:, places]
        return x if self.mlp is None else x + self.mlp(x)


class Transformer(nn.Module):
    """Logits (batch, T, outputs) of tokens (batch, T) or vectors (batch, T, patch); if only the
    first or last position is read, (batch, outputs).

    Weights begin as PyTorch makes them: embeddings, positions and the start vector N(0, 1), linear
    maps and their biases uniform within 1/√(inputs), norms 1 and 0; a learned bias of the attention
    begins at 0. seed: of these weights, apart from torch's own random numbers, which are used
    unless it is given.

    Cost: that of `attend`, whose kernel is as fast as the dense map even for a dozen positions; if
    one position is read, the last MLP is computed there only. maps=True also returns the weights
    (layer, batch, head, query, key), without gradient, at the price of computing them once more.

    >>> model = Transformer(TransformerConfig(vocabulary=5, outputs=3, width=8, heads=2), seed=0)
    >>> logits, maps = model(torch.tensor([[0, 4, 2]]), maps=True)
    >>> logits.shape, maps.shape
    (torch.Size([1, 3, 3]), torch.Size([2, 1, 2, 3, 3]))
    """

    def __init__(self, config: TransformerConfig, *, seed: int | None = None):
        super().__init__()
        self.sizes = config
        with contextlib.ExitStack() as stack:
            if seed is not None:
                at_least("seed", seed, 0)
                stack.enter_context(torch.random.fork_rng(devices=[]))
                torch.manual_seed(seed)
            self._build(config)

    def _build(self, config: TransformerConfig) -> None:
        half = config.positions == "concatenated"
        width = config.width // 2 if half else config.width
        if config.vocabulary:
            self.embed = nn.Embedding(config.vocabulary, width)
        else:
            self.embed = nn.Linear(config.patch, width)
        self.positions = None
        if config.positions != "none":
            self.positions = nn.Embedding(config.length, width)
        self.start = nn.Parameter(torch.randn(width)) if config.start else None
        self.blocks = nn.ModuleList(Block(config, name) for name in config.attentions)
        self.final_norm = _norm(config)
        self.readout = nn.Linear(config.width, config.outputs)
        if config.tied:
            self.readout.weight = self.embed.weight

    @overload
    def forward(self, inputs: Tensor, *, maps: Literal[False] = False) -> Tensor: ...
    @overload
    def forward(self, inputs: Tensor, *, maps: Literal[True]) -> tuple[Tensor, Tensor]: ...
    def forward(self, inputs: Tensor, *, maps: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        x = self._placed(inputs)
        found: list[Tensor] | None = [] if maps else None
        *early, last = self.blocks
        for block in early:
            x = block(x, found)
        x = last(x, found, PLACES[self.sizes.read])  # nobody reads its MLP elsewhere
        logits = self.readout(self.final_norm(x))
        return logits if found is None else (logits, torch.stack(found))

    def _placed(self, inputs: Tensor) -> Tensor:
        """The residual stream before the first layer."""
        axes = 2 if self.sizes.vocabulary else 3
        if inputs.ndim != axes:
            wanted = "token numbers (batch, T)" if axes == 2 else "vectors (batch, T, patch)"
            raise ValueError(f"inputs must be {wanted} (got shape {tuple(inputs.shape)})")
        x = self.embed(inputs)
        if self.start is not None:
            x = torch.cat([self.start.expand(len(x), 1, -1), x], dim=1)
        if self.positions is None:
            return x
        if x.shape[1] > self.sizes.length:
            raise ValueError(
                f"{x.shape[1]} positions, and the model knows {self.sizes.length}: raise length"
            )
        places = self.positions.weight[: x.shape[1]]
        if self.sizes.positions == "additive":
            return x + places
        return torch.cat([x, places.expand_as(x)], dim=-1)


def _norm(config: TransformerConfig) -> nn.Module:
    return nn.LayerNorm(config.width) if config.norm else nn.Identity()
