"""The value–softmax model ℓ(V s), s = map(a): the core of one attention head.

Where the gradient of ℓ stays parallel to the target β* (logistic loss; square loss from V(0) of
rank one along β*), only the projections u = Vᵀβ* and the scores a move,

    u' = γ |β*|² s,   a' = γ (∂s/∂a)ᵀ u,   γ = ⟨β*, −∇ℓ⟩ / |β*|²,

and in the time τ = ∫γ dt the path does not depend on the loss at all.
"""

from typing import Annotated, ClassVar

import numpy as np
import tyro
from typing_extensions import Doc

from attnflow import attention
from attnflow._checks import choice, finite, is_traced, moderate, positive_moderate
from attnflow.attention.similarities import softplus
from attnflow.models.interface import Array, Model, Observables, Reduction, namespace
from attnflow.models.self_attention import log_softmax


def entropy(weights: Array) -> Array:
    """−Σ s log s, along the last axis."""
    xp = namespace(weights)
    some = weights > 0
    return -xp.sum(xp.where(some, weights * xp.log(xp.where(some, weights, 1.0)), 0.0), axis=-1)


def inner(x: Array, y: Array) -> Array:
    """Σ x y, along the last axis."""
    return namespace(x, y).sum(x * y, axis=-1)


OBJECTIVES = ("logistic", "square", "kl")
ArrayField = Annotated[np.ndarray | None, tyro.conf.Suppress]


class ValueSoftmax(Model):
    """Values V (d × p) and scores a (p) trained together, β = V · map(a).

    objective: `logistic` log(1 + e^-⟨β*, β⟩); `square` ½|β* − X β|² with X = `data` (default: the
    identity); `kl` the divergence of softmax(β) from the distribution `target`.

    The start is given by `projections` u(0) alone, and then V(0) = β* u(0)ᵀ/|β*|² with
    |β*| = `target_norm`; or, from Python, by the matrix `values` and the vector `target`. With a
    key, V(0) gets `scale` × standard normal entries more.

    Observables: `scores`, `weights`, `loss`, `entropy` (−Σ s log s; only where the weights form a
    distribution), and except for `kl`: `projections`, `gamma_integral` = ∫γ dt.

        >>> model = ValueSoftmax(projections=(0.3, 0.1, -0.2))
        >>> round(float(model.loss(model.init())), 4)
        0.6604
    """

    projections: Annotated[
        tuple[float, ...] | None, Doc("u(0): how well each value already points at the target")
    ] = None
    objective: Annotated[str, tyro.conf.arg(name="loss"), Doc("logistic, square or kl")] = (
        "logistic"
    )
    map: Annotated[str, Doc("how scores become weights: a name of the attention registry")] = (
        "softmax"
    )
    scores: Annotated[tuple[float, ...] | None, Doc("a(0); zeros if not given")] = None
    target_norm: Annotated[float, Doc("|β*|; taken from the target where that is given")] = 1.0
    scale: Annotated[
        float, Doc("standard deviation of the entries added to V(0) when a key is given")
    ] = 0.1
    values: ArrayField = None
    target: ArrayField = None
    data: ArrayField = None

    dims: ClassVar = {"scores": ("token",), "weights": ("token",), "projections": ("token",)}

    def __check_init__(self):
        choice("loss", self.objective, OBJECTIVES)
        choice("map", self.map, attention.names())
        positive_moderate("target_norm", self.target_norm)
        positive_moderate("scale", self.scale)
        if (self.projections is None) == (self.values is None):
            raise ValueError("give the start as projections, or as values with a target: not both")
        if self.projections is not None:
            if self.target is not None or self.data is not None or self.objective == "kl":
                raise ValueError("target, data and the kl loss need the start as a values matrix")
            tokens = np.shape(self.projections)[-1]
            moderate("projections", self.projections)
        else:
            assert self.values is not None
            if self.target is None or np.ndim(self.target) < 1:
                raise ValueError("values need a target vector")
            tokens, width = np.shape(self.values)[-1], np.shape(self.values)[-2]
            rows = width if self.data is None else np.shape(self.data)[-2]
            if np.shape(self.target)[-1] != rows:
                raise ValueError(
                    f"target has {np.shape(self.target)[-1]} entries where the output has {rows}"
                )
            finite("values", self.values)
            finite("target", self.target)
        if tokens < 2:
            raise ValueError(f"projections: attention needs at least two tokens (got {tokens})")
        if self.data is not None and self.objective != "square":
            raise ValueError("data belongs to the square loss")
        if self.scores is not None:
            moderate("scores", self.scores)
            if np.shape(self.scores)[-1] != tokens:
                raise ValueError(
                    f"scores must have one entry for each of the {tokens} tokens "
                    f"(got {np.shape(self.scores)[-1]})"
                )
        law = attention.get(self.map)
        if is_traced(self.scores):
            return
        start = np.zeros(tokens) if self.scores is None else np.asarray(self.scores, float)
        if law.needs_nonzero_sum and (law.similarity(start).sum(axis=-1) == 0).any():
            raise ValueError(
                f"map {self.map!r} is 0/0 at these scores, whose similarities add up to zero: "
                "start elsewhere, e.g. at scores of 1"
            )

    def require_order(self) -> None:
        """No two tokens start alike: the hypothesis of the theorems on polarization.

        Two tokens with the same projection and the same score stay equal for ever, an unstable
        balance that rounding breaks at random.
        """
        if self.projections is None:
            return
        scores = (0.0,) * len(self.projections) if self.scores is None else self.scores
        seen: dict[tuple[float, float], int] = {}
        for token, start in enumerate(zip(self.projections, scores, strict=True)):
            if start in seen:
                raise ValueError(
                    f"tokens {seen[start]} and {token} are tied (projection {start[0]:g}, score "
                    f"{start[1]:g}): the flow would keep them equal for ever; make them differ"
                )
            seen[start] = token

    def beta(self):
        """The target β*; one-dimensional where only its norm was given."""
        if self.target is None:
            return namespace(self.target_norm).stack([self.target_norm])
        return namespace(self.target).asarray(self.target)

    def init(self, key=None):
        beta = self.beta()
        xp = namespace(beta, self.projections, self.values, self.scores)
        if self.values is None:
            values = xp.outer(beta, xp.asarray(self.projections)) / (beta @ beta)
        else:
            values = xp.asarray(self.values)
        tokens = values.shape[1]
        scores = xp.zeros(tokens) if self.scores is None else xp.asarray(self.scores)
        if key is not None:
            import jax

            values = values + self.scale * jax.random.normal(key, values.shape, values.dtype)
        return {"values": values, "scores": scores}

    def weights(self, scores):
        return attention.get(self.map)(scores)

    def loss_of_output(self, output):
        beta = self.beta()
        if self.objective == "logistic":
            return softplus(-(beta @ output))
        if self.objective == "kl":
            return -entropy(beta) - beta @ log_softmax(output)
        fitted = output if self.data is None else self.data @ output
        return 0.5 * namespace(fitted).sum((beta - fitted) ** 2)

    def loss(self, params):
        return self.loss_of_output(params["values"] @ self.weights(params["scores"]))

    def observe(self, params) -> Observables:
        weights = self.weights(params["scores"])
        observables = {"scores": params["scores"], "weights": weights, "loss": self.loss(params)}
        if attention.get(self.map).gives_distributions:
            observables["entropy"] = entropy(weights)
        if self.objective != "kl":
            observables["projections"] = params["values"].T @ self._direction()
        return observables

    def _direction(self):
        """What a value is projected on: β*, or Xᵀβ* where the output passes through data."""
        beta = self.beta()
        return beta if self.data is None else np.swapaxes(self.data, -1, -2) @ beta

    def integrands(self, params) -> Observables:
        if self.objective == "kl":
            return {}
        output = params["values"] @ self.weights(params["scores"])
        direction = self._direction()
        import jax

        descent = -jax.grad(self.loss_of_output)(output)
        return {"gamma_integral": direction @ descent / (direction @ direction)}

    def reduced(self, key, start=None) -> "AlignedReduction | None":
        aligned = self.objective == "logistic" or (
            self.objective == "square" and self.values is None and start is None
        )
        if not aligned:
            return None
        start, beta = self.init(key) if start is None else start, self.beta()
        return AlignedReduction(self, start["values"].T @ beta, start["scores"], beta @ beta)


class AlignedReduction(Reduction):
    """The flow in (u, a), with τ = ∫γ dt; exact whatever the dimension of the values."""

    model: ValueSoftmax
    projections: Array
    scores: Array
    norm2: Array

    @property
    def on_host(self) -> bool:
        return self.model.map == "softmax"  # of the other maps only JAX has the derivative

    def init(self):
        return {"u": self.projections, "a": self.scores, "tau": 0 * self.norm2}

    def log_rate(self, state):
        return self.rates(state)[0]

    def direction(self, state):
        return self.rates(state)[1]

    def rates(self, state):
        """log γ apart for the logistic loss, whose γ falls like 1/t forever."""
        weights, scores = self._pulled_back(state["a"], state["u"])
        norm2 = namespace(self.norm2).asarray(self.norm2)[..., None]
        margin = inner(state["u"], weights)
        if self.model.objective == "logistic":
            along = {"u": norm2 * weights, "a": scores, "tau": 1 + 0 * state["tau"]}
            return -softplus(margin), along
        gamma = (1 - margin / self.norm2)[..., None]
        along = {"u": gamma * norm2 * weights, "a": gamma * scores, "tau": gamma[..., 0]}
        return 0 * margin, along

    def _pulled_back(self, scores, u):
        """The weights, and (∂s/∂a)ᵀ u."""
        if self.model.map == "softmax" and namespace(scores, u) is np:
            weights = self.model.weights(scores)
            apart = u[..., :, None] - u[..., None, :]  # u − ⟨u, s⟩ without 1 − 1
            return weights, weights * (apart @ weights[..., None])[..., 0]
        import jax

        weights, pull_back = jax.vjp(self.model.weights, scores)
        return weights, pull_back(u)[0]

    def observe(self, state) -> Observables:
        weights = self.model.weights(state["a"])
        margin = inner(state["u"], weights)
        if self.model.objective == "logistic":
            loss = softplus(-margin)
        else:
            loss = 0.5 * (self.norm2 - margin) ** 2 / self.norm2
        observables = {
            "scores": state["a"],
            "weights": weights,
            "loss": loss,
            "projections": state["u"],
            "gamma_integral": state["tau"],
        }
        if attention.get(self.model.map).gives_distributions:
            observables["entropy"] = entropy(weights)
        return observables
