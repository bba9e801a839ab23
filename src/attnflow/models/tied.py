"""The tied model ℓ(U σ(U a)): the same matrix makes the values and the scores."""

from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from jax.nn import softplus
from jax.scipy.special import entr
from typing_extensions import Doc

from attnflow._checks import at_least, finite, fits_memory, positive_moderate
from attnflow.models.interface import Model, Observables


class TiedValueSoftmax(Model):
    """U (D × D) starts at the identity, a at 1 + `scale` × standard normal (with a key; else the
    given `query`), logistic loss log(1 + e^-⟨β*, β⟩) with the unit target β* = 1/√D unless given.

    Observables: `weights` = softmax(U a), `column_norms` of U, `query` = a, `loss`, `entropy`.

        >>> model = TiedValueSoftmax(dimension=4)
        >>> [round(float(w), 4) for w in model.observe(model.init())["weights"]]
        [0.25, 0.25, 0.25, 0.25]
    """

    dimension: Annotated[int, Doc("D: tokens, and width of the embedding")] = 10
    scale: Annotated[float, Doc("standard deviation of the entries added to a(0) by a key")] = 0.1
    query: Annotated[np.ndarray | None, tyro.conf.Suppress] = None
    target: Annotated[np.ndarray | None, tyro.conf.Suppress] = None

    dims: ClassVar = {"weights": ("token",), "column_norms": ("token",), "query": ("token",)}

    def __check_init__(self):
        at_least("dimension", self.dimension, 2, "attention needs at least two tokens")
        # the solver has 14 stages, each with a matrix and its gradient
        fits_memory(f"dimension = {self.dimension}", 30 * 8 * self.dimension**2)
        positive_moderate("scale", self.scale)
        for name in ("query", "target"):
            value = getattr(self, name)
            if value is not None:
                finite(name, value)
                if np.shape(value)[-1] != self.dimension:
                    raise ValueError(f"{name} must have {self.dimension} entries")

    def beta(self):
        if self.target is None:
            return jnp.ones(self.dimension) / jnp.sqrt(self.dimension)
        return jnp.asarray(self.target)

    def init(self, key=None):
        query = jnp.ones(self.dimension) if self.query is None else jnp.asarray(self.query)
        if key is not None:
            query = query + self.scale * jax.random.normal(key, query.shape, query.dtype)
        return {"embedding": jnp.eye(self.dimension), "query": query}

    def weights(self, params):
        return jax.nn.softmax(params["embedding"] @ params["query"])

    def loss(self, params):
        return softplus(-(self.beta() @ params["embedding"] @ self.weights(params)))

    def observe(self, params) -> Observables:
        weights = self.weights(params)
        return {
            "weights": weights,
            "column_norms": jnp.linalg.norm(params["embedding"], axis=0),
            "query": params["query"],
            "loss": self.loss(params),
            "entropy": jnp.sum(entr(weights)),
        }
