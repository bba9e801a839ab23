"""Margins, subspaces and leakage of one head, in loops."""

import numpy as np


def least_margin(weights, values, important):
    """weights (example, key), values (example, key, d)."""
    least = np.inf
    for a, u, chosen in zip(weights, values, important, strict=True):
        mean = sum(share * value for share, value in zip(a, u, strict=True))
        for value, counts in zip(u, chosen, strict=True):
            if counts:
                least = min(least, np.sqrt(np.sum((value - mean) ** 2)))
    return least


def principal(rows, share=0.9):
    """A basis of the complement of the leading eigenvectors of the covariance, and what these
    explain."""
    values, vectors = np.linalg.eigh(np.cov(rows.T))
    values, vectors = values[::-1], vectors[:, ::-1]
    explained = np.cumsum(values) / values.sum()
    kept = 1 + int(np.sum(explained < share))
    return vectors[:, kept:], explained[kept - 1], kept


def greatest_leakage(keys, important, complement, rng, tries=20_000):
    """The greatest ratio of an example, over many random directions."""
    directions = complement @ rng.normal(size=(complement.shape[1], tries))
    worst = 0.0
    for k, chosen in zip(keys, important, strict=True):
        signal = np.linalg.norm(k[chosen] @ directions, axis=0)
        rest = np.linalg.norm(k[~chosen] @ directions, axis=0)
        worst = max(worst, np.max(signal / rest))
    return worst
