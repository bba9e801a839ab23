"""Heads switched off for a while: weights that are multiplied only while their module runs."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attnflow._checks import choice
from attnflow.torch.modules import AttentionModule, Projection, attention_modules

Heads = (
    Mapping[str, Iterable[int]] | Mapping[int, Iterable[int]] | Mapping[str | int, Iterable[int]]
)


@contextlib.contextmanager
def mask_heads(model: nn.Module, heads: Heads) -> Iterator[nn.Module]:
    """While entered, the heads add nothing to the output of their attention. Parameters are not
    touched, gradients reach them, and masks may be nested. heads: {name of an attention module, or
    its number among `attention_modules(model)`: numbers of heads}; all of a module may be masked.

    Code compiled by `torch.compile` runs eagerly meanwhile: it would not see the mask.

    >>> layer = nn.MultiheadAttention(8, 2, batch_first=True)
    >>> x = torch.ones(1, 3, 8)
    >>> with mask_heads(layer, {0: [0, 1]}):
    ...     masked, _ = layer(x, x, x)
    >>> bool((masked == layer.out_proj.bias).all())
    True
    """
    chosen = choose_heads(model, heads)
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        for module, numbers in chosen:
            gate = torch.ones(module.heads)
            gate[numbers] = 0
            stack.enter_context(scaled_by_head(module, output_of(module), gate))
        yield model


def choose_heads(model: nn.Module, heads: Heads) -> list[tuple[AttentionModule, list[int]]]:
    """The modules that are meant and the heads of each, in rising order, without empty ones."""
    modules = attention_modules(model)
    named = {module.name: module for module in modules}
    if not named:
        raise ValueError("no attention was found in the model: it has no heads")
    chosen: dict[str, set[int]] = {}
    for key, numbers in heads.items():
        if isinstance(key, str):
            choice("attention module", key, named)
        else:
            _number("layer", key, len(modules))
        name = key if isinstance(key, str) else modules[key].name
        for number in numbers:
            _number(f"head of {name}", number, named[name].heads)
        chosen.setdefault(name, set()).update(int(number) for number in numbers)
    return [(named[name], sorted(numbers)) for name, numbers in chosen.items() if numbers]


def _number(what: str, value: Any, count: int) -> None:
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or not 0 <= value < count:
        raise ValueError(f"{what}: there are {count}, numbered from 0 (got {value!r})")


def output_of(module: AttentionModule) -> Projection:
    if module.output is None:
        raise ValueError(
            f"{module.name} ({type(module.module).__name__}): its output projection is not known, "
            "so heads cannot be told apart"
        )
    return module.output


@contextlib.contextmanager
def scaled_by_head(
    module: AttentionModule, projection: Projection, factors: Tensor
) -> Iterator[None]:
    """While entered, each head's part of the weight and bias is multiplied by its factor."""
    owner, name = projection.owner, projection.parameter
    caller = owner if module.on_interface else module.module  # MultiheadAttention only reads it
    bias = projection.bias
    with contextlib.ExitStack() as stack:
        wanted = spread(projection.index, factors, projection.weight.shape[projection.axis])
        wanted = wanted if projection.axis == projection.weight.ndim - 1 else wanted[:, None]
        stack.enter_context(scaled(caller, owner, name, wanted))
        if bias is not None:
            wanted = spread(projection.bias_index, factors, bias.shape[0])
            stack.enter_context(scaled(caller, owner, projection.bias_name, wanted))
        yield


def spread(index: Tensor, factors: Tensor, size: int) -> Tensor:
    """Factors of heads written to the places (heads, width) of each, ones elsewhere."""
    found = torch.ones(size, dtype=torch.float64)
    found[index] = factors.detach().to("cpu", torch.float64)[:, None]
    return found


@contextlib.contextmanager
def scaled(caller: nn.Module, owner: nn.Module, name: str, factor: Tensor) -> Iterator[None]:
    """While entered and while `caller` runs, the owner's parameter is multiplied by `factor`.

    Between calls the parameter is what it was: optimizers and `state_dict` see nothing.
    """
    parameters: dict[str, Any] = owner._parameters
    kept: list[Any] = []

    def before(*_: Any) -> None:
        current = parameters[name]
        kept.append(current)
        parameters[name] = current * factor.to(current)

    def after(*_: Any) -> None:
        if kept:
            parameters[name] = kept.pop()

    # The last to multiply is the first to put back: hence `prepend`.
    hooks = [
        caller.register_forward_pre_hook(before),
        caller.register_forward_hook(after, prepend=True, always_call=True),
    ]
    try:
        yield
    finally:
        after()  # an interrupted call runs no hooks
        for hook in hooks:
            hook.remove()
