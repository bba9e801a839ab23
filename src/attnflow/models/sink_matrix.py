"""T queries that must all say the same: row-softmax of a T × T score matrix over shared values.

ℒ = (1/T) Σ_t log(1 + e^-⟨s_t, u⟩),   s_t = softmax(A_t),   u = V β*
"""

from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from jax.nn import softmax, softplus
from jax.scipy.special import entr
from typing_extensions import Doc

from attnflow._checks import moderate, positive_moderate
from attnflow.models.interface import Model, Observables, Reduction


class SinkMatrix(Model):
    """Scores A (T × T), zero at the start unless `scores` is given; with a key, plus `scale` ×
    standard normal entries. Values start at V(0) = u(0) β*ᵀ/|β*|²: only u = V β* matters.

    Observables: `weights` (query, key), `projections` u, `sink_mass` (the mean weight that each key
    gets from the queries), `loss`, `entropy` (mean over queries).

        >>> model = SinkMatrix(projections=(0.2, 0.0, -0.1))
        >>> float(model.observe(model.init())["sink_mass"].sum().round(6))
        1.0
    """

    projections: Annotated[
        tuple[float, ...], Doc("u(0): how well each value already points at the target")
    ] = (0.3, 0.1, -0.2)
    target_norm: Annotated[float, Doc("|β*|")] = 1.0
    scale: Annotated[float, Doc("standard deviation of the entries added to A(0) by a key")] = 1.0
    scores: Annotated[np.ndarray | None, tyro.conf.Suppress] = None

    dims: ClassVar = {
        "weights": ("query", "key"),
        "projections": ("key",),
        "sink_mass": ("key",),
    }

    def __check_init__(self):
        moderate("projections", self.projections)
        positive_moderate("target_norm", self.target_norm)
        positive_moderate("scale", self.scale)
        tokens = np.shape(self.projections)[-1]
        if tokens < 2:
            raise ValueError(f"projections: attention needs at least two tokens (got {tokens})")
        if self.scores is not None:
            moderate("scores", self.scores)
            if np.shape(self.scores)[-2:] != (tokens, tokens):
                raise ValueError(f"scores must be {tokens} × {tokens}")

    def init(self, key=None):
        u = jnp.asarray(self.projections)
        scores = jnp.zeros((u.size, u.size)) if self.scores is None else jnp.asarray(self.scores)
        if key is not None:
            scores = scores + self.scale * jax.random.normal(key, scores.shape, scores.dtype)
        return {"values": u / self.target_norm, "scores": scores}

    def loss(self, params):
        outputs = softmax(params["scores"], axis=-1) @ params["values"]
        return jnp.mean(softplus(-self.target_norm * outputs))

    def observe(self, params) -> Observables:
        weights = softmax(params["scores"], axis=-1)
        return {
            "weights": weights,
            "projections": params["values"] * self.target_norm,
            "sink_mass": jnp.mean(weights, axis=0),
            "loss": self.loss(params),
            "entropy": jnp.mean(jnp.sum(entr(weights), axis=-1)),
        }

    def reduced(self, key, start=None) -> "SinkReduction":
        return SinkReduction(self, self.init(key) if start is None else start)


class SinkReduction(Reduction):
    """The same flow with the largest γ_t/T taken out, so that log t may be in the thousands."""

    model: SinkMatrix
    start: dict[str, jax.Array]

    def init(self):
        return self.start

    def _log_gammas(self, state):
        outputs = softmax(state["scores"], axis=-1) @ state["values"]
        return -softplus(self.model.target_norm * outputs)

    def log_rate(self, state):
        return jnp.max(self._log_gammas(state)) - jnp.log(1.0 * state["values"].size)

    def direction(self, state):
        weights = softmax(state["scores"], axis=-1)
        log_gammas = self._log_gammas(state)
        gammas = jnp.exp(log_gammas - jnp.max(log_gammas))[:, None] * self.model.target_norm
        centred = state["values"] - (weights @ state["values"])[:, None]
        return {"values": jnp.sum(gammas * weights, axis=0), "scores": gammas * weights * centred}

    def observe(self, state) -> Observables:
        return self.model.observe(state)
