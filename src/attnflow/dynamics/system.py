"""One face for the full gradient flow and for a model's exact reduction."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from attnflow.dynamics.engines import reduction_of
from attnflow.dynamics.starts import Start, paced
from attnflow.models.interface import Model, Reduction


class FullFlow(Reduction):
    """Minus the gradient of the loss, by automatic differentiation; integrals ride along."""

    model: Model
    start: Any
    factors: Any = None  # of the velocities of blocks

    def init(self):
        zeros = jax.tree.map(jnp.zeros_like, self.model.integrands(self.start))
        return self.start, zeros

    def log_rate(self, state):
        del state
        return jnp.zeros(())

    def direction(self, state):
        params, _ = state
        velocity = jax.tree.map(jnp.negative, jax.grad(self.model.loss)(params))
        return paced(velocity, self.factors), self.model.integrands(params)

    def observe(self, state):
        params, integrals = state
        return self.model.observe(params) | integrals


class System(eqx.Module):
    """A reduction on the clock s = log(1 + t): d state/ds = e^(s + log_rate) · direction."""

    reduction: Reduction

    def init(self):
        return self.reduction.init()

    def clock_field(self, s, state, args):
        del args
        log_rate, direction = self.reduction.rates(state)
        speed = jnp.exp(s + log_rate)
        return jax.tree.map(lambda x: speed * x, direction)

    def time(self, s, state):
        del state
        return jnp.expm1(s)

    def observe(self, state):
        return self.reduction.observe(state)

    def slope(self, name: str, state):
        """d observable / dt, up to the positive factor e^log_rate: its sign, and its zeros."""
        return jax.jvp(
            lambda y: self.reduction.observe(y)[name], (state,), (self.reduction.direction(state),)
        )[1]


class ArcSystem(System):
    """The same path on the clock of its own direction, with t carried along: dt/ds = e^-log_rate.

    No stretch of the path is short on this clock, while on that of time a saturated softmax moves
    within a relative time of e^-gap, which floating-point times cannot tell apart.
    """

    def init(self):
        return self.reduction.init(), jnp.zeros(())

    def clock_field(self, s, state, args):
        del s, args
        log_rate, direction = self.reduction.rates(state[0])
        return direction, jnp.exp(-log_rate)

    def time(self, s, state):
        del s
        return state[1]

    def observe(self, state):
        return self.reduction.observe(state[0])

    def slope(self, name: str, state):
        return System(self.reduction).slope(name, state[0])


def system_of(model: Model, start: Start, path: str) -> System:
    """path: "full", "reduced", "auto", or "arc" for the reduced path on its own clock."""
    reduction = reduction_of(model, start, path)
    if reduction is None:
        params = model.init(start.key) if start.params is None else start.params
        reduction = FullFlow(model, params, start.rates)
    return ArcSystem(reduction) if path == "arc" else System(reduction)
