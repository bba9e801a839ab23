"""How the unnormalized weights of one row are scaled (last axis)."""

from collections.abc import Callable
from typing import Any

from array_api_compat import array_namespace

Array = Any
Normalization = Callable[[Array], Array]


def none(weights: Array) -> Array:
    return weights


def row_sum(weights: Array) -> Array:
    """Divide by the sum; 0/0 where every weight is zero."""
    xp = array_namespace(weights)
    return weights / xp.sum(weights, axis=-1, keepdims=True)


def clamped_sum(weights: Array) -> Array:
    """Divide by max(|sum|, 1): for weights of either sign, whose sum may vanish."""
    xp = array_namespace(weights)
    total = xp.abs(xp.sum(weights, axis=-1, keepdims=True))
    return weights / xp.where(total > 1, total, xp.ones_like(total))
