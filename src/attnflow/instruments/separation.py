"""How clearly attention separates the tokens that matter from the rest, and what keys leak.

Convention: samples on the leading axes, then keys n (and width d). `important` is a boolean mask
over keys with at least one key and at least one other in every sample.
"""

from typing import Any, NamedTuple

from attnflow._arrays import array_namespace

Array = Any


def log10_ratio(scores: Array) -> Array:
    """log10 of the largest over the smallest softmax weight, from scores; O(n).

    From scores, because the weights themselves underflow beyond 308 decades.
    """
    xp = array_namespace(scores)
    return (xp.max(scores, axis=-1) - xp.min(scores, axis=-1)) / 2.302585092994046


def important_keys(weights: Array, share: float = 0.5) -> Array:
    """Keys with at least `share` of their row's largest weight; O(n).

    >>> import numpy as np
    >>> important_keys(np.array([0.5, 0.3, 0.2])).tolist()
    [True, True, False]
    """
    if not 0 < share <= 1:
        raise ValueError(f"share must lie in (0, 1]: measured by the largest weight (got {share})")
    xp = array_namespace(weights)
    return weights >= share * xp.max(weights, axis=-1, keepdims=True)


class Separation(NamedTuple):
    """Per sample: `delta`, the least important score above the greatest other one; `gamma`, the
    spread of the important scores; `size`, how many are important."""

    delta: Array
    gamma: Array
    size: Array


def separation(scores: Array, important: Array) -> Separation:
    """Score gaps between important and other keys; O(n) a row. delta may be negative."""
    xp = array_namespace(scores)
    _both_kinds(xp, important)
    infinity = xp.full_like(scores, float("inf"))
    least = xp.min(xp.where(important, scores, infinity), axis=-1)
    greatest = xp.max(xp.where(important, scores, -infinity), axis=-1)
    rest = xp.max(xp.where(important, -infinity, scores), axis=-1)
    size = xp.sum(xp.astype(important, scores.dtype), axis=-1)
    return Separation(least - rest, greatest - least, size)


def extreme_weights(weights: Array, important: Array) -> tuple[Array, Array]:
    """(a_I, a_U): the least important and the greatest other weight of the whole batch."""
    xp = array_namespace(weights)
    _both_kinds(xp, important)
    infinity = xp.full_like(weights, float("inf"))
    return (
        xp.min(xp.where(important, weights, infinity)),
        xp.max(xp.where(important, -infinity, weights)),
    )


def weight_bounds(found: Separation, n: int) -> tuple[Array, Array]:
    """What separation alone guarantees: a_I ≥ 1/(1 + (s_max − 1)e^Γ + (n − s_min)e^−Δ) and
    a_U ≤ 1/(1 + s_min e^Δ), with the batch's least Δ and greatest Γ."""
    xp = array_namespace(found.delta)
    delta, gamma = xp.min(found.delta), xp.max(found.gamma)
    fewest, most = xp.min(found.size), xp.max(found.size)
    lower = 1 / (1 + (most - 1) * xp.exp(gamma) + (n - fewest) * xp.exp(-delta))
    return lower, 1 / (1 + fewest * xp.exp(delta))


def value_margins(weights: Array, values: Array, important: Array) -> Array:
    """δ: the least distance of an important key's value from the attended mean Σ a u, a sample."""
    xp = array_namespace(weights)
    _both_kinds(xp, important)
    mean = xp.sum(weights * values, axis=-1, keepdims=True)
    infinity = xp.full_like(values, float("inf"))
    return xp.min(xp.where(important, xp.abs(values - mean), infinity), axis=-1)


def signal_subspace(keys: Array, important: Array, share: float = 0.9) -> tuple[Array, Array]:
    """Orthonormal bases (d × k, d × (d − k)) of the span of the leading principal components of all
    important keys that explain `share` of their variance, and of its complement.

    keys (…, n, d), important (…, n). One singular value decomposition of an m × d matrix, m the
    number of important keys.
    """
    if not 0 < share <= 1:
        raise ValueError(f"share must lie in (0, 1] (got {share})")
    xp = array_namespace(keys)
    d = keys.shape[-1]
    chosen = xp.reshape(keys, (-1, d))[xp.reshape(important, (-1,))]
    if chosen.shape[0] == 0:
        raise ValueError("important: no key is important, so there is no signal subspace")
    centred = chosen - xp.mean(chosen, axis=0)
    _, singular, right = xp.linalg.svd(centred, full_matrices=True)
    power = xp.cumulative_sum(singular**2)
    total = float(power[-1])
    kept = 1 + int(xp.sum(xp.astype(power < share * total * (1 - 1e-12), xp.int64)))
    return right[:kept, :].T, right[kept:, :].T


def leakage(keys: Array, important: Array, complement: Array) -> Array:
    """ρ: per sample, the greatest ‖K_S x‖/‖K_T x‖ over x in the span of `complement` (d × k), S the
    important keys and T the others.

    Exactly, as the largest generalized eigenvalue of K_SᵀK_S against K_TᵀK_T; infinite where some
    direction reaches an important key and none of the others. Sampling random directions only
    bounds it from below. Cost O(n k² + k³) a sample.
    """
    xp = array_namespace(keys)
    _both_kinds(xp, important)
    if complement.shape[-1] == 0:
        raise ValueError("complement is empty: the signal subspace is everything")
    mask = xp.astype(important, keys.dtype)[..., None]
    seen = keys @ complement
    gram = xp.linalg.matrix_transpose
    signal = gram(seen) @ (mask * seen)
    rest = gram(seen) @ ((1 - mask) * seen)
    values, vectors = xp.linalg.eigh(rest)
    floor = 1e-12 * xp.max(values, axis=-1, keepdims=True)
    blind = values <= floor
    scale = xp.where(blind, xp.zeros_like(values), 1 / xp.sqrt(xp.where(blind, 1 + floor, values)))
    whitened = vectors * scale[..., None, :]
    ratio = xp.linalg.eigvalsh(gram(whitened) @ signal @ whitened)[..., -1]
    unseen = vectors * xp.astype(blind, vectors.dtype)[..., None, :]
    escaped = xp.linalg.eigvalsh(gram(unseen) @ signal @ unseen)[..., -1]
    reach = xp.linalg.eigvalsh(signal)[..., -1]
    free = escaped > 1e-10 * xp.where(reach > 0, reach, xp.ones_like(reach))
    positive = xp.where(ratio > 0, ratio, xp.zeros_like(ratio))
    return xp.where(free, xp.full_like(ratio, float("inf")), xp.sqrt(positive))


def leakage_sampled(keys: Array, important: Array, complement: Array, directions: Array) -> Array:
    """The greatest ratio over given directions (m × k) of the complement: a lower estimate of
    `leakage`, as the conditioning paper computes it with m = 200."""
    xp = array_namespace(keys)
    _both_kinds(xp, important)
    images = keys @ (complement @ directions.T)
    mask = xp.astype(important, keys.dtype)[..., None]
    signal = xp.sum(mask * images**2, axis=-2)
    rest = xp.sum((1 - mask) * images**2, axis=-2)
    return xp.max(xp.sqrt(signal / rest), axis=-1)


def _both_kinds(xp: Any, important: Array) -> None:
    if not bool(xp.all(xp.any(important, axis=-1))):
        raise ValueError("important: a sample has no important key")
    if bool(xp.any(xp.all(important, axis=-1))):
        raise ValueError("important: a sample has no unimportant key")
