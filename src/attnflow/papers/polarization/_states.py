"""Random states of the value–softmax model, with everything autodiff says about them."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attnflow.models.value_softmax import ValueSoftmax

CASES, TOKENS, WIDTH = 40, 5, 4
LOSSES = ("logistic", "square", "kl")
MAPS = (
    "identity_normalized",
    "abs_normalized",
    "square_normalized",
    "relu_normalized",
    "softplus_normalized",
    "softmax",
)


class State(NamedTuple):
    """All cases of one loss and one map; `values_rate` and `scores_rate` are −∇ by autodiff.

    `descent` r = −∇ℓ(β), `output_rate` = dβ/dt along the flow, `jacobians` those of β with respect
    to V (as a d × dp matrix, columns of V one after the other) and to a.
    """

    values: Any
    scores: Any
    target: Any
    weights: Any
    output: Any
    descent: Any
    values_rate: Any
    scores_rate: Any
    output_rate: Any
    jacobians: Any

    @property
    def u(self):
        return np.einsum("cdp,cd->cp", self.values, self.target)

    @property
    def u_rate(self):
        return np.einsum("cdp,cd->cp", self.values_rate, self.target)

    @property
    def norm2(self):
        """|β*|², as a column."""
        return (self.target**2).sum(axis=1, keepdims=True)

    @property
    def margin(self):
        """⟨u, s⟩ = ⟨β*, β⟩, as a column."""
        return (self.u * self.weights).sum(axis=1, keepdims=True)

    @property
    def gamma(self):
        """The logistic γ, as a column."""
        return 1 / (1 + np.exp(self.margin))


def softmax_jacobian(s):
    """diag(s) − s sᵀ for every case."""
    return s[:, :, None] * (np.eye(s.shape[1]) - s[:, None, :])


def aligned(norm2, u, target):
    """V = β* uᵀ/|β*|² for every case."""
    return target[:, :, None] * u[:, None, :] / norm2[:, :, None]


def _look(values, scores, target, objective: str, law: str) -> State:
    model = ValueSoftmax(values=values, target=target, scores=scores, objective=objective, map=law)
    params = {"values": values, "scores": scores}
    gradient = jax.grad(model.loss)(params)
    rate = jax.tree.map(jnp.negative, gradient)

    def output(params):
        return params["values"] @ model.weights(params["scores"])

    beta, beta_rate = jax.jvp(output, (params,), (rate,))
    jacobian = jax.jacobian(output)(params)
    columns = jnp.swapaxes(jacobian["values"], 1, 2).reshape(WIDTH, TOKENS * WIDTH)
    return State(
        values,
        scores,
        target,
        model.weights(scores),
        beta,
        -jax.grad(model.loss_of_output)(beta),
        rate["values"],
        rate["scores"],
        beta_rate,
        {"values": columns, "scores": jacobian["scores"]},
    )


@functools.cache
def random_states(seed: int = 0) -> dict[str, State]:
    """One `State` for each loss (softmax map) and for each map (logistic loss)."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(CASES, WIDTH, TOKENS))
    scores = rng.normal(size=(CASES, TOKENS))
    target = rng.normal(size=(CASES, WIDTH))

    def look(values, scores, target):
        seen = {
            loss: _look(
                values, scores, jax.nn.softmax(target) if loss == "kl" else target, loss, "softmax"
            )
            for loss in LOSSES
        }
        near_one = 1 + 0.4 * scores  # away from sums of zero
        seen |= {law: _look(values, near_one, target, "logistic", law) for law in MAPS}
        beta = target / (target @ target)
        in_line = jnp.outer(beta, values.T @ target)
        return seen | {"aligned": _look(in_line, scores, target, "square", "softmax")}

    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, jax.jit(jax.vmap(look))(values, scores, target))
