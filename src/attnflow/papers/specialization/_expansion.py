"""The risk in plain arrays, on points of any kind, and its exact Taylor coefficients.

Scores may be complex: derivatives are taken by complex steps, and Taylor coefficients on a circle.
"""

from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from attnflow.models.single_location import Discrete

ACTIVATIONS = ("softmax", "softmax_1", "bayes_softmax")


class Points(NamedTuple):
    """Where an average is taken: θ (point, feature), standard normal numbers (point, token,
    feature and head), and the weight of each point."""

    theta: np.ndarray
    noise: np.ndarray
    weight: np.ndarray


def attend(activation: str, scores, b: Any = 0.0, v: Any = 1.0):
    """σ of scores (point, head, token); b one number or one a head."""
    b = np.reshape(np.broadcast_to(b, scores.shape[1:2]), (-1, 1))
    raised = np.exp(scores)
    if activation == "softmax":
        return raised / raised.sum(axis=2, keepdims=True)
    if activation == "softmax_1":
        return v * raised / (np.exp(b) + raised.sum(axis=2, keepdims=True))
    joint = raised * np.exp(b)
    return scores.shape[1] * joint / joint.sum(axis=(1, 2), keepdims=True)


def coordinates(points: Points):
    """χ* and ξ side by side: the noise, and θ on the relevant token, the first."""
    shifted = points.noise.copy()
    shifted[:, 0, : points.theta.shape[1]] += points.theta
    return shifted


def scores_of(points: Points, m, r):
    rows = np.concatenate([m, r], axis=1)
    return rows @ coordinates(points).swapaxes(1, 2)


def misses(activation: str, points: Points, m, r, b: Any = 0.0, v: Any = 1.0):
    """w = (1/H) Σ_h σ_h − δ_ε, (point, token)."""
    output = attend(activation, scores_of(points, m, r), b, v).mean(axis=1)
    output[:, 0] -= 1
    return output


def risk(activation: str, points: Points, m, r, b: Any = 0.0, v: Any = 1.0):
    return points.weight @ np.sum(misses(activation, points, m, r, b, v) ** 2, axis=1)


def softmax_slopes(points: Points, m, r):
    """∇_m and ∇_r of the softmax risk, in closed form."""
    a = attend("softmax", scores_of(points, m, r))
    w = a.mean(axis=1)
    w[:, 0] -= 1
    pull = a * (w[:, None] - np.sum(a * w[:, None], axis=2, keepdims=True))
    both = np.einsum("p,phl,plc->hc", 2 * points.weight / len(m), pull, coordinates(points))
    return both[:, : m.shape[1]], both[:, m.shape[1] :]


def slope(function: Callable, x):
    """The gradient of a real function of an array, by complex steps."""
    steps = 1e-30j * np.eye(x.size).reshape(x.size, *x.shape)
    return np.array([function(x + step).imag for step in steps]).reshape(x.shape) * 1e30


def taylor(function: Callable, order: int = 5, radius: float = 0.1, nodes: int = 32) -> np.ndarray:
    """Coefficients 0 … `order` of an analytic function of one number, from a circle around 0."""
    circle = radius * np.exp(2j * np.pi * np.arange(nodes) / nodes)
    values = np.array([function(s) for s in circle])
    return np.fft.fft(values).real[: order + 1] / nodes / radius ** np.arange(order + 1)


def spread_over(signal: Discrete, normals, weight) -> Points:
    """Every point of the support of θ with every set of normal numbers (set, token, column)."""
    support, chances = np.asarray(signal.points()), np.asarray(signal.probabilities)
    count = len(support)
    return Points(
        np.repeat(support, len(normals), axis=0),
        np.tile(normals, (count, 1, 1)),
        np.repeat(chances, len(normals)) * np.tile(weight, count),
    )


def fifth_degree(signal: Discrete, tokens: int, heads: int) -> Points:
    """Points on which averages of polynomials of degree five in the normal numbers are exact, so
    the first five Taylor coefficients of the risk are: 2d² + 1 for d numbers."""
    columns = signal.features + heads
    d = tokens * columns
    axes = np.sqrt(3) * np.eye(d)
    first, second = np.triu_indices(d, 1)
    pairs = [s * axes[first] + t * axes[second] for s, t in product((1, -1), repeat=2)]
    normals = np.concatenate([np.zeros((1, d)), axes, -axes, *pairs])
    weight = np.full(len(normals), 1 / 36)
    weight[0], weight[1 : 2 * d + 1] = 1 + d * (d - 7) / 18, (4 - d) / 18
    return spread_over(signal, normals.reshape(-1, tokens, columns), weight)


def hermite(tokens: int, columns: int, nodes: int):
    """Gauss–Hermite points in every normal number, `nodes`^(tokens · columns) of them, and their
    weights."""
    x, weight = np.polynomial.hermite_e.hermegauss(nodes)
    count = tokens * columns
    normals = np.stack(np.meshgrid(*[x] * count, indexing="ij"), axis=-1)
    weights = np.stack(np.meshgrid(*[weight / weight.sum()] * count, indexing="ij"), axis=-1)
    return normals.reshape(-1, tokens, columns), weights.reshape(-1, count).prod(axis=1)


def mirrored(signal: Discrete, tokens: int, heads: int, count: int, seed: int) -> Points:
    """`count` sets of random normal numbers with all sign images of each feature's column and of
    all heads' columns together, each with every point of the support."""
    features = signal.features
    normals = np.random.default_rng(seed).standard_normal((count, tokens, features + heads))
    signs = np.array(list(product((1.0, -1.0), repeat=features + 1)))
    signs = np.concatenate([signs, np.repeat(signs[:, -1:], heads - 1, axis=1)], axis=1)
    images = np.concatenate([normals * sign for sign in signs])
    return spread_over(signal, images, np.full(len(images), 1 / len(images)))


def independent(signal: Discrete, tokens: int, heads: int, count: int, rng) -> Points:
    """A plain random sample of sequences."""
    which = rng.choice(len(signal.probabilities), count, p=np.asarray(signal.probabilities))
    normals = rng.standard_normal((count, tokens, signal.features + heads))
    return Points(np.asarray(signal.points())[which], normals, np.full(count, 1 / count))
