"""The spectrum of the softmax Jacobian J = diag(a) − aaᵀ on the tangent space of the simplex.

With the weights sorted upward, the n − 1 tangent eigenvalues interlace them,

    a₁ ≤ λ₁ ≤ a₂ ≤ … ≤ λₙ₋₁ ≤ aₙ,

and those strictly between two weights are roots of Σ aᵢ/(aᵢ − λ) = 0. Only the two extreme roots
are computed, each scaled by its own end of the row, so weights of 1e-300 keep all their digits.
One minus a ratio of weights may be rounded: that is a change of the weights by one unit of
rounding, and an eigenvalue moves no more than they do.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import is_numpy_array

from attnflow._arrays import array_namespace

Array = Any
ITERATIONS = 3  # leaves at most 2e-12 of an eigenvalue on every case tried; four, nothing
BLOCK = 2048  # rows a thread takes at once


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
    n = scores.shape[-1]
    if n < 2:
        raise ValueError(f"a row needs at least two weights to have a tangent space (got {n})")
    if not is_numpy_array(scores):
        return _rows(array_namespace(scores), scores)
    rows = scores.reshape(-1, n)
    if len(rows) <= BLOCK:
        return _rows(np, scores)
    blocks = [rows[k : k + BLOCK] for k in range(0, len(rows), BLOCK)]
    np.empty(2**21)  # freed at once, 16 MB: glibc then keeps the pages of smaller arrays
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        parts = list(pool.map(lambda block: _rows(np, block), blocks))
    joined = (np.concat(part).reshape(scores.shape[:-1]) for part in zip(*parts, strict=True))
    return Conditioning(*joined)


def conditioning_of_weights(weights: Array) -> Conditioning:
    """`softmax_conditioning` for weights given as numbers; checks that they are weights."""
    xp = array_namespace(weights)
    if not bool(xp.all(weights > 0)):  # so that NaN is refused too
        raise ValueError("weights must be positive: give scores for weights that underflow")
    total = xp.sum(weights, axis=-1)
    if bool(xp.any(xp.abs(total - 1) > 1e-6)):
        raise ValueError("weights must sum to one in every row: divide them by their sum first")
    return softmax_conditioning(xp.log(weights))


def _rows(xp: Any, scores: Array) -> Conditioning:
    ordered = xp.sort(scores, axis=-1)
    smallest, (largest, others) = _smallest(xp, ordered), _largest(xp, ordered)
    log_norm = ordered[..., -1] + xp.log1p(others)
    log_max = ordered[..., -2] - log_norm + xp.log1p(largest)
    log_min = ordered[..., 0] - log_norm + xp.log1p(smallest)
    if scores.shape[-1] == 2:
        log_min = log_max
    span = ordered[..., -1] - ordered[..., 0]
    inner = ordered[..., -2] - ordered[..., 1]
    lower = xp.where(inner > 0, inner, xp.zeros_like(inner))
    return Conditioning(log_min, log_max, log_max - log_min, lower, span, 2 * span)


def _neighbours(xp: Any, gap: Array, least: float) -> tuple[Array, Array]:
    """Ratio of two neighbouring weights and one minus it, from their score difference `gap` ≤ 0.

    Ties are parted by `least` units of rounding: the root between them moves no further than that.
    """
    parted = -least * xp.finfo(gap.dtype).eps
    gap = xp.where(gap < parted, gap, xp.full_like(gap, parted))
    return xp.exp(gap), -xp.expm1(gap)


def _smallest(xp: Any, ordered: Array) -> Array:
    """x with λ₁ = a₁(1 + x): the root of 1/x = Σ_{i>1} 1/(1 − (1 + x) rᵢ), rᵢ = a₁/aᵢ.

    Each step keeps the poles at 0 and at a₂ exactly, fits the rest by a constant, and solves the
    quadratic that is left.
    """
    relative = xp.exp(ordered[..., 1:2] - ordered[..., 1:])  # rᵢ/r₂ = a₂/aᵢ
    r2, gap = _neighbours(xp, ordered[..., 0] - ordered[..., 1], 16)  # gap = 1 − r₂
    pole = r2 / gap  # 1/d₂ with d₂ = 1/r₂ − 1
    x = gap / (1 + r2 + (relative.shape[-1] - 1) * gap)  # above the root: every term is ≥ 1
    for _ in range(ITERATIONS):
        inverse = 1 / (1 - ((1 + x) * r2)[..., None] * relative)
        total = xp.sum(inverse, axis=-1)
        inverse *= inverse
        slope = xp.vecdot(relative, inverse) * (gap - x * r2)  # S'(x) (d₂ − x)
        constant = total - slope
        # −(A/d₂) x² + (A + D (1 − x/d₂) + 1/d₂) x − 1 = 0
        a, b = constant * pole, constant + slope * (1 - x * pole) + pole
        square = b * b - 4 * a
        x = 2 / (b + xp.sqrt(xp.where(square > 0, square, xp.zeros_like(square))))
    return x


def _largest(xp: Any, ordered: Array) -> tuple[Array, Array]:
    """x with λₙ₋₁ = aₙ₋₁(1 + x): the root of Σ_{i<n} qᵢ/(x + 1 − qᵢ) = 1/(1 − ρ − ρx), with
    qᵢ = aᵢ/aₙ₋₁ and ρ = aₙ₋₁/aₙ; solved like the smallest. Also (1 − aₙ)/aₙ = ρ Σ qᵢ."""
    q = xp.exp(ordered[..., :-1] - ordered[..., -2:-1])
    ratio, room = _neighbours(xp, ordered[..., -2] - ordered[..., -1], 1)
    total = xp.sum(q, axis=-1)
    x = bound = room * total / (1 + ratio * total)  # above the root: x + 1 − q ≥ x
    short = 1 - q
    weighted = q * short
    for _ in range(ITERATIONS):
        share = 1 / (x[..., None] + short)
        share *= share
        rest = xp.vecdot(weighted, share)  # T + x T'
        pole = x * x * xp.vecdot(q, share)  # −x² T'
        # ρA x² + (1 + ρB − (1 − ρ)A) x − (1 − ρ)B = 0
        a, b, c = ratio * rest, 1 + ratio * pole - room * rest, room * pole
        divisor, least = b + xp.sqrt(b * b + 4 * a * c), 2 * c / bound
        x = 2 * c / xp.where(divisor > least, divisor, least)
    return x, xp.exp(ordered[..., -2] - ordered[..., -1]) * total
