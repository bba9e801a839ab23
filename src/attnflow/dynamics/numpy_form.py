"""Reductions whose methods take NumPy arrays, as systems for the host: one run or a few."""

import contextlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from attnflow.dynamics.events import Crosses, Event
from attnflow.dynamics.trajectory import fields_of
from attnflow.dynamics.trees import Packing, mapped
from attnflow.models.interface import Model, Module, Observables, Reduction


class NumpySystem:
    """A reduction whose methods take NumPy arrays: no JAX."""

    stepped = jacobian = None

    def __init__(self, reduction: Reduction, one: Reduction | None = None):
        """`one`: of the runs, if the reduction is of many."""
        self.reduction = reduction
        example = (reduction if one is None else one).init()
        self.packing = Packing(mapped(lambda x: np.asarray(x, float), example))

    def precision(self):
        return contextlib.nullcontext()

    def tree(self, y: np.ndarray) -> Any:
        return self.packing.unpacked(y)

    def init(self) -> np.ndarray:
        return self.packing.packed(self.reduction.init())

    def velocity(self, s: Any, y: np.ndarray) -> np.ndarray:
        log_rate, direction = self.reduction.rates(self.tree(y))
        return np.exp(s + log_rate)[..., None] * self.packing.packed(direction)

    def observe(self, y: np.ndarray) -> Observables:
        return self.reduction.observe(self.tree(y))

    def slope(self, name: str, y: np.ndarray) -> Any:
        return self.reduction.host_slope(name, self.tree(y))

    def knows(self, event: Event) -> bool:
        return isinstance(event, Crosses) or event.observable in self.reduction.host_slopes


def numpy_batch(model: Model, over: Mapping[str, Any]) -> NumpySystem | None:
    """One system for all runs, made of a model for each, where those have a NumPy form."""
    fields = fields_of(model)
    if not all(_is_numbers(fields.get(name)) for name in over):
        return None
    values = {name: np.asarray(x, np.float64) for name, x in over.items()}
    counts = {len(x) if x.ndim else 0 for x in values.values()}
    fit = all(x.shape[1:] == np.shape(fields[name]) for name, x in values.items())
    if len(counts) != 1 or 0 in counts or not fit:
        return None  # an error that is told elsewhere
    each = [
        type(model)(**fields | {name: _number(x[run]) for name, x in values.items()}).reduced(None)
        for run in range(counts.pop())
    ]
    if any(reduction is None or not reduction.on_host for reduction in each):
        return None
    return NumpySystem(_stacked(each), each[0])


def _is_numbers(value: Any) -> bool:
    """Whether a field is a number or a tuple of them."""
    each = value if isinstance(value, tuple) else (value,)
    return all(isinstance(x, float | int) for x in each)


def _number(value: np.ndarray) -> float | tuple[float, ...]:
    return tuple(value.tolist()) if value.ndim else float(value)


def _stacked(parts: list[Any]) -> Any:
    """Modules of numbers as one module, its numbers with an axis in front."""
    first = parts[0]
    if isinstance(first, Module):
        stacked = object.__new__(type(first))
        for name in fields_of(first):
            object.__setattr__(stacked, name, _stacked([getattr(x, name) for x in parts]))
        return stacked
    if isinstance(first, dict):
        return {name: _stacked([x[name] for x in parts]) for name in first}
    if isinstance(first, str | bool | None):
        return first
    return np.stack([np.asarray(x) for x in parts])
