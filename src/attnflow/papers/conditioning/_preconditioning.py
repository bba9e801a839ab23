"""How many steps a method needs near a teacher, against the gap of the teacher's scores."""

import dataclasses
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
import optax
import xarray as xr
from matplotlib.figure import Figure
from scipy.optimize import brentq

from attnflow.dynamics.arrival import steps_to_solution
from attnflow.dynamics.preconditioning import gauss_newton, simplex_natural_gradient
from attnflow.models.prompt import Prompt
from attnflow.papers.conditioning._separated import (
    Separated,
    factors_at_teacher,
    separated,
    teacher_weights,
)
from attnflow.papers.style import COLORS, STYLE, canvas

METHODS = (
    "gradient descent",
    "Adam, aligned",
    "Adam, rotated",
    "simplex natural gradient",
    "Gauss–Newton",
)


TWO_OF_EIGHT = Separated(important=(2,))


@dataclasses.dataclass(frozen=True)
class Preconditioning:
    """From `distance` off the teacher until its square has fallen by 1e-10, so `target` of the
    distance is left, or for `cap` steps.

    The loss itself would not do: it is small in the slow directions from the start. A target far
    below 1e-6 would meet rounding: at Δ = 12 the labels fix the slow directions of p only to about
    1e-10.
    """

    task: Separated = TWO_OF_EIGHT
    distance: float = 0.01
    target: float = 1e-5
    cap: int = 50_000
    rates: tuple[float, ...] = (1e-2, 1e-3, 1e-4)
    seed: int = 1


def _natural(model: Prompt, learning_rate):
    return optax.chain(simplex_natural_gradient(model.scores), optax.scale(-learning_rate))


def _gauss_newton(model: Prompt, learning_rate):
    method = gauss_newton(model.outputs, model.loss_of_outputs)
    return optax.chain(method, optax.scale(-learning_rate))


class Modes(NamedTuple):
    """x' = x − M⁻¹H x / λ_max: eigenvalues λ of M⁻¹H, downward, and its eigenvectors' columns,
    orthonormal in M."""

    values: np.ndarray
    vectors: np.ndarray
    metric: np.ndarray

    @property
    def kappa(self) -> float:
        return float(self.values[0] / self.values[-1])

    def steps(self, error: np.ndarray, target: float) -> float:
        """When |x| falls to `target` (with a fraction)."""
        parts = self.vectors.T @ self.metric @ error
        shares = self.values / self.values[0]
        rates = np.log1p(-np.minimum(shares, 1 - 1e-16))

        def excess(log_time):
            left = self.vectors @ (parts * np.exp(np.exp(log_time) * rates))
            return np.linalg.norm(left) / target - 1

        root: Any = brentq(excess, -5.0, 40.0)
        return float(np.exp(root))


def modes(factors: np.ndarray, metric: np.ndarray) -> Modes:
    """From singular values of G R⁻ᵀ, M = R Rᵀ, so that small eigenvalues keep their digits."""
    root = np.linalg.cholesky(metric)
    _, singular, right = np.linalg.svd(np.linalg.solve(root, factors.T).T, full_matrices=False)
    return Modes(singular**2, np.linalg.solve(root.T, right.T), metric)


def simplex_metric(model: Prompt) -> np.ndarray:
    """Σ KᵢᵀJ(aᵢ)Kᵢ / N at the teacher."""
    a, keys = teacher_weights(model), np.asarray(model.inputs)
    centred = keys - np.einsum("ij,ijk->ik", a, keys)[:, None, :]
    return np.einsum("ij,ijk,ijl->kl", a, centred, centred) / len(a)


def rotated(model: Prompt, rotation: np.ndarray) -> Prompt:
    """The same task in other coordinates."""
    teacher = model.teacher | {b: model.teacher[b] @ rotation for b in ("p", "v")}
    return dataclasses.replace(
        model, inputs=model.inputs @ rotation, teacher=teacher, start=teacher
    )


def rows_of(config: Preconditioning, delta: float):
    """By method, what it does at this Δ: a count of steps, and the modes if it is linear."""
    task, rng = config.task, np.random.default_rng(config.seed)
    error = rng.normal(size=task.width)
    error *= config.distance / np.linalg.norm(error)
    rotation = np.linalg.qr(rng.normal(size=(task.width, task.width)))[0]
    target = config.target * config.distance
    model = separated(task, task.important[0], delta)
    factors = factors_at_teacher(model)
    plain, natural = (modes(factors, m) for m in (np.eye(task.width), simplex_metric(model)))

    def count(make, rate, where=model, error=error):
        start = {"p": where.teacher["p"] + error}
        tuned = {"learning_rate": rate}
        return steps_to_solution(where, make, target, config.cap, tuned=tuned, start=start)

    def adam(where, error):
        return np.fmin.reduce([count(optax.adam, rate, where, error) for rate in config.rates])

    runs = (
        lambda: count(optax.sgd, 1 / plain.values[0]),
        lambda: adam(model, error),
        lambda: adam(rotated(model, rotation), error @ rotation),
        lambda: count(_natural, 1 / natural.values[0]),
        lambda: count(_gauss_newton, 1.0),
    )
    kappa = (plain.kappa, np.nan, np.nan, natural.kappa, 1.0)  # Gauss–Newton's metric is H itself
    linear = (plain.steps(error, target), np.nan, np.nan, natural.steps(error, target), np.nan)
    return runs, kappa, linear


def preconditioning(config: Preconditioning) -> xr.Dataset:
    """steps: NaN where a method failed; `tried` is false past the first Δ at which it did."""
    deltas = config.task.deltas
    steps = np.full((len(METHODS), len(deltas)), np.nan)
    tried, linear, kappa = np.zeros_like(steps, bool), steps.copy(), steps.copy()
    for j, delta in enumerate(deltas):
        runs, kappa[:, j], linear[:, j] = rows_of(config, delta)
        for i, run in enumerate(runs):
            tried[i, j] = j == 0 or np.isfinite(steps[i, j - 1])
            if tried[i, j]:
                steps[i, j] = run()
    found = {"steps": steps, "tried": tried, "linear": linear, "kappa": kappa}
    return xr.Dataset(
        {name: (("optimizer", "delta"), values) for name, values in found.items()},
        coords={"optimizer": list(METHODS), "delta": list(deltas)},
        attrs={"cap": config.cap},
    )


@mpl.rc_context(STYLE)
def draw_preconditioning(data: xr.Dataset) -> Figure:
    figure, ((left, right),) = canvas(1, 2, width=4.4, height=3.7)
    cap, delta = float(data.attrs["cap"]), data.delta.values
    for color, name in zip(COLORS, data.optimizer.values, strict=False):
        row = data.sel(optimizer=name)
        left.plot(delta, row.steps, "o-", color=color, ms=3.5, label=name)
        failed = delta[row.tried & np.isnan(row.steps)]
        left.plot(failed, np.full(len(failed), cap), "^", color=color, mfc="none", ms=6)
        left.plot(delta, row.linear, ":", color=color, lw=1)
        if np.isfinite(row.kappa).all():
            right.plot(delta, row.kappa, "o-", color=color, ms=3.5)
    for name, rate, text in (
        (METHODS[0], 2, r"$\propto e^{2\Delta}$"),
        (METHODS[3], 1, r"$\propto e^{\Delta}$"),
    ):
        top = data.kappa.sel(optimizer=name).values[-1]
        guide = 2 * top * np.exp(rate * (delta - delta[-1]))
        color = COLORS[METHODS.index(name)]
        right.plot(delta[guide > 1], guide[guide > 1], "--", color=color, lw=0.8, label=text)
    left.plot([], [], ":", color="#666666", lw=1, label="linearized iteration")
    left.plot([], [], "^", color="#666666", mfc="none", ms=6, label=f"not within {cap:,.0f} steps")
    left.set(yscale="log", xlabel="score gap Δ", ylabel="steps to 1e-10 of the squared distance")
    left.set_title("steps near the teacher")
    right.set(yscale="log", xlabel="score gap Δ", ylabel="κ of the preconditioned Hessian")
    right.set_title("condition number at the teacher")
    right.legend(fontsize=8)
    figure.legend(
        *left.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=7
    )
    return figure
