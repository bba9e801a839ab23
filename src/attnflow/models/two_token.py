"""Two unit tokens with inner product p: the smallest model in which the norm first contracts.

With g = x1 − x0 the flow moves only along x0 gᵀ and x1 gᵀ,

    M(t) = M(0) + a x0 gᵀ + b x1 gᵀ,   ȧ = −∂ℒ/∂ξ0,   ḃ = +∂ℒ/∂ξ1,
    ξ0 = c0 + |g|²(a + p b),   ξ1 = c1 − |g|²(p a + b),   |g|² = 2(1 − p),

so two numbers carry the whole flow, and d|M|²/dt = −2(ξ0 ∂ℒ/∂ξ0 + ξ1 ∂ℒ/∂ξ1).
"""

from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from typing_extensions import Doc

from attnflow._checks import at_least, choice, fits_memory, inside, moderate, positive_moderate
from attnflow.attention.similarities import sigmoid, softplus
from attnflow.models.interface import Model, Observables, Reduction, namespace
from attnflow.models.self_attention import LOSSES, layer_loss

if TYPE_CHECKING:
    from attnflow.dynamics.critical_points import CriticalPoints


class TwoToken(Model):
    """Self-attention on two tokens, started from logit gaps c0 and c1 in the wrong direction.

    M(0) is the matrix of least norm with L(0) = [[0, c0], [c1, 0]]; with a key, plus `scale` times
    standard normal entries. Positive c0 and c1 are the sharp-wrong start of the theorems; zero and
    negative ones are allowed here. From a gap c the escape takes place within a relative time of
    e^-c: above about 33 `gradient_flow` cannot resolve it in double precision and raises (for p > 0
    what counts is the height (c_max + p c_min)/(1 − p) to which the larger gap may climb first).
    `critical_points` follows the path on its own clock and has no such limit up to gaps of 600.

    Observables: `norm2` = |M|_F², `loss`, `xi` (wrong-direction logit gaps), `sigma` (attention on
    the wrong token), `a`, `b`; and, conserved, `row_sums` of L and `frozen_norm2` (the squared norm
    of what the flow cannot move).

        >>> model = TwoToken(p=0.0, c0=6.0, c1=6.0)
        >>> float(model.observe(model.init())["norm2"])
        72.0
    """

    p: Annotated[float, Doc("inner product of the two unit tokens, in (-1, 1)")] = 0.0
    c0: Annotated[float, Doc("initial logit gap of token 0 toward the wrong token")] = 6.0
    c1: Annotated[float, Doc("initial logit gap of token 1 toward the wrong token")] = 6.0
    d: Annotated[int, Doc("width of the tokens")] = 2
    objective: Annotated[
        str, Doc("cross_entropy, attention (minus log of the right attention weight) or mse")
    ] = "cross_entropy"
    scale: Annotated[
        float, Doc("standard deviation of the entries added to M(0) when a key is given")
    ] = 1.0

    dims: ClassVar = {"xi": ("token",), "sigma": ("token",), "row_sums": ("token",)}

    def __check_init__(self):
        parallel = "tokens with |p| = 1 are parallel and have no attention to learn"
        inside("p", self.p, -1, 1, parallel)
        moderate("c0", self.c0)
        moderate("c1", self.c1)
        at_least("d", self.d, 2, "two independent tokens need two dimensions")
        fits_memory(f"d = {self.d}", 3 * 8 * self.d**2)  # M, and what is made of it on the way
        choice("objective", self.objective, LOSSES)
        positive_moderate("scale", self.scale)

    def require_sharp_wrong(self) -> None:
        """Both gaps positive: the hypothesis of the theorems on contraction."""
        for name in ("c0", "c1"):
            if not np.all(np.asarray(getattr(self, name)) > 0):
                raise ValueError(
                    f"{name} must be positive: contraction is proved only for starts that attend "
                    f"wrongly on both tokens (got {getattr(self, name)})"
                )

    def tokens(self):
        xp = namespace(self.p)
        p = xp.asarray(self.p, dtype=float)
        first, second = np.eye(2, self.d)
        return xp.stack([xp.asarray(first), p * first + xp.sqrt((1 - p) * (1 + p)) * second])

    def init(self, key=None):
        x = self.tokens()
        xp = namespace(x, self.c0, self.c1)
        inverse = xp.linalg.solve(x @ x.T, x).T  # X⁺: X⁺ L X⁺ᵀ is the least-norm M with X M Xᵀ = L
        wrong = self.c0 * np.eye(2)[:1].T * np.eye(2)[1] + self.c1 * np.eye(2)[1:].T * np.eye(2)[0]
        start = inverse @ wrong @ inverse.T
        if key is None:
            return start
        import jax

        return start + self.scale * jax.random.normal(key, start.shape, start.dtype)

    def loss(self, params):
        x = self.tokens()
        return layer_loss(x @ params @ x.T, x, x, self.objective)

    def active(self, params):
        """Coordinates of the part of M that the flow moves, on x0 gᵀ and x1 gᵀ."""
        x = self.tokens()
        g = x[1] - x[0]
        return namespace(x, params).linalg.solve(x @ x.T, x @ params @ g) / (g @ g)

    def observe(self, params) -> Observables:
        x = self.tokens()
        xp = namespace(x, params)
        logits = x @ params @ x.T
        a, b = self.active(params - self.init())
        frozen = params - xp.outer(self.active(params) @ x, x[1] - x[0])
        xi = xp.stack([logits[0, 1] - logits[0, 0], logits[1, 0] - logits[1, 1]])
        return {
            "norm2": xp.sum(params**2),
            "loss": self.loss(params),
            "xi": xi,
            "sigma": sigmoid(xi),
            "a": a,
            "b": b,
            "row_sums": xp.sum(logits, axis=1),
            "frozen_norm2": xp.sum(frozen**2),
        }

    def reduced(self, key, start=None) -> "TwoTokenReduction":
        seen = self.observe(self.init(key) if start is None else start)
        if (
            key is None and start is None
        ):  # the numbers as given, not as M(0) rounds them: equal gaps stay equal
            xp = namespace(self.c0, self.c1)
            gaps = xp.stack([xp.asarray(self.c0, dtype=float), xp.asarray(self.c1, dtype=float)])
            zero = xp.zeros_like(gaps[0])
            seen |= {"xi": gaps, "sigma": sigmoid(gaps), "a": zero, "b": zero}
        return TwoTokenReduction(self, seen)

    def critical_points(self, **options) -> "CriticalPoints":
        """Every critical time of |M|² along the flow, and the phases between them."""
        from attnflow.dynamics.critical_points import two_token_critical_points

        return two_token_critical_points(self, **options)


APART = np.array([1.0, -1.0])


def smaller(x):
    """The smaller of the last axis's two, which stays."""
    return namespace(x).minimum(x[..., :1], x[..., 1:])


class TwoTokenReduction(Reduction):
    """The flow of `TwoToken` in (S, D) = (a + b, b − a): exact for any start, and in each tail of
    the sigmoid.

    Why not (a, b): equal gaps are an unstable balance. There S' = ∂ℒ/∂ξ1 − ∂ℒ/∂ξ0 is exactly zero,
    while a and b of their own would drift apart by rounding, and exponentially so.
    """

    model: TwoToken
    start: Observables

    host_slopes: ClassVar = ("norm2",)

    @property
    def on_host(self) -> bool:
        return True

    def init(self):
        return 0 * self.start["xi"]

    def gaps(self, state):
        q, total, spread = 1 - self.model.p, state[..., 0], state[..., 1]
        common, apart = q * q * spread, q * (2 - q) * total
        first, second = self.start["xi"][..., 0], self.start["xi"][..., 1]
        # Each by itself: as one array, compiled code may round equal gaps differently.
        return namespace(state).stack([first - common + apart, second - common - apart], axis=-1)

    def loss(self, xi):
        xp = namespace(xi)
        p = xp.asarray(self.model.p)[..., None]
        if self.model.objective == "attention":
            return xp.sum(softplus(xi), axis=-1)
        if self.model.objective == "mse":
            return xp.sum((1 - p) * sigmoid(xi) ** 2, axis=-1)
        return xp.sum(softplus((1 - p) * xp.tanh(xi / 2)), axis=-1)

    def scaled_slopes(self, xi):
        """(k, e^k ∂ℒ/∂ξ): the factor e^-k is taken out, because a gap of 1,000 has a slope of
        e^-1000; for e = e^-|ξ| the sigmoids are σ(1 − σ) = e/(1 + e)², |2σ − 1| = (1 − e)/(1 + e).
        """
        xp = namespace(xi)
        p = xp.asarray(self.model.p)[..., None]
        wrong = xi >= 0
        size = xp.where(wrong, xi, -xi)
        e = xp.exp(-size)
        whole = 1 + e
        if self.model.objective == "attention":
            k = smaller(xp.where(wrong, 0.0, size))
            return k[..., 0], xp.where(wrong, xp.exp(k), xp.exp(k - size)) / whole
        k = smaller(size)
        inner = 2 * (1 - p) * xp.exp(k - size) / whole**2
        if self.model.objective == "mse":
            return k[..., 0], inner * xp.where(wrong, 1.0, e) / whole
        tilt = (1 - e) / whole * xp.where(wrong, 1 - p, p - 1)
        return k[..., 0], inner / (1 + xp.exp(-tilt))

    def log_rate(self, state):
        return self.rates(state)[0]

    def direction(self, state):
        return self.rates(state)[1]

    def rates(self, state):
        k, slopes = self.scaled_slopes(self.gaps(state))
        return -k, slopes[..., 1:] - slopes[..., :1] * APART

    def host_slope(self, name, state):
        xi = self.gaps(state)
        return -2 * np.sum(xi * self.scaled_slopes(xi)[1], axis=-1)

    def observe(self, state) -> Observables:
        p, c, total, spread = self.model.p, self.start["xi"], state[..., 0], state[..., 1]
        xi = self.gaps(state)
        a, b = (total - spread) / 2, (total + spread) / 2
        quadratic = (1 - p) * ((1 + p) * total**2 + (1 - p) * spread**2)
        return self.start | {
            "norm2": self.start["norm2"] + 2 * (c[..., 0] * a - c[..., 1] * b) + quadratic,
            "loss": self.loss(xi),
            "xi": xi,
            "sigma": sigmoid(xi),
            "a": self.start["a"] + a,
            "b": self.start["b"] + b,
        }
