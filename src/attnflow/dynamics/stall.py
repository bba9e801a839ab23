"""Why does this run not go on? The point where it stands, looked at with second derivatives."""

import dataclasses
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy  # its parts load when they are used
from jax.flatten_util import ravel_pytree

from attnflow._checks import positive
from attnflow.dynamics.batching import traced
from attnflow.models.interface import Model

Cause = Literal["converged", "saddle", "local minimum", "step size", "ill-conditioned"]
DENSE = 1500  # parameters up to which the whole Hessian is formed
KRYLOV = 60  # Hessian products a step beyond that


@dataclasses.dataclass(frozen=True)
class Stall:
    """A verdict, and the numbers behind it.

    curvature_min, curvature_max: extreme Hessian eigenvalues at the point. floor_here,
    floor_reference: the losses to which gradient flow leads from the point and from the known
    solution (NaN if none is known). polished_min: the least curvature where the flow from the
    point ends, at `distance_polished` from it; kappa: the greatest curvature there over the least
    positive one. stable_step: 2 over curvature_max.
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

    The floors are those of the basins in which the points lie: gradient flow is followed to
    where it settles, in implicit steps too short to leave the basin. Where the loss falls only as
    parameters grow without bound, the flow is followed for a time of 1e12 over the greatest
    curvature, and `distance_polished` tells how far that went.

    Cost: up to 1,500 parameters one dense Hessian and its eigenvectors for each of some 10 to 500
    steps; beyond, Hessian products only (Lanczos, Krylov).
    """
    positive("tolerance", tolerance)
    if step is not None:
        positive("step", step)
    with jax.enable_x64(True):
        view = FlatLoss(traced(model), params)
        known = model.solution() if reference is None else reference
        here = view.flat(params)
        first = view.extremes(here)
        enough = 1e-6 * tolerance
        end, floor = view.polish(here, enough)
        curvatures = view.extremes(end)
        reference_floor = np.nan if known is None else view.polish(view.flat(known), enough)[1]
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
        flat = n["polished_min"] <= 1e-9 * n["curvature_max"]
        place = (
            "levels off, ever flatter, at loss" if flat else "settles in a strict minimum of loss"
        )
        return "local minimum", (
            f"gradient flow from here {place} {n['floor_here']:.6g}, at distance "
            f"{n['distance_polished']:.3g}; the known solution has {n['floor_reference']:.3g} but "
            "lies in another basin: descent from here does not lead there, a new start may"
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

    def operator(self, x) -> Any:
        shape = (self.size, self.size)
        return scipy.sparse.linalg.LinearOperator(
            shape, matvec=lambda v: self.product(x, v.ravel()), dtype=float
        )

    def extremes(self, x) -> np.ndarray:
        """Eigenvalues of the Hessian, upward: all of them, or the two ends of a large one."""
        if self.size <= DENSE:
            return np.linalg.eigvalsh(self.hessian(x))
        ends = [
            scipy.sparse.linalg.eigsh(
                self.operator(x), k=1, which=end, return_eigenvectors=False, tol=1e-6
            )[0]
            for end in ("SA", "LA")
        ]
        return np.array(ends, float)

    def modes(self, x, slope) -> tuple[np.ndarray, np.ndarray]:
        """Eigenvalues and eigenvectors of the Hessian; of a large one, on the Krylov space of the
        slope, in which the flow begins."""
        if self.size <= DENSE:
            return np.linalg.eigh(self.hessian(x))
        length = np.linalg.norm(slope)
        basis = [slope / length] if length > 0 else [np.full(self.size, self.size**-0.5)]
        images = []
        for _ in range(KRYLOV):
            images.append(self.product(x, basis[-1]))
            rest = images[-1]
            for _ in range(2):  # once is not enough for orthogonality
                rest = rest - np.stack(basis, axis=1) @ (np.stack(basis) @ rest)
            if np.linalg.norm(rest) <= 1e-12 * np.linalg.norm(images[-1]):
                break
            basis.append(rest / np.linalg.norm(rest))
        space = np.stack(basis[: len(images)], axis=1)
        small = space.T @ np.stack(images, axis=1)
        values, vectors = np.linalg.eigh((small + small.T) / 2)
        return values, space @ vectors

    def polish(self, x, enough: float) -> tuple[np.ndarray, float]:
        """Where gradient flow from x leads, and the loss there.

        A step is the exact flow of the local quadratic model for a time h, so it tends to Newton's
        step as h grows. It counts only if it moves the parameters by at most a tenth of their
        size and the loss by what the model says to within a quarter; otherwise h shrinks. So the
        path stays in the basin of x, which Newton's method may leave. A start exactly on a saddle
        is first moved off it, by 1e-8 of its size.

        Ends when the model promises less than `enough` (or than 1e-12 of the loss) for all the
        time left, of 1e12 over the greatest curvature in total; this is how long a flow to
        infinity is followed.
        """
        size = float(np.linalg.norm(x)) or 1.0
        x = self.off_saddle(x, 1e-8 * size)
        loss, slope = self.loss(x), self.slope(x)
        values, vectors = self.modes(x, slope)
        h = 1 / max(np.abs(values).max(), 1e-300)
        left, failures = 1e12 * h, 0
        while left > 0 and failures < 40:
            along = vectors.T @ slope
            if _gain(values, along, _flow_step(values, along, left)) <= max(enough, 1e-12 * loss):
                break
            step = _flow_step(values, along, min(h, left))
            gain = _gain(values, along, step)
            short = np.linalg.norm(step) <= 0.1 * max(size, float(np.linalg.norm(x)))
            there = x + vectors @ step if short else x
            loss_there = self.loss(there)
            if short and abs(loss - loss_there - gain) <= 0.25 * gain + 1e-14 * loss:
                x, loss, slope = there, loss_there, self.slope(there)
                values, vectors = self.modes(x, slope)
                left, h, failures = left - h, 3 * h, 0
            else:
                h, failures = h / 4, failures + 1
        return x, loss

    def off_saddle(self, x, distance: float) -> np.ndarray:
        """x, moved along the most negative curvature if the slope does not lead that way."""
        if self.size <= DENSE:
            values, vectors = np.linalg.eigh(self.hessian(x))
        else:
            values, vectors = scipy.sparse.linalg.eigsh(self.operator(x), k=1, which="SA", tol=1e-6)
        low, direction = values[0], vectors[:, 0]
        if low >= 0 or abs(direction @ self.slope(x)) > abs(low) * distance:
            return x
        return x + distance * direction


def _flow_step(values, slope, time: float) -> np.ndarray:
    """Displacement x(t) − x(0) of ẋ = −(slope + values x), entry by entry."""
    growth = np.expm1(np.minimum(-values * time, 50.0))  # beyond, the step is refused anyway
    flat = np.abs(values) * time < 1e-12
    return slope * np.where(flat, -time, growth / np.where(flat, 1.0, values))


def _gain(values, slope, step) -> float:
    return float(-(slope @ step + 0.5 * values @ step**2))
