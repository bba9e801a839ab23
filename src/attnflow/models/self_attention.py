"""One dot-product self-attention layer with tied unembedding.

    L = X M Xᵀ,   A = row-softmax(L),   Y = A X,   Z = Y Wᵀ,   W = [X; extra rows]

Token i must predict itself: cross-entropy of Z_i against class i, summed over tokens.
"""

from typing import ClassVar

import numpy as np

from attnflow import attention
from attnflow._checks import choice, finite, positive
from attnflow.models.interface import Array, Model, Observables, namespace

LOSSES = ("cross_entropy", "attention", "mse")


def log_softmax(x: Array) -> Array:
    """Along the last axis."""
    xp = namespace(x)
    shifted = x - xp.max(x, axis=-1, keepdims=True)
    return shifted - xp.log(xp.sum(xp.exp(shifted), axis=-1, keepdims=True))


def layer_loss(logits, tokens, vocabulary, loss: str) -> Array:
    """The loss as a function of the logit matrix L.

    cross_entropy: −Σ log softmax(Z_i)_i; attention: −Σ log A_ii; mse: ½ Σ |Y_i − x_i|².
    """
    if loss == "attention":
        return -namespace(logits).trace(log_softmax(logits))
    outputs = attention.get("softmax")(logits) @ tokens
    if loss == "mse":
        return 0.5 * namespace(outputs).sum((outputs - tokens) ** 2)
    return -namespace(outputs).trace(log_softmax(outputs @ vocabulary.T))


class SelfAttention(Model):
    """n tokens of width d; the parameter is the interaction matrix M (d × d).

    Observables: `norm2` = |M|_F², `loss`, `logits` L, `attention` A, `conserved` = L G⁻¹ 1 with G
    the tokens' Gram matrix (what gradient flow leaves alone when the tokens are linearly
    independent; for two unit tokens it is the row sum of L up to the factor 1/(1 + p)).

        >>> import numpy as np
        >>> model = SelfAttention(tokens=np.eye(3), start=np.zeros((3, 3)))
        >>> round(float(model.loss(model.init())), 4)
        3.2958
    """

    tokens: np.ndarray
    start: np.ndarray
    extra: np.ndarray | None = None
    objective: str = "cross_entropy"
    scale: float = 1.0

    dims: ClassVar = {
        "logits": ("query", "key"),
        "attention": ("query", "key"),
        "conserved": ("query",),
    }

    def __check_init__(self):
        choice("objective", self.objective, LOSSES)
        finite("tokens", self.tokens)
        finite("start", self.start)
        positive("scale", self.scale)
        n, d = np.shape(self.tokens)[-2:]
        if np.shape(self.start)[-2:] != (d, d):
            raise ValueError(
                f"start must be {d} × {d}, the width of the tokens squared "
                f"(got {np.shape(self.start)})"
            )
        if n < 2:
            raise ValueError(f"attention needs at least two tokens (got {n})")
        if self.extra is not None and np.shape(self.extra)[-1] != d:
            raise ValueError(f"extra vocabulary rows must have the tokens' width {d}")

    def init(self, key=None):
        """The matrix `start`; with a key, plus `scale` × standard normal entries."""
        start = namespace(self.start).asarray(self.start)
        if key is None:
            return start
        import jax

        return start + self.scale * jax.random.normal(key, start.shape, start.dtype)

    def vocabulary(self):
        tokens = self._tokens()
        if self.extra is None:
            return tokens
        return namespace(tokens, self.extra).concatenate([tokens, self.extra])

    def _tokens(self):
        return namespace(self.tokens).asarray(self.tokens)

    def logits(self, params):
        tokens = self._tokens()
        return tokens @ params @ tokens.T

    def loss(self, params):
        tokens = self._tokens()
        return layer_loss(self.logits(params), tokens, self.vocabulary(), self.objective)

    def observe(self, params) -> Observables:
        tokens = self._tokens()
        xp = namespace(tokens, params)
        logits = self.logits(params)
        observables = {
            "norm2": xp.sum(params**2),
            "loss": self.loss(params),
            "logits": logits,
            "attention": attention.get("softmax")(logits),
        }
        n, d = tokens.shape
        if n <= d:
            ones = xp.ones(n, dtype=tokens.dtype)
            observables["conserved"] = logits @ xp.linalg.solve(tokens @ tokens.T, ones)
        return observables
