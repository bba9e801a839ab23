"""How spread out attention is."""

from typing import Any

from attnflow._arrays import array_namespace

Array = Any


def entropy(weights: Array, *, normalize: bool = False) -> Array:
    """H = −Σ w log w in nats over the last axis, with 0 log 0 = 0; O(size).

    The rows must be distributions: weights that do not sum to one give a number that is not an
    entropy. `normalize=True` divides each row by its sum first (for sigmoid or ReLU attention).
    A row of zeros gives NaN under `normalize`, else 0. Not to be confused with the entropy
    *relative to the number of visible keys*, H / log n.

        >>> import numpy as np
        >>> float(entropy(np.array([0.5, 0.5, 0.0])).round(6))
        0.693147
    """
    xp = array_namespace(weights)
    if normalize:
        weights = weights / xp.sum(weights, axis=-1, keepdims=True)
    safe = xp.where(weights > 0, weights, xp.ones_like(weights))
    return -xp.sum(weights * xp.log(safe), axis=-1)


def effective_support(weights: Array) -> Array:
    """1/Σ w² over the last axis: how many keys share the attention; O(size).

    1 for one-hot rows, n for uniform ones. The exponential of the *Rényi* entropy of order 2, not
    of the Shannon entropy. Unnormalized rows are divided by their sum.

        >>> import numpy as np
        >>> float(effective_support(np.full(4, 0.25)))
        4.0
    """
    xp = array_namespace(weights)
    return xp.sum(weights, axis=-1) ** 2 / xp.sum(weights**2, axis=-1)
