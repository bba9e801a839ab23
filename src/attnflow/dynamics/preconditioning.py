"""Preconditioned steps as Optax transformations.

Both replace the gradient by a direction that a linear solve makes; chain them with a learning rate,
`optax.chain(simplex_natural_gradient(model.scores), optax.scale(-1.0))`. Cost of one step: O(P²)
memory and O(P³) time for P parameters, beside one Jacobian of the model's outputs or scores.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from attnflow._checks import positive

Vector = jax.Array


def gauss_newton(
    outputs: Callable[[Any], jax.Array],
    loss_of_outputs: Callable[[jax.Array], jax.Array],
    damping: float = 1e-12,
) -> optax.GradientTransformation:
    """(FᵀHF + λ s I)⁻¹ g, F the Jacobian of the outputs and H the Hessian of the loss in them.

    λ = `damping` (Levenberg–Marquardt with a fixed λ), relative to s, the mean diagonal of FᵀHF.
    """
    positive("damping", damping)

    def metric(params):
        flat, unravel = ravel_pytree(params)
        jacobian = jax.jacobian(lambda x: outputs(unravel(x)).ravel())(flat)
        curvature = jax.hessian(loss_of_outputs)(outputs(params).ravel())
        return jacobian.T @ curvature @ jacobian

    return _solve_with(metric, damping)


def simplex_natural_gradient(
    scores: Callable[[Any], jax.Array], damping: float = 1e-12
) -> optax.GradientTransformation:
    """(Zᵀ J Z / N + λ s I)⁻¹ g, Z the Jacobian of the attention scores (…, n), J their softmax
    Jacobians: the natural gradient of attention rows as distributions.

    The gradient passes through one J on its way from the weights to the scores; this metric takes
    exactly that factor back, so sparse rows move as fast as spread ones.
    """
    positive("damping", damping)

    def metric(params):
        flat, unravel = ravel_pytree(params)
        weights = jax.nn.softmax(scores(params), axis=-1)
        n = weights.shape[-1]
        rows = weights.reshape(-1, n)
        jacobian = jax.jacobian(lambda x: scores(unravel(x)).reshape(-1, n))(flat)
        centred = jacobian - jnp.einsum("ri,rik->rk", rows, jacobian)[:, None, :]
        return jnp.einsum("ri,rik,ril->kl", rows, centred, centred) / rows.shape[0]

    return _solve_with(metric, damping)


def _solve_with(metric: Callable[[Any], jax.Array], damping: float):
    def update(updates, state, params=None):
        if params is None:
            raise ValueError("preconditioning needs the parameters: pass params to update")
        flat, unravel = ravel_pytree(updates)
        matrix = metric(params)
        scale = jnp.trace(matrix) / flat.size
        damped = matrix + damping * scale * jnp.eye(flat.size, dtype=flat.dtype)
        return unravel(jax.scipy.linalg.solve(damped, flat, assume_a="pos")), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)
