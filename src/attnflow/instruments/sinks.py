"""Attention that all goes to one key."""

from typing import Any

from attnflow._arrays import array_namespace

Array = Any


def key_mass(weights: Array, key: int = 0) -> Array:
    """The share of all attention that goes to one key: its weight summed over queries, divided by
    the whole mass (query axis −2, key axis −1); O(size).

    For normalized rows this is the mean weight on the key. For unnormalized attention it is a
    share of the mass, not a mean of shares. Queries that a causal mask leaves nothing but `key`
    count fully: cut them off first if they should not.

        >>> import numpy as np
        >>> float(key_mass(np.array([[1.0, 0.0], [0.5, 0.5]])))
        0.75
    """
    xp = array_namespace(weights)
    return xp.sum(weights[..., key], axis=-1) / xp.sum(weights, axis=(-2, -1))


def is_sink(weights: Array, key: int = 0, threshold: float = 0.9) -> Array:
    """Whether `key_mass` is above `threshold` (0.9 in the polarization paper)."""
    return key_mass(weights, key) > threshold
