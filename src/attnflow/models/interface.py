"""What the dynamics know of a model."""

import abc
from collections.abc import Mapping
from typing import Any, ClassVar

import equinox as eqx
import jax

Params = Any
Observables = dict[str, jax.Array]


class Reduction(eqx.Module):
    """An exact smaller form of a model's gradient flow: d state/dt = e^log_rate · direction.

    The common speed is kept as a logarithm so that a flow whose gradient vanishes like 1/t can be
    followed to log t in the thousands, where t itself has no floating-point value.
    """

    @abc.abstractmethod
    def init(self) -> Params: ...

    @abc.abstractmethod
    def log_rate(self, state: Params) -> jax.Array: ...

    @abc.abstractmethod
    def direction(self, state: Params) -> Params: ...

    @abc.abstractmethod
    def observe(self, state: Params) -> Observables: ...


class Model(eqx.Module):
    """A loss over a pytree of parameters, and the quantities its paper speaks of.

    Float fields (also inside tuples and arrays) may be traced and batched; whole numbers and
    strings are fixed. `dims` names the axes of each observable that has any; `shared` the fields
    that are the same for every run of a batch (data, points of an average) and are not repeated.
    """

    dims: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    shared: ClassVar[tuple[str, ...]] = ()

    @abc.abstractmethod
    def init(self, key: jax.Array | None = None) -> Params:
        """The model's own starting point; with a key, a random one around it."""

    @abc.abstractmethod
    def loss(self, params: Params) -> jax.Array: ...

    @abc.abstractmethod
    def observe(self, params: Params) -> Observables: ...

    def integrands(self, params: Params) -> Observables:
        """Scalars to integrate over time beside the flow, reported under their names."""
        del params
        return {}

    def solution(self) -> Params | None:
        """Parameters known to solve the problem (a teacher's), if there are any."""
        return None

    def reduced(self, key: jax.Array | None) -> Reduction | None:
        """The exact fast path of the flow from `init(key)`, if there is one; it observes the same
        names as `observe` and `integrands` together."""
        del key
        return None
