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

    For the losses also `descent` r = −∇ℓ(β), `output_rate` = dβ/dt along the flow, and the
    Jacobians of β with respect to V (d × dp, the columns of V one after the other) and to a.
    """

    values: Any
    scores: Any
    target: Any
    weights: Any
    output: Any
    values_rate: Any
    scores_rate: Any
    descent: Any = None
    output_rate: Any = None
    values_jacobian: Any = None
    scores_jacobian: Any = None

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


def _look(values, scores, target, objective: str, law: str = "softmax") -> State:
    model = ValueSoftmax(values=values, target=target, scores=scores, objective=objective, map=law)
    params = {"values": values, "scores": scores}
    rate = jax.tree.map(jnp.negative, jax.grad(model.loss)(params))
    s = model.weights(scores)
    return State(values, scores, target, s, values @ s, rate["values"], rate["scores"])


def _look_closely(values, scores, target, objective: str) -> State:
    state = _look(values, scores, target, objective)
    model = ValueSoftmax(values=values, target=target, scores=scores, objective=objective)

    def output(values, scores):
        return values @ model.weights(scores)

    here, rate = (values, scores), (state.values_rate, state.scores_rate)
    by_values, by_scores = jax.jacrev(output, (0, 1))(*here)
    return state._replace(
        descent=-jax.grad(model.loss_of_output)(state.output),
        output_rate=jax.jvp(output, here, rate)[1],
        values_jacobian=jnp.swapaxes(by_values, 1, 2).reshape(WIDTH, TOKENS * WIDTH),
        scores_jacobian=by_scores,
    )


@functools.cache
def random_states(seed: int = 0) -> dict[str, State]:
    """One `State` for each loss (softmax map), for each map (logistic loss), and "aligned": the
    square loss at V = β* uᵀ/|β*|²."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(CASES, WIDTH, TOKENS))
    scores = rng.normal(size=(CASES, TOKENS))
    target = rng.normal(size=(CASES, WIDTH))

    def look(values, scores, target):
        targets = {"logistic": target, "square": target, "kl": jax.nn.softmax(target)}
        losses = {loss: _look_closely(values, scores, targets[loss], loss) for loss in LOSSES}
        near_one = 1 + 0.4 * scores  # away from sums of zero
        maps = {law: _look(values, near_one, target, "logistic", law) for law in MAPS}
        along = jnp.outer(target, values.T @ target) / (target @ target)
        return losses | maps | {"aligned": _look(along, scores, target, "square")}

    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, jax.jit(jax.vmap(look))(values, scores, target))
