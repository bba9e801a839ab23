"""Random Gram matrices, drawn without the long vectors that have them.

Matrices lie along the first two axes and the many draws along the rest, so that NumPy runs over
draws.
"""

import numpy as np

JITTER = 1e-13  # relative: Gram matrices of dependent vectors are singular up to rounding


def wishart_factor(
    rng: np.random.Generator, draws: tuple[int, ...], size: int, degrees: int
) -> np.ndarray:
    """Lower triangular B, size × size × draws, with BBᵀ the Gram matrix of `size` standard normal
    vectors of `degrees` entries (Bartlett). Fewer entries than vectors leave columns of zeros."""
    factor = np.zeros((size, size, *draws))
    below = np.tril_indices(size, -1)
    factor[below] = rng.standard_normal((below[0].size, *draws))
    rank = min(size, degrees)
    shape = (degrees - np.arange(rank)) / 2
    diagonal = rng.standard_gamma(shape.reshape(-1, *[1] * len(draws)), (rank, *draws))
    factor[np.arange(rank), np.arange(rank)] = np.sqrt(2 * diagonal)
    factor[:, rank:] = 0
    return factor


def cholesky(gram: np.ndarray) -> np.ndarray:
    """Lower triangular factors of positive semidefinite matrices along the first two axes."""
    size = gram.shape[0]
    factor = np.zeros_like(gram)
    least = JITTER * np.einsum("ii...->...", gram) / size + 1e-300
    for j in range(size):
        known = factor[j, :j]
        pivot = gram[j, j] - np.sum(known * known, axis=0)
        factor[j, j] = np.sqrt(np.maximum(pivot, least))
        rest = gram[j + 1 :, j] - np.einsum("ik...,k...->i...", factor[j + 1 :, :j], known)
        factor[j + 1 :, j] = rest / factor[j, j]
    return factor


def haar_corner(
    rng: np.random.Generator, draws: tuple[int, ...], size: int, dimension: int
) -> np.ndarray:
    """The size × size inner products of two independent isotropic frames of `size` orthonormal
    vectors in `dimension` ≥ `size` dimensions: the top of G(GᵀG)^(−1/2) for a normal G."""
    top = rng.standard_normal((size, size, *draws))
    rest = wishart_factor(rng, draws, size, dimension - size)
    gram = np.einsum("ki...,kj...->ij...", top, top) + np.einsum("ik...,jk...->ij...", rest, rest)
    factor = cholesky(gram)
    corner = np.zeros_like(top)  # top · factor⁻ᵀ, column by column
    for j in range(size):
        known = np.einsum("ik...,k...->i...", corner[:, :j], factor[j, :j])
        corner[:, j] = (top[:, j] - known) / factor[j, j]
    return corner


def gram_of_sum(rng: np.random.Generator, grams: np.ndarray, dimension: int) -> np.ndarray:
    """The Gram matrix of a sum of independent, isotropically turned sets of vectors in `dimension`
    dimensions, whose own Gram matrices lie along the last axis: exact in law, by pairwise merging.

    Two sets C₁O₁ and C₂O₂ have S₁ + S₂ + C₁TC₂ᵀ + (C₁TC₂ᵀ)ᵀ, T the corner of a Haar matrix.
    """
    size = grams.shape[0]
    while grams.shape[-1] > 1:
        half = grams.shape[-1] // 2
        pairs, odd = grams[..., : 2 * half], grams[..., 2 * half :]
        factors = cholesky(pairs)
        corner = haar_corner(rng, (*pairs.shape[2:-1], half), size, dimension)
        cross = np.einsum(
            "ik...,kl...,jl...->ij...",
            factors[..., :half],
            corner,
            factors[..., half:],
            optimize=True,
        )
        merged = pairs[..., :half] + pairs[..., half:] + cross + cross.swapaxes(0, 1)
        grams = np.concatenate([merged, odd], axis=-1)
    return grams[..., 0]
