"""The shape of a cloud of vectors (values of a head): its principal components."""

from typing import NamedTuple

import numpy as np

from attnflow._checks import inside


class Shape(NamedTuple):
    """`shares` of variance of the principal components, downward; `participation` =
    (Σ λ)²/Σ λ²; `components` needed for the asked share; `axes` (component, width) and the
    `coordinates` of the vectors on them."""

    shares: np.ndarray
    participation: float
    components: int
    axes: np.ndarray
    coordinates: np.ndarray


def principal_shape(vectors: np.ndarray, share: float = 0.9) -> Shape:
    """Of vectors (count, width), centred. A cloud without extent has no components."""
    inside("share", share, 0.0, 1.0, "it is a share of the variance")
    centred = np.asarray(vectors, float) - np.mean(vectors, axis=0)
    _, singular, axes = np.linalg.svd(centred, full_matrices=False)
    variances = singular**2
    total = variances.sum()
    if total <= 1e-28 * max(np.sum(np.asarray(vectors, float) ** 2), 1e-300):
        return Shape(np.zeros_like(variances), 0.0, 0, axes, centred @ axes.T)
    shares = variances / total
    needed = int(np.searchsorted(np.cumsum(shares), share * (1 - 1e-12)) + 1)
    return Shape(shares, float(1 / np.sum(shares**2)), needed, axes, centred @ axes.T)


def alignment(coordinate: np.ndarray, quantity: np.ndarray) -> float:
    """|Pearson correlation| of a coordinate with a quantity of the task; 0 if one is constant."""
    a, b = (np.asarray(x, float).ravel() - np.mean(x) for x in (coordinate, quantity))
    size = np.linalg.norm(a) * np.linalg.norm(b)
    return float(abs(a @ b) / size) if size > 0 else 0.0
