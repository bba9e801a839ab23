"""Parameter groups in which value projections learn faster than the rest: two time scales."""

import functools
import warnings
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.weak import WeakTensorKeyDictionary

from attnflow._checks import positive
from attnflow.torch.modules import Projection, attention_modules

MARK = "attnflow_value_scale"  # in a group of fused weights: how much faster their parts learn

# parameter -> (axis, numbers along it) of the part that learns faster
_parts: Any = WeakTensorKeyDictionary()
_before: WeakKeyDictionary[Optimizer, list[tuple[Tensor, float, Tensor]]] = WeakKeyDictionary()


def param_groups(
    model: nn.Module,
    lr: float,
    value_scale: float = 10.0,
    *,
    outputs: bool = False,
    **options: Any,
) -> list[dict[str, Any]]:
    """For any torch optimizer: value projections, weights and biases, learn at value_scale · lr,
    everything else at lr. outputs: output projections go along with the values (their biases stay:
    they belong to no head). options (weight_decay=…) go to every group.

    Trainable parameters appear once each, in the groups "rest", "fused" and "values"; empty groups
    are left out. In "fused" are weights that hold the values beside queries and keys. A group
    cannot hold a part of a parameter, so hooks on the optimizer's step multiply the update of that
    part: w ← before + value_scale · (after − before). This is what a larger learning rate does
    wherever the update is proportional to it, entry by entry (SGD, Adam, AdamW, RMSprop, not
    Rprop, Muon or Adafactor); decoupled weight decay is faster too, as in a group of its own. Cost:
    one copy of the part a step. In half precision an update too small to be stored stays zero.

    Schedules that multiply the learning rate keep the ratio; `OneCycleLR(max_lr=number)`, which
    sets one rate for all groups, does not. Call it before the optimizer is made, on the model
    whose parameters it gets (not after FSDP or DeepSpeed have flattened them). With the Hugging
    Face trainer: `Trainer(model, ..., optimizers=(AdamW(param_groups(model, lr=1e-3)), None))`,
    which makes its own schedule.

    >>> layer = nn.TransformerEncoderLayer(8, 2, 16)
    >>> groups = param_groups(layer, lr=1e-3, value_scale=5.0, outputs=True, weight_decay=0.1)
    >>> [(group["name"], group["lr"], len(group["params"])) for group in groups]
    [('rest', 0.001, 9), ('fused', 0.001, 2), ('values', 0.005, 1)]
    >>> optimizer = torch.optim.AdamW(groups)
    """
    positive("lr", lr)
    positive("value_scale", value_scale)
    whole: set[Tensor] = set()
    parts: dict[Tensor, tuple[int, Tensor]] = {}
    for parameter, axis, numbers in _fast(model, outputs):
        if numbers.numel() == parameter.shape[axis]:
            whole.add(parameter)
        else:
            numbers = torch.cat([numbers, *(each[1] for each in [parts.get(parameter)] if each)])
            parts[parameter] = (axis, numbers.unique())
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not any(parameter in whole or parameter in parts for parameter in trained):
        raise ValueError("no value projection is trainable: there is nothing to make faster")
    groups: dict[str, dict[str, Any]] = {
        "rest": {"lr": lr, "params": []},
        "fused": {"lr": lr, "params": [], MARK: float(value_scale)},
        "values": {"lr": lr * value_scale, "params": []},
    }
    for parameter in trained:
        name = "values" if parameter in whole else "fused" if parameter in parts else "rest"
        groups[name]["params"].append(parameter)
    for parameter in groups["fused"]["params"]:
        _parts[parameter] = parts[parameter]
        _install()
    return [{"name": name, **each, **options} for name, each in groups.items() if each["params"]]


def _fast(model: nn.Module, outputs: bool) -> Iterator[tuple[Tensor, int, Tensor]]:
    """Parameters that hold what learns faster: (parameter, axis, numbers along it)."""
    wanted = ("value", "output") if outputs else ("value",)
    modules = attention_modules(model)
    if not modules:
        raise ValueError("no attention was found in the model: it has no value projections")
    unknown = [
        f"{each.name} ({what})"
        for each in modules
        for what in wanted
        if what not in each.projections
    ]
    if len(unknown) == len(wanted) * len(modules):
        raise ValueError(f"no projection was recognized in {', '.join(unknown)}")
    if unknown:
        warnings.warn(
            f"not recognized, so not faster: the projections {', '.join(unknown)}", stacklevel=4
        )
    for each in modules:
        for what in wanted:
            projection: Projection | None = each.projections.get(what)
            if projection is None:
                continue
            yield projection.weight, projection.axis, projection.index.flatten()
            if projection.bias is not None:
                yield projection.bias, 0, projection.bias_index.flatten()


@functools.cache
def _install() -> None:
    """Hooks that all optimizers share; they act on groups with the mark only."""
    register_optimizer_step_pre_hook(_remember)
    register_optimizer_step_post_hook(_multiply)


@torch.no_grad()
def _remember(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    found = []
    for group in optimizer.param_groups:
        scale = group.get(MARK, 1.0)
        for parameter in group["params"] if scale != 1 else ():
            if parameter not in _parts:
                raise RuntimeError(
                    f"a group with {MARK} holds a parameter that is not known: call param_groups "
                    "on this model (a copied or unpickled one too) and make the optimizer of that"
                )
            axis, numbers = _parts[parameter]
            _parts[parameter] = axis, numbers.to(parameter.device)
            found.append((parameter, scale, _part(parameter).clone()))
    if found:
        _before[optimizer] = found


@torch.no_grad()
def _multiply(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    for parameter, scale, before in _before.pop(optimizer, ()):
        axis, numbers = _parts[parameter]
        after = _part(parameter)
        parameter.index_copy_(axis, numbers, before + scale * (after - before))


def _part(parameter: Tensor) -> Tensor:
    axis, numbers = _parts[parameter]
    return parameter.index_select(axis, numbers)
