"""How one score becomes one unnormalized weight: elementwise, on any Array API array."""

from collections.abc import Callable
from typing import Any

from attnflow._arrays import array_namespace

Array = Any
Similarity = Callable[[Array], Array]


def exp(x: Array) -> Array:
    return array_namespace(x).exp(x)


def sigmoid(x: Array) -> Array:
    """1 / (1 + e^-x), exact in both tails.

    |x| is spelled with `where`: automatic differentiation of `abs` gives 0 at 0, and the slope
    there would be lost.
    """
    xp = array_namespace(x)
    e = xp.exp(-xp.where(x >= 0, x, -x))
    return xp.where(x >= 0, 1 / (1 + e), e / (1 + e))


def softplus(x: Array) -> Array:
    """log(1 + e^x)."""
    xp = array_namespace(x)
    magnitude = xp.where(x >= 0, x, -x)  # not abs: see sigmoid
    return xp.where(x >= 0, x, xp.zeros_like(x)) + xp.log1p(xp.exp(-magnitude))


def elu_plus_one(x: Array) -> Array:
    """elu(x) + 1: e^x below zero, 1 + x above."""
    xp = array_namespace(x)
    zero = xp.zeros_like(x)
    return xp.where(x > 0, 1 + x, xp.exp(xp.where(x > 0, zero, x)))


def relu(x: Array) -> Array:
    xp = array_namespace(x)
    return xp.where(x > 0, x, xp.zeros_like(x))


def identity(x: Array) -> Array:
    return x


def absolute(x: Array) -> Array:
    return array_namespace(x).abs(x)


def square(x: Array) -> Array:
    return x * x
