"""Which engine follows a flow: the host answers the first few of a kind, the compiler the rest."""

import contextlib
from collections import Counter
from typing import Any, Protocol

import numpy as np

from attnflow.dynamics.events import Event
from attnflow.dynamics.numpy_form import NumpySystem, numpy_batch
from attnflow.dynamics.starts import Start
from attnflow.dynamics.trajectory import fields_of
from attnflow.models.interface import Model, Observables, Params, Reduction

HOST_FLOWS = 8  # of one kind; after so many, compiling pays
HOST_POINTS = 5000
HOST_SIZE = 300  # numbers of a state
HOST_RUNS = 512  # of a batch
HOST_NUMBERS = 4000  # of the states of a batch

_followed: Counter[Any] = Counter()


class HostSystem(Protocol):
    """A flow on the clock s = log(1 + t), or several. A state y is a vector (n), or (runs, n); each
    method also takes many of them, as axes in front."""

    def precision(self) -> contextlib.AbstractContextManager[Any]: ...

    def init(self) -> np.ndarray: ...

    def tree(self, y: np.ndarray) -> Params: ...

    def velocity(self, s: Any, y: np.ndarray) -> np.ndarray: ...

    stepped: Any  # for `Dop853`, or None
    jacobian: Any  # of the velocity, or None

    def observe(self, y: np.ndarray) -> Observables: ...

    def slope(self, name: str, y: np.ndarray) -> Any: ...

    def knows(self, event: Event) -> bool: ...


def is_for_host(
    model: Model, grid: np.ndarray, solver: str, engine: str, many: bool, earlier: int
) -> bool:
    """Whether a flow is, or several at once are; `earlier`: those of the kind before."""
    if solver == "quick" or (solver == "stiff" and many):
        return False
    if engine == "host":
        return True
    few = many or earlier < HOST_FLOWS  # a batch in compiled steps is as fast as compiled whole
    return len(grid) <= HOST_POINTS and not model.shared and few


def followed(model: Model, path: str, points: int) -> int:
    """How many flows of this kind came before; counts this one."""
    kind = (type(model), path, points, *map(_kind, fields_of(model).values()))
    _followed[kind] += 1
    return _followed[kind] - 1


def _kind(value: Any) -> Any:
    """The same for values that one compiled program serves."""
    return value if isinstance(value, str | int | None) else np.shape(value)


def host_system(
    model: Model, over, runs, start: Start, starts, path: str, earlier: int
) -> HostSystem | None:
    """For one run, or for as many as `batching.prepare` makes of these; None where they are too
    large for the host. The first batch of a kind is not compiled if the model has a NumPy form."""
    if over is None and runs is None and starts is None:
        reduction = _reduced(model, start, path)
        if reduction is not None and reduction.on_host:
            return NumpySystem(reduction)
    elif _count(over, runs, starts) > HOST_RUNS:
        return None
    elif over and runs is None and path != "full" and not earlier and start.is_model_own:
        system = numpy_batch(model, over)
        if system is not None:
            return system
    from attnflow.dynamics.batching import prepare
    from attnflow.dynamics.traced import TracedSystem

    system = TracedSystem(prepare(model, over, runs, start, starts), path)
    shape = system.init().shape
    return system if shape[-1] <= HOST_SIZE and np.prod(shape) <= HOST_NUMBERS else None


def _count(over, runs: int | None, starts: int | None) -> int:
    lengths = (len(values) if np.ndim(values) else 0 for values in (over or {}).values())
    return max(runs or 0, starts or 0, *lengths, 0)


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
