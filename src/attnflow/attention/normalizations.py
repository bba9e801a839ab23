"""How the unnormalized weights of one row are scaled.

`axis` is the axis of the keys, `heads` that of the heads, which only `joint` looks at; `sink` is
the weight of a key that nobody reads, which only `sink` looks at.
"""

from collections.abc import Callable
from typing import Any

from attnflow._arrays import array_namespace

Array = Any
Normalization = Callable[..., Array]


def none(weights: Array, axis: int = -1, heads: int = -2, sink: Array | None = None) -> Array:
    del axis, heads, sink
    return weights


def row_sum(weights: Array, axis: int = -1, heads: int = -2, sink: Array | None = None) -> Array:
    """Divide by the sum; 0/0 where every weight is zero."""
    del heads, sink
    xp = array_namespace(weights)
    return weights * (1 / xp.sum(weights, axis=axis, keepdims=True))


def clamped_sum(
    weights: Array, axis: int = -1, heads: int = -2, sink: Array | None = None
) -> Array:
    """Divide by max(|sum|, 1): for weights of either sign, whose sum may vanish."""
    del heads, sink
    xp = array_namespace(weights)
    total = xp.abs(xp.sum(weights, axis=axis, keepdims=True))
    return weights / xp.where(total > 1, total, xp.ones_like(total))


def sink_sum(weights: Array, axis: int = -1, heads: int = -2, sink: Array | None = None) -> Array:
    """Divide by the sink's weight (1 if none is given) and the sum: a row may add up to less than
    one."""
    del heads
    xp = array_namespace(weights)
    total = (1.0 if sink is None else sink) + xp.sum(weights, axis=axis, keepdims=True)
    return weights * (1 / total)


def joint_sum(weights: Array, axis: int = -1, heads: int = -2, sink: Array | None = None) -> Array:
    """Divide by the mean over heads of their sums: heads compete, and their rows add up to one on
    average over heads. A single row is a single head."""
    if weights.ndim < 2:
        return row_sum(weights, axis, heads, sink)
    xp = array_namespace(weights)
    return weights * (weights.shape[heads] / xp.sum(weights, axis=(heads, axis), keepdims=True))
