"""Reductions whose methods take NumPy arrays, as systems for the host: one run or a few."""

import contextlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from attnflow.dynamics.events import Crosses, Event
from attnflow.dynamics.trajectory import fields_of
from attnflow.dynamics.trees import Packing, mapped
from attnflow.models.interface import Model, Module, Observables, Reduction

MOST_RUNS = 16  # of a batch: its common steps become many


class NumpySystem:
    """A reduction whose methods take NumPy arrays: no JAX."""

    def __init__(self, reduction: Reduction, one: Reduction | None = None, runs: int | None = None):
        """`runs`: how many runs the reduction is of, and `one` of them."""
        self.reduction, self.runs = reduction, runs
        example = (reduction if one is None else one).init()
        self.packing = Packing(mapped(lambda x: np.asarray(x, float), example))

    def precision(self):
        return contextlib.nullcontext()

    def tree(self, y: np.ndarray) -> Any:
        runs = () if self.runs is None else (self.runs, -1)
        return self.packing.unpacked(y.reshape(y.shape[:-1] + runs) if runs else y)

    def init(self) -> np.ndarray:
        return self.packing.packed(self.reduction.init()).ravel()

    def velocity(self, s: Any, y: np.ndarray) -> np.ndarray:
        log_rate, direction = self.reduction.rates(self.tree(y))
        clock = s if self.runs is None else np.asarray(s)[..., None]
        speed = np.asarray(np.exp(clock + log_rate))
        return (speed[..., None] * self.packing.packed(direction)).reshape(y.shape)

    def observe(self, y: np.ndarray) -> Observables:
        return self.reduction.observe(self.tree(y))

    def slope(self, name: str, y: np.ndarray) -> Any:
        return self.reduction.host_slope(name, self.tree(y))

    def knows(self, event: Event) -> bool:
        return isinstance(event, Crosses) or event.observable in self.reduction.host_slopes


def numpy_batch(model: Model, over: Mapping[str, Any]) -> NumpySystem | None:
    """One system for all runs of a batch, where the model has a NumPy form."""
    values = {name: np.asarray(x, np.float64) for name, x in over.items()}
    counts = {len(x) if x.ndim else 0 for x in values.values()}
    if len(counts) != 1 or not 0 < min(counts) <= MOST_RUNS or model.shared:
        return None  # too many, or an error that the other engine tells
    if any(not isinstance(getattr(model, name, None), float | int) for name in values):
        return None
    fields = fields_of(model)
    each = [
        type(model)(**fields | {name: float(x[run]) for name, x in values.items()}).reduced(None)
        for run in range(counts.pop())
    ]
    if any(reduction is None or not reduction.on_host for reduction in each):
        return None
    return NumpySystem(_stacked(each), each[0], len(each))


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
