"""One look at a model: queries, keys and values of its attentions on a few sequences, and the
gradient at their outputs.

A probe is a forward pass of its own, in evaluation mode and without any compiled code. Whatever the
model is doing meanwhile (training, mixed precision, checkpointing) is left alone: its weights,
modes, buffers, gradients and random numbers are afterwards what they were.
"""

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attnflow.torch.modules import AttentionModule, ReadableAttention
from attnflow.torch.reading import UnreadableAttention, read_attention
from attnflow.torch.statistics import Attention

Inputs = tuple[tuple[Any, ...], Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Capture:
    """What one attention did: queries (batch, heads, T, d), keys and values (batch, key heads, S,
    d), how scores became weights, the gradient of the loss at the heads' outputs (batch, heads, T,
    d) if a loss was there."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    attention: Attention
    gradient: Tensor | None = None


@dataclasses.dataclass
class Probe:
    """captures by the name of the module; problems: why a module has none; present (batch, T):
    which tokens are not padding, None if all are; loss: its value if there was one."""

    captures: dict[str, Capture]
    problems: dict[str, str]
    present: Tensor | None
    loss: float | None


def probe(
    model: nn.Module,
    inputs: Inputs,
    modules: Sequence[AttentionModule],
    loss: Callable[[Any], Tensor] | None = None,
) -> Probe:
    """`inputs` are positional and named arguments of the model; `loss` makes a number of its output
    (unless given, the output's own `loss`). Without a loss there are no gradients.

    Cost: one forward pass, and a backward pass if there is a loss.
    """
    arguments, named = inputs
    named = {k: v for k, v in named.items() if k not in ("num_items_in_batch", "use_cache")}
    if getattr(getattr(model, "config", None), "use_cache", None):
        named["use_cache"] = False
    wanted = loss is not None or named.get("labels") is not None
    recorder = _Recorder(modules)
    bare = unwrapped(model)
    with left_alone(bare), recorder, torch.set_grad_enabled(wanted):
        output = bare(*arguments, **named)
        found = loss(output) if loss is not None else getattr(output, "loss", None)
        gradients = recorder.gradients(found) if wanted and found is not None else {}
    captures = {
        name: dataclasses.replace(each, gradient=gradients.get(name))
        for name, each in recorder.captures.items()
    }
    for module in modules:
        if module.name not in captures:
            recorder.problems.setdefault(
                module.name, "its forward pass never asked for an attention function"
            )
    return Probe(
        captures,
        recorder.problems,
        _present(named),
        None if found is None else float(found.detach()),
    )


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside `torch.compile` and data parallel wrappers."""
    while True:
        if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            model = model.module
        elif hasattr(model, "_orig_mod"):
            model = model._orig_mod  # pyright: ignore
        else:
            return model


@contextlib.contextmanager
def left_alone(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without calling `eval()` (some modules do work there), eager code, buffers
    and random numbers as they were before."""
    training = [(module, module.training) for module in model.modules()]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    fast = torch.backends.mha.get_fastpath_enabled()
    try:
        for module, _ in training:
            module.training = False
        torch.backends.mha.set_fastpath_enabled(False)  # else attention is not a module's call
        with torch.random.fork_rng(devices), torch.compiler.set_stance("force_eager"):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for module, mode in training:
            module.training = mode
        with torch.no_grad():
            for buffer, was in buffers:
                if not torch.equal(buffer, was):
                    buffer.copy_(was)


def some_sequences(inputs: Inputs, count: int) -> Inputs:
    """The first `count` of the batch, from every tensor that has one entry a sequence."""
    arguments, named = inputs
    sizes = [x.shape[0] for x in (*arguments, *named.values()) if _batched(x)]
    if not sizes:
        return inputs

    def cut(value: Any) -> Any:
        return value[:count] if _batched(value) and value.shape[0] == sizes[0] else value

    return tuple(cut(x) for x in arguments), {k: cut(v) for k, v in named.items()}


def _batched(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0


def _present(named: Mapping[str, Any]) -> Tensor | None:
    mask = named.get("attention_mask")
    if isinstance(mask, Tensor) and mask.ndim == 2 and not bool(mask.bool().all()):
        return mask.bool()
    return None


class _Recorder:
    """While entered, keeps what the modules' attention functions are given, in this thread."""

    def __init__(self, modules: Sequence[AttentionModule]):
        self.modules = {id(each.module): each for each in modules}
        self.captures: dict[str, Capture] = {}
        self.problems: dict[str, str] = {}
        self.outputs: dict[str, tuple[Tensor, AttentionModule]] = {}
        self.thread = threading.get_ident()
        self.stack = contextlib.ExitStack()

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            if any(each.on_interface for each in self.modules.values()):
                stack.enter_context(self._interface())
            for each in self.modules.values():
                if isinstance(each.module, ReadableAttention):
                    stack.enter_context(self._reader(each, each.module))
                elif not each.on_interface:
                    hook = functools.partial(self._multihead, each)
                    handle = each.module.register_forward_hook(hook, with_kwargs=True)
                    stack.callback(handle.remove)
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *error):
        self.stack.close()

    def gradients(self, loss: Tensor) -> dict[str, Tensor]:
        """At the heads' outputs (batch, heads, T, d)."""
        named = {name: pair for name, pair in self.outputs.items() if pair[0].requires_grad}
        if not named or not loss.requires_grad:
            return {}
        outputs = [tensor for tensor, _ in named.values()]
        found = torch.autograd.grad(loss, outputs, allow_unused=True)
        pairs = zip(named.items(), found, strict=True)
        return {
            name: _by_head(gradient, module)
            for (name, (_, module)), gradient in pairs
            if gradient is not None
        }

    @contextlib.contextmanager
    def _interface(self) -> Iterator[None]:
        from transformers.modeling_utils import AttentionInterface

        original = AttentionInterface.get_interface

        def get_interface(table, implementation, default):
            function = original(table, implementation, default)

            @functools.wraps(function)
            def recorded(module, query, key, value, attention_mask, *more, **options):
                result = function(module, query, key, value, attention_mask, *more, **options)
                site = self.modules.get(id(module))
                if site is not None and threading.get_ident() == self.thread:
                    given = (query, key, value, attention_mask)
                    self._keep(site, implementation, given, options, result[0])
                return result

            return recorded

        AttentionInterface.get_interface = get_interface  # pyright: ignore
        try:
            yield
        finally:
            AttentionInterface.get_interface = original

    def _keep(self, site: AttentionModule, implementation: str, given, options, output) -> None:
        if site.name in self.captures:
            return  # a module that is used twice is measured at its first use
        query, key, value, mask = given
        try:
            attention = read_attention(site, implementation, query, key, mask, options)
        except UnreadableAttention as error:
            self.problems[site.name] = str(error)
            return
        self.outputs[site.name] = (output, site)
        self.captures[site.name] = Capture(query.detach(), key.detach(), value.detach(), attention)

    @contextlib.contextmanager
    def _reader(self, site: AttentionModule, module: ReadableAttention) -> Iterator[None]:
        def reader(query, key, value, attention, mixed):
            if site.name in self.captures or threading.get_ident() != self.thread:
                return
            given = (query.detach(), key.detach(), value.detach())
            self.captures[site.name] = Capture(*given, attention)
            self.outputs[site.name] = (mixed, site)

        former, module.reader = module.reader, reader
        try:
            yield
        finally:
            module.reader = former

    def _multihead(self, site: AttentionModule, module, arguments, named, output) -> None:
        from attnflow.torch.multihead import read_multihead

        if site.name in self.captures or threading.get_ident() != self.thread:
            return
        self.captures[site.name] = read_multihead(module, arguments, named)
        self.outputs[site.name] = (output[0], site)


def _by_head(gradient: Tensor, site: AttentionModule) -> Tensor:
    """(batch, T, heads, d) of the interface, or behind the output projection of a
    `MultiheadAttention`, as (batch, heads, T, d), which it is already where the module tells it."""
    if isinstance(site.module, ReadableAttention):
        return gradient
    if site.on_interface:
        return gradient.transpose(1, 2)
    if not getattr(site.module, "batch_first", False) and gradient.ndim == 3:
        gradient = gradient.transpose(0, 1)
    gradient = gradient if gradient.ndim == 3 else gradient[None]
    before = gradient @ site.module.out_proj.weight.detach()  # pyright: ignore
    return before.unflatten(-1, (site.heads, site.width)).transpose(1, 2)
