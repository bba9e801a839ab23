"""The spectrum of the softmax Jacobian J = diag(a) − aaᵀ on the tangent space of the simplex.

With the weights sorted upward, the n − 1 tangent eigenvalues interlace them,

    a₁ ≤ λ₁ ≤ a₂ ≤ … ≤ λₙ₋₁ ≤ aₙ,

and those strictly between two weights are roots of Σ aᵢ/(aᵢ − λ) = 0. Only the two extreme roots
are computed, each scaled by its own end of the row, so weights of 1e-300 keep all their digits.
"""

from typing import Any, NamedTuple

from array_api_compat import array_namespace, is_numpy_array

Array = Any
ITERATIONS = 5  # four reach the last digit on every case tried, one for safety
BLOCK = 1024  # rows that stay in the cache


class Conditioning(NamedTuple):
    """Per row, as natural logarithms, because their ratios overflow.

    log_min, log_max: the extreme tangent eigenvalues of J. log_kappa: of J; J² has twice that.
    log_lower, log_upper: what interlacing alone says of log κ(J), a₍ₙ₋₁₎/a₍₂₎ and a₍ₙ₎/a₍₁₎.
    log_printed: (max a/min a)², the conditioning paper's estimate for κ(J²): an upper bound.
    """

    log_min: Array
    log_max: Array
    log_kappa: Array
    log_lower: Array
    log_upper: Array
    log_printed: Array


def softmax_conditioning(scores: Array) -> Conditioning:
    """Extreme tangent eigenvalues and condition number of J at softmax(scores), exactly.

    Last axis: n ≥ 2 keys, as scores or log-weights (any shift); O(n) memory and time a row.
    For n = 2 the tangent space has one dimension and κ = 1. Not to be confused with the ratio
    max a/min a: one large weight with equal tails ε has κ(J) = n(1 − (n − 1)ε), whatever ε.

        >>> import numpy as np
        >>> float(np.exp(softmax_conditioning(np.log([0.998, 0.001, 0.001])).log_kappa).round(6))
        2.994
    """
    xp = array_namespace(scores)
    n = scores.shape[-1]
    if n < 2:
        raise ValueError(f"a row needs at least two weights to have a tangent space (got {n})")
    if is_numpy_array(scores) and scores.size > BLOCK * n:
        rows = scores.reshape(-1, n)
        parts = [_rows(xp, rows[k : k + BLOCK]) for k in range(0, rows.shape[0], BLOCK)]
        joined = (xp.concat(part).reshape(scores.shape[:-1]) for part in zip(*parts, strict=True))
        return Conditioning(*joined)
    return _rows(xp, scores)


def conditioning_of_weights(weights: Array) -> Conditioning:
    """`softmax_conditioning` for weights given as numbers; checks that they are weights."""
    xp = array_namespace(weights)
    if bool(xp.any(weights <= 0)):
        raise ValueError("weights must be positive: give scores for weights that underflow")
    total = xp.sum(weights, axis=-1)
    if bool(xp.any(xp.abs(total - 1) > 1e-6)):
        raise ValueError("weights must sum to one in every row: divide them by their sum first")
    return softmax_conditioning(xp.log(weights))


def _rows(xp: Any, scores: Array) -> Conditioning:
    ordered = xp.sort(scores, axis=-1)
    top = ordered[..., -1]
    log_norm = top + xp.log(xp.sum(xp.exp(ordered - top[..., None]), axis=-1))
    log_weights = ordered - log_norm[..., None]
    log_min = log_weights[..., 0] + xp.log1p(_smallest(xp, ordered))
    log_max = log_weights[..., -2] + xp.log1p(_largest(xp, ordered))
    if scores.shape[-1] == 2:
        log_min = log_max
    span = ordered[..., -1] - ordered[..., 0]
    inner = ordered[..., -2] - ordered[..., 1]
    zero = xp.zeros_like(inner)
    return Conditioning(
        log_min,
        log_max,
        log_max - log_min,
        xp.where(inner > 0, inner, zero),
        span,
        2 * span,
    )


def _smallest(xp: Any, ordered: Array) -> Array:
    """x with λ₁ = a₁(1 + x): the root of 1/x = Σ_{i>1} 1/(1 − (1 + x) rᵢ), rᵢ = a₁/aᵢ.

    Each step keeps the poles at 0 and at a₂ exactly, fits the rest by a constant, and solves the
    quadratic that is left.
    """
    relative = xp.exp(ordered[..., 1:2] - ordered[..., 1:])  # rᵢ/r₂ = a₂/aᵢ
    gap = -xp.expm1(ordered[..., 0] - ordered[..., 1])  # 1 − r₂
    tied = gap < 1e-15  # the root lies between the two, so it is both
    r2 = xp.where(tied, xp.full_like(gap, 0.5), xp.exp(ordered[..., 0] - ordered[..., 1]))
    gap = xp.where(tied, xp.full_like(gap, 0.5), gap)
    r = r2[..., None] * relative
    exact = -xp.expm1(ordered[..., :1] - ordered[..., 1:])  # 1 − r, exact for near ties
    short = xp.where(tied[..., None], 1 - r, exact)
    pole = r2 / gap  # 1/d₂ with d₂ = 1/r₂ − 1
    x = gap / (1 + r2 + (r.shape[-1] - 1) * gap)
    for _ in range(ITERATIONS):
        inverse = 1 / (short - x[..., None] * r)
        total = xp.sum(inverse, axis=-1)
        slope = xp.sum(relative * inverse * inverse, axis=-1) * (gap - x * r2)  # S'(x) (d₂ − x)
        constant = total - slope
        # −(A/d₂) x² + (A + D (1 − x/d₂) + 1/d₂) x − 1 = 0
        a, b = constant * pole, constant + slope * (1 - x * pole) + pole
        square = b * b - 4 * a
        x = 2 / (b + xp.sqrt(xp.where(square > 0, square, xp.zeros_like(square))))
    return xp.where(tied, xp.zeros_like(x), x)


def _largest(xp: Any, ordered: Array) -> Array:
    """x with λₙ₋₁ = aₙ₋₁(1 + x): the root of Σ_{i<n} qᵢ/(x + 1 − qᵢ) = 1/(1 − ρ − ρx), with
    qᵢ = aᵢ/aₙ₋₁ and ρ = aₙ₋₁/aₙ; solved like the smallest."""
    q = xp.exp(ordered[..., :-1] - ordered[..., -2:-1])
    short = -xp.expm1(ordered[..., :-1] - ordered[..., -2:-1])  # 1 − q, exact for near ties
    log_ratio = ordered[..., -2] - ordered[..., -1]
    ratio, room = xp.exp(log_ratio), -xp.expm1(log_ratio)
    x = room * xp.sum(q, axis=-1)
    tiny = 1e-300
    for _ in range(ITERATIONS):
        x = xp.where(x > tiny, x, xp.full_like(x, tiny))
        share = 1 / (x[..., None] + short)
        rest = xp.sum(q * short * share * share, axis=-1)  # T + x T'
        pole = xp.sum(q * (x[..., None] * share) ** 2, axis=-1)  # −x² T'
        a, b, c = rest * ratio, rest * room - pole * ratio - 1, pole * room
        root = xp.sqrt(b * b + 4 * a * c)
        divisor = xp.where(b > 0, xp.where(a > tiny, 2 * a, xp.ones_like(a)), root - b)
        x = xp.where(b > 0, b + root, 2 * c) / divisor
    return x
