"""Leaving the plateau: the curvature of the risk where heads are still alike."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy  # its parts load when they are used

from attnflow._checks import at_least, choice
from attnflow.models.single_location.model import ACTIVATIONS, SingleLocation


class Curvature(NamedTuple):
    """Coefficients of the risk's expansion around m = 0, r = 0 (and the softmax-1 balance
    L v = L + e^b), for m orthogonal to E θ, C the covariance of θ:

    c1 (|Σ_h m_h|² + Σ_hh' (r rᵀ)_hh') + (c2 + c4) |Σ_h m_h|²_C − (c3 + c4) Σ_h |m_h|²_C
    + c5 (Σ_h δb_h)².
    """

    c1: float
    c2: float
    c3: float
    c4: float
    c5: float


def curvature(activation: str, tokens: int, heads: int, bias: float = 0.0) -> Curvature:
    """The closed form. `bias` is the common b of softmax-1, whose gain is then v = 1 + e^b/L."""
    choice("activation", activation, ACTIVATIONS)
    at_least("tokens", tokens, 2)
    at_least("heads", heads, 1)
    L, H = tokens, heads
    Z = L + np.exp(bias) if activation == "softmax_1" else L
    slope = (1 - 1 / Z) ** 2 + (L - 1) / Z**2  # Σ_l (δ_l1 − 1/Z)²
    sharpness = 1 - 2 / (H * L if activation == "bayes_softmax" else Z)
    joint = activation == "bayes_softmax"
    v = Z / L
    return Curvature(
        c1=slope / (H**2 * L),
        c2=slope / (H * L) ** 2,
        c3=(L - 1) / (H * L**2) * sharpness,
        c4=2 * (L - 1) / (L * (H * L) ** 2) if joint else 0.0,
        c5=v**2 * L * np.exp(2 * bias) / (H**2 * Z**4) if activation == "softmax_1" else 0.0,
    )


def plateau(model: SingleLocation) -> dict[str, np.ndarray]:
    """The lowest point with all heads alike and no noise: m_h = m̃, r = 0, common b, and v.

    Quasi-Newton from a short way along E θ. Under softmax-1, b and v are held where the gradient
    puts them at m = 0 from b = 0, v = 1 (they go on growing slowly all through the plateau).
    """
    mean = np.asarray(model.signal.mean())
    own = {}
    if model.law.takes_bias:
        own["b"] = np.zeros(model.heads)
    if model.law.has_sink:
        own["b"], own["v"] = _balance(model)
    if not np.any(np.abs(mean) > 1e-12):
        return {"m": np.zeros((model.heads, mean.size)), "r": np.zeros((model.heads,) * 2)} | own

    def params_of(common):
        m = jnp.broadcast_to(common, (model.heads, mean.size))
        return {"m": m, "r": jnp.zeros((model.heads, model.heads))} | own

    with jax.enable_x64(True):
        value = eqx.filter_jit(
            lambda model, x: jax.value_and_grad(lambda x: model.loss(params_of(x)))(x)
        )

        def objective(x):
            loss, slope = value(model, x)
            return float(loss), np.asarray(slope)

        found = scipy.optimize.minimize(
            objective, 0.1 * mean, jac=True, method="BFGS", options={"gtol": 1e-9}
        )
        return jax.tree.map(np.asarray, params_of(found.x))


def _balance(model: SingleLocation):
    """Where the flow of (b, v) from (0, 1) at m = r = 0 ends: on L v = L + e^b. On the way
    H b'(1 + L e^−b) = −v v', so v²/2 + H (b − L e^−b) stays what it was."""

    def conserved(b, v):
        return v**2 / 2 + model.heads * (b - model.tokens * np.exp(-b))

    def excess(b: float) -> float:
        return conserved(b, 1 + np.exp(b) / model.tokens) - conserved(0.0, 1.0)

    b = scipy.optimize.root_scalar(excess, bracket=(-5.0, 0.0)).root
    return np.full(model.heads, b), np.asarray(1 + np.exp(b) / model.tokens)


class Growth(NamedTuple):
    """Rates at which heads that are almost alike drift apart, fastest first, and the directions in
    feature space (rows) along which they do."""

    rates: np.ndarray
    directions: np.ndarray

    def time(self, dimension: float) -> np.ndarray:
        """ln(√D)/rate: how long a difference of 1/√D takes to grow to one; infinite if it does not
        grow."""
        with np.errstate(divide="ignore"):
            return np.where(self.rates > 0, np.log(dimension) / 2 / np.abs(self.rates), np.inf)


def growth(model: SingleLocation, params) -> Growth:
    """Growth of differences between heads at `params`, where heads must be alike: minus the Hessian
    of the risk in m, on head contrasts."""
    at_least("heads", model.heads, 2, "a single head has nothing to differ from")
    features = model.signal.features
    contrast = np.zeros(model.heads)
    contrast[:2] = np.sqrt(0.5), -np.sqrt(0.5)
    directions = contrast[None, :, None] * np.eye(features)[:, None, :]
    with jax.enable_x64(True):
        here = jax.tree.map(jnp.asarray, params)
        hessian = np.asarray(_hessian(model, here, jnp.asarray(directions)))
    rates, vectors = np.linalg.eigh(-(hessian + hessian.T) / 2)
    return Growth(rates[::-1], vectors.T[::-1])


@eqx.filter_jit
def _hessian(model, params, directions):
    def slope(m):
        return jax.grad(lambda m: model.loss(params | {"m": m}))(m)

    def row(direction):
        along = jax.jvp(slope, (params["m"],), (direction,))[1]
        return jnp.einsum("fhk,hk->f", directions, along)

    return jax.vmap(row)(directions)
