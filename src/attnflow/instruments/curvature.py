"""The local operator of prompt attention: what gradient descent sees near a solution.

With rows gᵢ = Kᵢᵀ J(aᵢ) uᵢ and loss curvatures ℓ''ᵢ the operator is H = Σ ℓ''ᵢ gᵢ gᵢᵀ (d × d).
"""

from typing import Any

import numpy as np
import scipy  # its parts load when they are used

from attnflow._arrays import array_namespace

Array = Any
DENSE = 2000


def local_factors(keys: Array, weights: Array, values: Array, curvature: Array) -> Array:
    """The matrix G (N × d) with rows √ℓ''ᵢ Kᵢᵀ J(aᵢ) uᵢ, so that H = GᵀG.

    keys (N, n, d), weights and values (N, n), curvature (N). J u = a ⊙ (u − aᵀu); O(N n d).
    """
    xp = array_namespace(keys)
    centred = values - xp.sum(weights * values, axis=-1, keepdims=True)
    pulled = (weights * centred)[..., None, :] @ keys
    return xp.sqrt(curvature)[..., None] * pulled[..., 0, :]


def operator_spectrum(factors: np.ndarray) -> np.ndarray:
    """All d eigenvalues of H = GᵀG, ascending, from the singular values of G; zeros if N < d."""
    samples, width = factors.shape
    singular = np.linalg.svd(factors, compute_uv=False)
    zeros = np.zeros(max(width - samples, 0))
    return np.concatenate([zeros, np.sort(singular**2)])[-width:]


def operator_extremes(factors: np.ndarray) -> tuple[float, float]:
    """Least and greatest eigenvalue of H; beyond 2,000 columns by Lanczos on products with G."""
    samples, width = factors.shape
    if width <= DENSE:
        spectrum = operator_spectrum(factors)
        return float(spectrum[0]), float(spectrum[-1])

    def product(x):
        return factors.T @ (factors @ x)

    operator = scipy.sparse.linalg.LinearOperator((width, width), matvec=product, dtype=float)
    greatest = scipy.sparse.linalg.eigsh(operator, k=1, which="LA", return_eigenvectors=False)[0]
    if samples < width:
        return 0.0, float(greatest)
    # the least eigenvalue is the greatest of the complement cI − H
    flipped = scipy.sparse.linalg.LinearOperator(
        (width, width), matvec=lambda x: greatest * x - product(x), dtype=float
    )
    gap = scipy.sparse.linalg.eigsh(flipped, k=1, which="LA", return_eigenvectors=False)[0]
    return float(greatest - gap), float(greatest)


def predicted_error(factors: np.ndarray, error: np.ndarray, step: float, steps: Array) -> Array:
    """|e_t| of the linearized descent e_t = (I − step · H)^t e_0 at each of `steps`."""
    _, singular, right = np.linalg.svd(factors, full_matrices=True)
    values = np.zeros(factors.shape[1])
    values[: singular.size] = singular**2
    shares = right @ error
    times = np.asarray(steps)[:, None]
    return np.linalg.norm((1 - step * values) ** times * shares, axis=1)
