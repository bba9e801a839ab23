"""Where a model attends: its attention modules, and which rows of which weight belong to a head.

Found are modules on the attention interface of Hugging Face transformers,
`torch.nn.MultiheadAttention`, and modules that derive from `ReadableAttention`. Weights of queries,
keys and values may be apart or fused in one.
"""

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import TypeIs

APART = (
    ("q_proj", "k_proj", "v_proj"),
    ("query", "key", "value"),
    ("q_lin", "k_lin", "v_lin"),
    ("linear_q", "linear_k", "linear_v"),
    ("q", "k", "v"),
)
IN_BLOCKS = ("c_attn", "qkv_proj", "qkv", "Wqkv")  # all queries, then all keys, then all values
BY_HEAD = ("query_key_value",)  # query, key and value of the first head, then of the second …
MULTIHEAD = ("q_proj_weight", "k_proj_weight", "v_proj_weight")  # of MultiheadAttention, apart
OUTPUTS = ("o_proj", "out_proj", "c_proj", "dense", "proj", "out_lin", "o", "Wo")
WIDTHS = ("head_dim", "attention_head_size", "head_size", "key_value_proj_dim", "dim_per_head")


class ReadableAttention(nn.Module):
    """Base of attentions that can be watched because they tell what they do.

    Such a module sets `heads`, `key_heads` and `head_dim`, gives its weights one of the names above
    (`qkv` and `o_proj`, say) and, while `reader` is not None, calls in its forward pass
    `reader(q, k, v, attention, mixed)`: queries (batch, heads, T, d), keys and values (batch, key
    heads, S, d), the `attnflow.torch.Attention` that weighs them, and the heads' outputs before
    their projection (batch, heads, T, d), of which the loss is made.
    """

    heads: int
    key_heads: int
    head_dim: int

    def __init__(self):
        super().__init__()
        self.reader: Callable[..., None] | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Projection:
    """The part of a weight that serves each head: `index` (heads, width) are rows of the weight
    written as (out, in), or, for an output projection, its columns."""

    owner: nn.Module
    parameter: str
    index: Tensor
    output: bool = False

    @property
    def weight(self) -> nn.Parameter:
        return getattr(self.owner, self.parameter)

    @property
    def bias(self) -> nn.Parameter | None:
        """One number a row; none for an output projection, whose bias belongs to no head."""
        return None if self.output else getattr(self.owner, self.bias_name, None)

    @property
    def bias_name(self) -> str:
        shared = self.parameter.startswith("in_proj") or self.parameter in MULTIHEAD
        return "in_proj_bias" if shared else self.parameter.replace("weight", "bias")

    @property
    def bias_index(self) -> Tensor:
        """Which numbers of the bias belong to each head: weights apart may share one bias."""
        part = MULTIHEAD.index(self.parameter) if self.parameter in MULTIHEAD else 0
        return self.index + part * self.index.numel()

    @property
    def axis(self) -> int:
        """Along which axis of the stored weight the index runs."""
        return int(self.output) ^ int(type(self.owner).__name__ == "Conv1D")

    def matrices(self) -> Tensor:
        """A copy (heads, width, other side) without gradient."""
        weight = self.weight.detach()
        found = weight.index_select(self.axis, self.index.flatten().to(weight.device))
        found = found if self.axis == 0 else found.T
        return found.reshape(*self.index.shape, -1)


@dataclasses.dataclass(frozen=True, eq=False)
class AttentionModule:
    """One attention of a model. A projection is None where its weight was not recognized."""

    name: str
    module: nn.Module
    heads: int
    key_heads: int
    width: int
    query: Projection | None
    key: Projection | None
    value: Projection | None
    output: Projection | None

    @property
    def on_interface(self) -> bool:
        return not isinstance(self.module, nn.MultiheadAttention | ReadableAttention)

    @property
    def projections(self) -> dict[str, Projection]:
        found = {x: getattr(self, x) for x in ("query", "key", "value", "output")}
        return {name: each for name, each in found.items() if each is not None}

    @property
    def fused(self) -> bool:
        """Whether queries, keys and values share one weight."""
        return (
            self.query is not None
            and self.value is not None
            and self.query.weight is self.value.weight
        )


def attention_modules(model: nn.Module) -> list[AttentionModule]:
    """In the order in which the model lists them.

    >>> layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    >>> [(found.name, found.heads, found.width) for found in attention_modules(layer)]
    [('self_attn', 2, 4)]
    """
    modules = dict(model.named_modules())
    found = []
    for name, module in modules.items():
        if isinstance(module, nn.MultiheadAttention):
            found.append(_multihead(name, module))
        elif isinstance(module, ReadableAttention):
            found.append(_found(name, module, None, module.heads, module.key_heads))
        elif calls_interface(module):
            parent = modules.get(name.rpartition(".")[0])
            found.append(_found(name, module, parent, *_head_counts(module, _width(module))))
    return found


def unsupported_attention(model: nn.Module) -> list[str]:
    """Modules that look like attention but are not found by `attention_modules`: "name (class)"."""
    known = [each.name for each in attention_modules(model)]

    def related(name: str) -> bool:
        return any(
            f"{one}.".startswith(f"{other}.")
            for k in known
            for one, other in [(name, k), (k, name)]
        )

    return [
        f"{name} ({type(module).__name__})"
        for name, module in model.named_modules()
        if "attention" in type(module).__name__.lower()
        and not isinstance(module, nn.ModuleList)
        and sum(1 for child in module.children() if _is_matrix(child)) >= 2
        and not related(name)
    ]


def calls_interface(module: nn.Module) -> bool:
    """Whether its `forward` looks up transformers' table of attention functions."""
    forward = inspect.unwrap(type(module).forward)
    code = getattr(forward, "__code__", None)
    return code is not None and "ALL_ATTENTION_FUNCTIONS" in code.co_names


def head_numbers(module: AttentionModule) -> Tensor:
    """For each head, the number of the key head that serves it."""
    return torch.arange(module.heads) // (module.heads // module.key_heads)


def _found(
    name: str, module: nn.Module, parent: nn.Module | None, heads: int, key_heads: int
) -> AttentionModule:
    width = _width(module)
    query, key, value = _inputs(module, heads, key_heads, width) or (None, None, None)
    if heads == 2 * getattr(getattr(module, "config", None), "num_attention_heads", 0):
        heads, query = heads // 2, None  # half of the rows make a gate (Qwen 3 Next)
    output = _output(module, parent, heads, width)
    return AttentionModule(name, module, heads, key_heads, width, query, key, value, output)


def _multihead(name: str, module: nn.MultiheadAttention) -> AttentionModule:
    heads, width = module.num_heads, module.head_dim
    rows = _rows(heads, width)
    if module.in_proj_weight is not None:
        size = heads * width
        parts = [Projection(module, "in_proj_weight", rows + k * size) for k in range(3)]
    else:
        parts = [Projection(module, each, rows) for each in MULTIHEAD]
    output = Projection(module.out_proj, "weight", rows, output=True)
    query, key, value = parts
    return AttentionModule(name, module, heads, heads, width, query, key, value, output)


def _rows(heads: int, width: int) -> Tensor:
    return torch.arange(heads * width).reshape(heads, width)


def _is_matrix(module: Any) -> TypeIs[nn.Module]:
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def _shape(module: nn.Module) -> tuple[int, int]:
    """(out, in)."""
    weight = module.get_parameter("weight")
    rows, columns = weight.shape
    return (columns, rows) if type(module).__name__ == "Conv1D" else (rows, columns)


def _matrices(module: nn.Module, names: tuple[str, ...]) -> Iterator[nn.Module]:
    for name in names:
        child = getattr(module, name, None)
        if _is_matrix(child):
            yield child


def _width(module: nn.Module) -> int:
    config = getattr(module, "config", None)
    for place in (module, config):
        for name in WIDTHS:
            found = getattr(place, name, None)
            if isinstance(found, int) and found > 0:
                return found
    return _attribute(config, "hidden_size") // _attribute(config, "num_attention_heads")


def _attribute(config: Any, name: str) -> int:
    found = getattr(config, name, None)
    if not isinstance(found, int):
        raise ValueError(f"the model's config has no {name}: its attention cannot be read")
    return found


def _apart(module: nn.Module) -> list[nn.Module]:
    """The weights of queries, keys and values where they are three."""
    for names in APART:
        found = list(_matrices(module, names))
        if len(found) == len(names):
            return found
    return []


def _head_counts(module: nn.Module, width: int) -> tuple[int, int]:
    """Heads, and heads of keys and values."""
    apart = _apart(module)
    if apart:
        return _shape(apart[0])[0] // width, _shape(apart[1])[0] // width
    heads = _attribute(getattr(module, "config", None), "num_attention_heads")
    for fused in _matrices(module, IN_BLOCKS):
        rest = _shape(fused)[0] // width - heads
        if rest > 0 and rest % 2 == 0 and not getattr(module, "is_cross_attention", False):
            return heads, rest // 2
    return heads, heads


def _inputs(module: nn.Module, heads: int, key_heads: int, width: int) -> list[Projection]:
    """Of queries, keys and values; empty where the layout is not known."""
    q, k = _rows(heads, width), _rows(key_heads, width)
    apart = _apart(module)
    if apart:
        pairs = zip(apart, (q, k, k), strict=True)
        return [Projection(owner, "weight", rows) for owner, rows in pairs]
    by_head = getattr(module, "multi_query", True) is False  # of GPT-BigCode
    for fused in () if by_head else _matrices(module, IN_BLOCKS):
        if _shape(fused)[0] == (heads + 2 * key_heads) * width:
            starts = ((q, 0), (k, heads * width), (k, (heads + key_heads) * width))
            return [Projection(fused, "weight", rows + start) for rows, start in starts]
    for fused in _matrices(module, ("c_attn",) if by_head else BY_HEAD):
        if heads == key_heads and _shape(fused)[0] == 3 * heads * width:
            every = torch.arange(3 * heads * width).reshape(heads, 3, width)
            return [Projection(fused, "weight", every[:, part]) for part in range(3)]
    return []


def _output(
    module: nn.Module, parent: nn.Module | None, heads: int, width: int
) -> Projection | None:
    beside = getattr(parent, "output", None)  # BERT keeps it in a module beside
    for place in (module, beside):
        if place is None:
            continue
        for matrix in _matrices(place, OUTPUTS):
            if _shape(matrix)[1] == heads * width:
                return Projection(matrix, "weight", _rows(heads, width), output=True)
    return None
