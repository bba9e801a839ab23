"""Two tokens, the definition in NumPy and one SciPy solve of the matrix flow."""

import numpy as np
from scipy.integrate import solve_ivp


def tokens(p, d=2):
    x = np.zeros((2, d))
    x[0, 0] = 1.0
    x[1, :2] = p, np.sqrt(1 - p * p)
    return x


def start(p, c0, c1, d=2):
    """Least-norm M with X M Xᵀ = [[0, c0], [c1, 0]]."""
    inverse = np.linalg.pinv(tokens(p, d))
    return inverse @ np.array([[0.0, c0], [c1, 0.0]]) @ inverse.T


def loss(matrix, p):
    x = tokens(p, len(matrix))
    logits = x @ matrix @ x.T
    weights = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    outputs = weights @ x @ x.T
    return sum(-outputs[i, i] + np.log(np.exp(outputs[i]).sum()) for i in range(2))


def slope(matrix, p, h=1e-6):
    """The gradient by central differences."""
    grad = np.zeros_like(matrix)
    for index in np.ndindex(matrix.shape):
        bump = np.zeros_like(matrix)
        bump[index] = h
        grad[index] = (loss(matrix + bump, p) - loss(matrix - bump, p)) / (2 * h)
    return grad


def reduced_flow(p, c0, c1, t1, **options):
    """(a, b) by SciPy, right-hand side as a notebook would write it."""

    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    def velocity(_, ab):
        a, b = ab
        xi0 = c0 + 2 * (1 - p) * (a + p * b)
        xi1 = c1 - 2 * (1 - p) * (p * a + b)
        s0, s1 = sigmoid(xi0), sigmoid(xi1)
        return [
            -2 * (1 - p) * sigmoid((1 - p) * (2 * s0 - 1)) * s0 * (1 - s0),
            2 * (1 - p) * sigmoid((1 - p) * (2 * s1 - 1)) * s1 * (1 - s1),
        ]

    return solve_ivp(velocity, (0, t1), [0.0, 0.0], rtol=1e-10, atol=1e-12, **options)
