"""What the dynamics know of a model.

Nothing here imports JAX: a small flow runs on the host without it. JAX sees a model as a pytree of
its fields from the moment both are there.
"""

import abc
import dataclasses
import sys
from collections.abc import Mapping
from typing import Any, ClassVar, dataclass_transform

import numpy as np

Params = Any
Array = Any
Observables = dict[str, Array]

_unknown_to_jax: list[type] = []


def namespace(*values: Any) -> Any:
    """`jax.numpy` if one of the values is a JAX array or a tracer, else `numpy`."""
    if "jax" in sys.modules:
        import jax

        if any(isinstance(value, jax.Array) for value in values):
            return jax.numpy
    return np


@dataclass_transform(frozen_default=True)
class Module(abc.ABC):  # noqa: B024 (its heirs are abstract)
    """A frozen dataclass whose fields JAX may trace and batch. `__check_init__` of each class looks
    at the fields when a module is made; JAX rebuilds modules without it."""

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        dataclasses.dataclass(frozen=True, eq=False)(cls)
        _unknown_to_jax.append(cls)

    def __post_init__(self):
        for kind in reversed(type(self).__mro__):
            if "__check_init__" in vars(kind):
                vars(kind)["__check_init__"](self)
        tell_jax()


def tell_jax() -> None:
    """Register every module that JAX does not know yet, if JAX has been imported."""
    if not _unknown_to_jax or "jax" not in sys.modules:
        return
    from jax.tree_util import GetAttrKey, register_pytree_with_keys

    while _unknown_to_jax:
        cls = _unknown_to_jax.pop()
        names = tuple(field.name for field in dataclasses.fields(cls))  # pyright: ignore[reportArgumentType]

        def flatten(module, names=names):
            return tuple(getattr(module, name) for name in names), None

        def flatten_with_keys(module, names=names):
            return tuple((GetAttrKey(name), getattr(module, name)) for name in names), None

        def unflatten(_, children, cls=cls, names=names):
            module = object.__new__(cls)
            for name, child in zip(names, children, strict=True):
                object.__setattr__(module, name, child)
            return module

        register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)


class Reduction(Module):
    """An exact smaller form of a model's gradient flow: d state/dt = e^log_rate · direction.

    The common speed is kept as a logarithm so that a flow whose gradient vanishes like 1/t can be
    followed to log t in the thousands, where t itself has no floating-point value.

    on_host: the methods take NumPy arrays as well as traced ones, so that a small flow needs no
    compiler, and the states and numbers of many runs as one more axis in front; `host_slope` gives
    the slopes of the observables in `host_slopes` there.
    """

    host_slopes: ClassVar[tuple[str, ...]] = ()

    @property
    def on_host(self) -> bool:
        return False

    @abc.abstractmethod
    def init(self) -> Params: ...

    @abc.abstractmethod
    def log_rate(self, state: Params) -> Array: ...

    @abc.abstractmethod
    def direction(self, state: Params) -> Params: ...

    @abc.abstractmethod
    def observe(self, state: Params) -> Observables: ...

    def rates(self, state: Params) -> tuple[Array, Params]:
        """log_rate and direction, for those that share their work."""
        return self.log_rate(state), self.direction(state)

    def host_slope(self, name: str, state: Params) -> Array:
        """d observable / dt, up to the positive factor e^log_rate."""
        raise KeyError(name)


class Model(Module):
    """A loss over a pytree of parameters, and the quantities its paper speaks of.

    Float fields (also inside tuples and arrays) may be traced and batched; whole numbers and
    strings are fixed. `dims` names the axes of each observable that has any; `shared` the fields
    that are the same for every run of a batch (data, points of an average) and are not repeated.
    """

    dims: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    shared: ClassVar[tuple[str, ...]] = ()

    @abc.abstractmethod
    def init(self, key: Array | None = None) -> Params:
        """The model's own starting point; with a key, a random one around it."""

    @abc.abstractmethod
    def loss(self, params: Params) -> Array: ...

    @abc.abstractmethod
    def observe(self, params: Params) -> Observables: ...

    def integrands(self, params: Params) -> Observables:
        """Scalars to integrate over time beside the flow, reported under their names."""
        del params
        return {}

    def solution(self) -> Params | None:
        """Parameters known to solve the problem (a teacher's), if there are any."""
        return None

    def reduced(self, key: Array | None, start: Params | None = None) -> Reduction | None:
        """The exact fast path of the flow from `start`, or from `init(key)`, if there is one; it
        observes the same names as `observe` and `integrands` together."""
        del key, start
        return None
