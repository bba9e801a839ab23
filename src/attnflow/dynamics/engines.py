"""Which engine follows a flow: the host answers the first few of a kind, the compiler the rest."""

from collections import Counter
from typing import Any

import numpy as np

from attnflow.dynamics.trajectory import fields_of
from attnflow.dynamics.trees import leaves, mapped
from attnflow.models.interface import Model, Reduction

HOST_FLOWS = 8  # of one kind; after so many, compiling pays
HOST_POINTS = 5000
HOST_SIZE = 300  # numbers of a state

_followed: Counter[Any] = Counter()


def on_host(model: Model, grid: np.ndarray, solver: str, path: str, engine: str) -> bool:
    """Whether this flow is for the host; counts it."""
    if engine == "host":
        return True
    if solver not in ("auto", "explicit") or len(grid) > HOST_POINTS or model.shared:
        return False
    kind = (type(model), path, len(grid), *map(_kind, fields_of(model).values()))
    _followed[kind] += 1
    return _followed[kind] <= HOST_FLOWS


def _kind(value: Any) -> Any:
    """The same for values that one compiled program serves."""
    return value if isinstance(value, str | int | None) else np.shape(value)


def host_system(model: Model, key: Any, path: str) -> "HostSystem | None":
    """None for a state too large for the host."""
    reduction = None if path == "full" else _reduced(model, key)
    if reduction is not None and reduction.on_host:
        return HostSystem(reduction)
    if path == "reduced" and reduction is None:
        raise ValueError(
            f"{type(model).__name__} with these fields has no reduced path: take path='full'"
        )
    return None


def _reduced(model: Model, key: Any) -> Reduction | None:
    """A random start comes from JAX, and is then made NumPy."""
    if key is None:
        return model.reduced(None)
    import jax

    from attnflow.dynamics.batching import prng_key

    with jax.enable_x64(True):
        reduction = model.reduced(prng_key(key))
        return jax.tree.map(lambda x: np.asarray(x) if isinstance(x, jax.Array) else x, reduction)


class HostSystem:
    """A reduction on the clock s = log(1 + t), in NumPy."""

    def __init__(self, reduction: Reduction):
        self.reduction = reduction
        self.observe = reduction.observe

    def init(self) -> Any:
        return mapped(lambda x: np.asarray(x, float), self.reduction.init())

    def velocity(self, s: float, state: Any) -> Any:
        log_rate, direction = self.reduction.rates(state)
        speed = np.exp(s + log_rate)
        return mapped(lambda x: speed * x, direction)

    def slope(self, name: str, state: Any) -> Any:
        return self.reduction.host_slope(name, state)

    def knows(self, event: Any) -> bool:
        from attnflow.dynamics.events import Crosses

        return isinstance(event, Crosses) or event.observable in self.reduction.host_slopes

    @property
    def size(self) -> int:
        return sum(np.size(x) for x in leaves(self.init()))
