"""Preconditioned steps as Optax transformations.

`gauss_newton` and `simplex_natural_gradient` replace the gradient by a direction that a linear
solve makes; chain them with a learning rate, `optax.chain(simplex_natural_gradient(model.scores),
optax.scale(-1.0))`. `levenberg_marquardt` is a whole optimizer, without a learning rate. Cost of
one step: O(P²) memory and O(P³) time for P parameters, beside one Jacobian of the model's outputs
or scores.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from attnflow._checks import positive


def gauss_newton(
    outputs: Callable[[Any], jax.Array],
    loss_of_outputs: Callable[[jax.Array], jax.Array],
    damping: float = 1e-12,
) -> optax.GradientTransformation:
    """(FᵀHF + λ s I)⁻¹ g, F the Jacobian of the outputs and H the Hessian of the loss in them.

    λ = `damping`, fixed, relative to s, the mean diagonal of FᵀHF. Near a solution it converges
    at a speed that does not depend on its conditioning; from further away it can leap out of the
    basin, the sooner the worse the conditioning: then take `levenberg_marquardt`.
    """
    positive("damping", damping)

    def update(updates, state, params=None):
        return _solve(_curvature(outputs, loss_of_outputs, params), damping, updates), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


class Damping(NamedTuple):
    """The state of `levenberg_marquardt`: its present λ."""

    damping: jax.Array


def levenberg_marquardt(
    outputs: Callable[[Any], jax.Array],
    loss_of_outputs: Callable[[jax.Array], jax.Array],
    damping: float = 1e-12,
) -> optax.GradientTransformation:
    """The step of `gauss_newton` with a λ that adapts, from `damping` on: a step that lowers the
    loss is taken and λ falls tenfold (not below 1e-15), any other is left out and λ grows tenfold.

    The loss never rises, and a step left out counts as a step. The updates are the steps to add to
    the parameters: no learning rate, no sign.
    """
    positive("damping", damping)

    def init(params):
        return Damping(jnp.asarray(damping, ravel_pytree(params)[0].dtype))

    def update(updates, state, params=None):
        matrix = _curvature(outputs, loss_of_outputs, params)
        direction = _solve(matrix, state.damping, updates)
        there = jax.tree.map(lambda x, d: x - d, params, direction)
        before, after = (loss_of_outputs(outputs(x).ravel()) for x in (params, there))
        step = jax.tree.map(lambda d: jnp.where(after < before, -d, 0.0), direction)
        calmer = jnp.maximum(0.1 * state.damping, 1e-15)
        return step, Damping(jnp.where(after < before, calmer, 10 * state.damping))

    return optax.GradientTransformation(init, update)


def simplex_natural_gradient(
    scores: Callable[[Any], jax.Array], damping: float = 1e-12
) -> optax.GradientTransformation:
    """(Zᵀ J Z / N + λ s I)⁻¹ g, Z the Jacobian of the attention scores (…, n), J their softmax
    Jacobians: the natural gradient of attention rows as distributions.

    The gradient passes through one J on its way from the weights to the scores; this metric takes
    exactly that factor back, so sparse rows move as fast as spread ones. Parameters that no score
    depends on keep their gradient.
    """
    positive("damping", damping)

    def metric(params):
        flat, unravel = _flattened(params)
        weights = jax.nn.softmax(scores(params), axis=-1)
        n = weights.shape[-1]
        rows = weights.reshape(-1, n)
        jacobian = jax.jacobian(lambda x: scores(unravel(x)).reshape(-1, n))(flat)
        centred = jacobian - jnp.einsum("ri,rik->rk", rows, jacobian)[:, None, :]
        return jnp.einsum("ri,rik,ril->kl", rows, centred, centred) / rows.shape[0]

    def update(updates, state, params=None):
        matrix = metric(params)
        unseen = jnp.diagonal(matrix) == 0
        return _solve(matrix + jnp.diag(unseen.astype(matrix.dtype)), damping, updates), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def _flattened(params):
    if params is None:
        raise ValueError("preconditioning needs the parameters: pass params to update")
    return ravel_pytree(params)


def _curvature(outputs, loss_of_outputs, params) -> jax.Array:
    """FᵀHF."""
    flat, unravel = _flattened(params)
    jacobian = jax.jacobian(lambda x: outputs(unravel(x)).ravel())(flat)
    hessian = jax.hessian(loss_of_outputs)(outputs(params).ravel())
    return jacobian.T @ hessian @ jacobian


def _solve(matrix, damping, updates):
    """(matrix + λ s I)⁻¹ updates, s the mean diagonal of the matrix."""
    flat, unravel = ravel_pytree(updates)
    scale = jnp.trace(matrix) / flat.size
    damped = matrix + damping * scale * jnp.eye(flat.size, dtype=flat.dtype)
    return unravel(jax.scipy.linalg.solve(damped, flat, assume_a="pos"))
