"""Eigenvalues of the softmax Jacobian by dense linear algebra in many digits."""

import mpmath
import numpy as np


def tangent_extremes(scores, digits=700):
    """(log λ_min, log λ_max) on the tangent space, from mpmath's symmetric eigensolver."""
    with mpmath.workdps(digits):
        raw = [mpmath.exp(mpmath.mpf(float(x))) for x in scores]
        total = sum(raw)
        a = [x / total for x in raw]
        n = len(a)
        matrix = mpmath.matrix(n, n)
        for i in range(n):
            for j in range(n):
                matrix[i, j] = (a[i] if i == j else 0) - a[i] * a[j]
        values = sorted(mpmath.eigsy(matrix, eigvals_only=True))
        return float(mpmath.log(values[1])), float(mpmath.log(values[-1]))


def jacobians(scores):
    """diag(a) − aaᵀ for a batch of rows."""
    a = np.exp(scores - scores.max(axis=-1, keepdims=True))
    a /= a.sum(axis=-1, keepdims=True)
    return a[..., :, None] * np.eye(a.shape[-1]) - a[..., :, None] * a[..., None, :]


def batched_eigvalsh(scores):
    """(λ_min, λ_max) for a batch of rows, the way a notebook would."""
    values = np.linalg.eigvalsh(jacobians(scores))
    return values[..., 1], values[..., -1]
