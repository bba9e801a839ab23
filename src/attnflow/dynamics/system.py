"""One face for the full gradient flow and for a model's exact reduction."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from attnflow.models.interface import Model, Reduction


class FullFlow(Reduction):
    """Minus the gradient of the loss, by automatic differentiation; integrals ride along."""

    model: Model
    start: Any

    def init(self):
        zeros = jax.tree.map(jnp.zeros_like, self.model.integrands(self.start))
        return self.start, zeros

    def log_rate(self, state):
        del state
        return jnp.zeros(())

    def direction(self, state):
        params, _ = state
        velocity = jax.tree.map(jnp.negative, jax.grad(self.model.loss)(params))
        return velocity, self.model.integrands(params)

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
        speed = jnp.exp(s + self.reduction.log_rate(state))
        return jax.tree.map(lambda x: speed * x, self.reduction.direction(state))

    def observe(self, state):
        return self.reduction.observe(state)

    def slope(self, name: str, state):
        """d observable / dt, up to the positive factor e^log_rate: its sign, and its zeros."""
        return jax.jvp(
            lambda y: self.reduction.observe(y)[name], (state,), (self.reduction.direction(state),)
        )[1]


def system_of(model: Model, key, path: str) -> System:
    start = model.init(key)
    reduction = None if path == "full" else model.reduced(start)
    if reduction is None:
        if path == "reduced":
            raise ValueError(
                f"{type(model).__name__} with these fields has no reduced path: take path='full'"
            )
        reduction = FullFlow(model, start)
    return System(reduction)
