"""Which engine follows a flow: the host answers the first few of a kind, the compiler the rest."""

import contextlib
from collections import Counter
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from attnflow.dynamics.events import Crosses, Event
from attnflow.dynamics.starts import Start
from attnflow.dynamics.trajectory import fields_of
from attnflow.dynamics.trees import Packing, mapped
from attnflow.models.interface import Model, Module, Observables, Params, Reduction

HOST_FLOWS = 8  # of one kind; after so many, compiling pays
HOST_RUNS = 16  # of a batch: its common steps become many
HOST_POINTS = 5000
HOST_SIZE = 300  # numbers of a state

_followed: Counter[Any] = Counter()


class HostSystem(Protocol):
    """A flow on the clock s = log(1 + t), its state one vector; of more states, the rows of y."""

    def precision(self) -> contextlib.AbstractContextManager[Any]: ...

    def init(self) -> np.ndarray: ...

    def tree(self, y: np.ndarray) -> Params: ...

    def velocity(self, s: Any, y: np.ndarray) -> np.ndarray: ...

    def observe(self, y: np.ndarray) -> Observables: ...

    def slope(self, name: str, y: np.ndarray) -> Any: ...

    def knows(self, event: Event) -> bool: ...


def is_for_host(model: Model, grid: np.ndarray, solver: str, path: str, engine: str) -> bool:
    """Whether this flow is for the host; counts it."""
    if solver not in ("auto", "explicit"):
        return False
    if engine == "host":
        return True
    if len(grid) > HOST_POINTS or model.shared:
        return False
    kind = (type(model), path, len(grid), *map(_kind, fields_of(model).values()))
    _followed[kind] += 1
    return _followed[kind] <= HOST_FLOWS


def _kind(value: Any) -> Any:
    """The same for values that one compiled program serves."""
    return value if isinstance(value, str | int | None) else np.shape(value)


def host_system(model: Model, start: Start, path: str) -> HostSystem | None:
    """None for a state too large for the host."""
    reduction = _reduced(model, start, path)
    if reduction is not None and reduction.on_host:
        return NumpySystem(reduction)
    from attnflow.dynamics.traced import TracedSystem

    system = TracedSystem(model, start, path)
    return system if system.init().size <= HOST_SIZE else None


def host_batch(model: Model, over: Mapping[str, Any]) -> "NumpySystem | None":
    """One system for all runs of a batch, where the model has a NumPy form."""
    values = {name: np.asarray(x, np.float64) for name, x in over.items()}
    counts = {len(x) if x.ndim else 0 for x in values.values()}
    if len(counts) != 1 or not 0 < min(counts) <= HOST_RUNS or model.shared:
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


def reduction_of(model: Model, start: Start, path: str) -> Reduction | None:
    """The exact small form, where there is one and it is wanted."""
    plain = start.rates is None
    reduction = model.reduced(start.key, start.params) if plain and path != "full" else None
    if reduction is None and path in ("reduced", "arc"):
        why = "with these fields" if plain else "with frozen blocks or rates"
        raise ValueError(f"{type(model).__name__} {why} has no reduced path: take path='full'")
    return reduction


def _reduced(model: Model, start: Start, path: str) -> Reduction | None:
    """A random start comes from JAX, and is then made NumPy."""
    if start.key is None:
        return reduction_of(model, start, path)
    import jax

    from attnflow.dynamics.batching import prng_key

    with jax.enable_x64(True):
        reduction = reduction_of(model, start._replace(key=prng_key(start.key)), path)
        return jax.tree.map(lambda x: np.asarray(x) if isinstance(x, jax.Array) else x, reduction)


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
