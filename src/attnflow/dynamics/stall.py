"""Why does this run not go on? The point where it stands, looked at with second derivatives."""

import dataclasses
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy.optimize import minimize
from scipy.sparse.linalg import LinearOperator, eigsh

from attnflow._checks import positive
from attnflow.dynamics.records import traced
from attnflow.models.interface import Model

Cause = Literal["converged", "saddle", "local minimum", "step size", "ill-conditioned"]
DENSE = 1500  # parameters up to which the whole Hessian is formed
OPERATOR: Any = LinearOperator  # SciPy's types leave out the arguments used here
LANCZOS: Any = eigsh


@dataclasses.dataclass(frozen=True)
class Stall:
    """A verdict, and the numbers behind it.

    curvature_min, curvature_max: extreme Hessian eigenvalues at the point; polished_min: the least
    one where a second-order method ends from there. floor_here, floor_reference: the losses that it
    reaches from the point and from the known solution (NaN if none is known). kappa:
    curvature_max over the least positive curvature at the polished point. stable_step: 2 over
    curvature_max.
    """

    cause: Cause
    loss: float
    gradient_norm: float
    curvature_min: float
    curvature_max: float
    kappa: float
    polished_min: float
    floor_here: float
    floor_reference: float
    distance_polished: float
    stable_step: float
    words: str


def explain_stall(
    model: Model,
    params: Any,
    *,
    reference: Any = None,
    step: float | None = None,
    tolerance: float = 1e-10,
) -> Stall:
    """Tell ill-conditioning, a saddle, a strict non-global minimum and a bad step size apart.

    reference: a solution to compare with; by default the model's own (a teacher), if it knows one.
    step: the step size of the stalled gradient descent, if that is suspected. tolerance: losses
    within it of the best floor count as solved.

    Cost: a dense Hessian and a trust-region Newton run up to 1,500 parameters; beyond, Hessian
    products only (Lanczos, truncated Newton).
    """
    positive("tolerance", tolerance)
    if step is not None:
        positive("step", step)
    with jax.enable_x64(True):
        view = FlatLoss(traced(model), params)
        known = model.solution() if reference is None else reference
        here = view.flat(params)
        first = view.extremes(here)
        end, floor = view.polish(here)
        curvatures = view.extremes(end)
        reference_floor = np.nan if known is None else view.polish(view.flat(known))[1]
        loss, norm = view.loss(here), float(np.linalg.norm(view.slope(here)))
    low, high = float(first[0]), float(first[-1])
    best = np.nanmin([floor, reference_floor])
    rising = curvatures[curvatures > 1e-9 * max(abs(curvatures[-1]), 1e-300)]
    # a large problem shows only its two ends: a flat one among them leaves κ unknown
    known_all = len(curvatures) == view.size or len(rising) == len(curvatures)
    kappa = rising[-1] / rising[0] if known_all and len(rising) else np.inf
    numbers = {
        "loss": loss,
        "gradient_norm": norm,
        "curvature_min": low,
        "curvature_max": high,
        "kappa": float(kappa),
        "polished_min": float(curvatures[0]),
        "floor_here": floor,
        "floor_reference": float(reference_floor),
        "distance_polished": float(np.linalg.norm(end - here)),
        "stable_step": float(2 / high) if high > 0 else np.inf,
    }
    cause, words = _verdict(numbers, best, tolerance, step)
    return Stall(cause=cause, words=words, **numbers)


def _verdict(n: dict[str, float], best: float, tolerance: float, step) -> tuple[Cause, str]:
    if n["loss"] <= best + tolerance:
        return "converged", f"the loss {n['loss']:.3g} is at its floor {best:.3g}"
    # a saddle: the slope is spent although curvature of comparable size still leads down
    falling = -n["curvature_min"] > 1e-6 * n["curvature_max"]
    still = n["gradient_norm"] ** 2 < 1e-3 * abs(n["curvature_min"]) * (n["loss"] - best)
    if falling and still:
        return "saddle", (
            f"the gradient is {n['gradient_norm']:.3g} but the curvature {n['curvature_min']:.3g} "
            "leads down: noise or a second-order step escapes"
        )
    if n["floor_here"] > best + tolerance:
        return "local minimum", (
            f"a second-order method ends at {n['floor_here']:.6g} from here and at "
            f"{n['floor_reference']:.3g} from the known solution, with least curvature "
            f"{n['polished_min']:.3g} there: no step size and no preconditioner helps, a new start "
            "does"
        )
    if step is not None and step >= n["stable_step"]:
        return "step size", f"the step {step:g} is above the stable {n['stable_step']:.3g}"
    if step is not None and step < 0.02 * n["stable_step"]:
        return "step size", f"the step {step:g} is far below the stable {n['stable_step']:.3g}"
    return "ill-conditioned", (
        f"the way to the floor {best:.3g} is open but κ = {n['kappa']:.3g}: gradient descent needs "
        "about κ steps for each factor e; precondition"
    )


# Compiled once for each structure of model and parameters, not once for each call.
@eqx.filter_jit
def _loss(x, model, like):
    return model.loss(ravel_pytree(like)[1](x))


_slope = eqx.filter_jit(jax.grad(_loss))
_hessian = eqx.filter_jit(jax.hessian(_loss))


@eqx.filter_jit
def _product(x, v, model, like):
    return jax.jvp(lambda y: _slope(y, model, like), (x,), (v,))[1]


class FlatLoss:
    """The loss as a function of a flat vector, with its derivatives as NumPy arrays."""

    def __init__(self, model: Model, params: Any):
        self.model, self.like = model, jax.tree.map(jnp.asarray, params)
        self.size = ravel_pytree(self.like)[0].size

    @staticmethod
    def flat(params) -> np.ndarray:
        return np.asarray(ravel_pytree(jax.tree.map(jnp.asarray, params))[0], float)

    def loss(self, x) -> float:
        return float(_loss(x, self.model, self.like))

    def slope(self, x) -> np.ndarray:
        return np.asarray(_slope(x, self.model, self.like))

    def product(self, x, v) -> np.ndarray:
        return np.asarray(_product(x, v, self.model, self.like))

    def hessian(self, x) -> np.ndarray:
        return np.asarray(_hessian(x, self.model, self.like))

    def extremes(self, x) -> np.ndarray:
        """Eigenvalues of the Hessian, upward: all of them, or the two ends of a large one."""
        if self.size <= DENSE:
            return np.linalg.eigvalsh(self.hessian(x))
        shape = (self.size, self.size)
        operator = OPERATOR(shape, matvec=lambda v: self.product(x, v.ravel()), dtype=float)
        ends = [
            LANCZOS(operator, k=1, which=end, return_eigenvectors=False, tol=1e-6)[0]
            for end in ("SA", "LA")
        ]
        return np.array(ends, float)

    def polish(self, x) -> tuple[np.ndarray, float]:
        """Where a trust-region Newton method ends, and its loss."""
        options: dict[str, Any] = {"gtol": 1e-14, "maxiter": 2000}
        if self.size <= DENSE:
            found = minimize(
                self.loss,
                x,
                jac=self.slope,
                hess=self.hessian,
                method="trust-exact",
                options=options,
            )
        else:
            found = minimize(
                self.loss,
                x,
                jac=self.slope,
                hessp=self.product,
                method="trust-ncg",
                options=options,
            )
        return found.x, float(found.fun)
