"""Plain NumPy gradient descent on the value–softmax model, gradients written out by hand."""

import numpy as np


def softmax(a):
    e = np.exp(a - a.max())
    return e / e.sum()


def logistic_descent(values, target, scores, step, steps):
    """log(1 + e^-⟨β*, V softmax(a)⟩), explicit loops; returns V and a after `steps` steps."""
    V, a = values.copy(), scores.copy()
    for _ in range(steps):
        s = softmax(a)
        gamma = 1 / (1 + np.exp(target @ (V @ s)))
        jacobian = np.diag(s) - np.outer(s, s)
        grad_V = -gamma * np.outer(target, s)
        grad_a = -gamma * jacobian @ (V.T @ target)
        V = V - step * grad_V
        a = a - step * grad_a
    return V, a
