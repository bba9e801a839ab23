"""How each model is run from the command line."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import optax
import xarray as xr
from typing_extensions import Doc

from attnflow._checks import at_least, below, choice, fits_memory, positive, positive_moderate
from attnflow.dynamics.descent import descend
from attnflow.dynamics.flow import gradient_flow
from attnflow.dynamics.preconditioning import (
    gauss_newton,
    levenberg_marquardt,
    simplex_natural_gradient,
)
from attnflow.dynamics.schedules import alternating, em_like
from attnflow.dynamics.stall import explain_stall
from attnflow.instruments import (
    failure_signs,
    freezing,
    head_groups,
    principal_shape,
    split_times,
    unspecialized_time,
)
from attnflow.models.head import Head, HeadTask
from attnflow.models.prompt import StudentTeacher
from attnflow.models.single_location import (
    HeadsTask,
    bayes_risk,
    bayes_samples,
    growth,
    plateau,
    sgd,
)
from attnflow.models.single_location.sgd import LEVELS
from attnflow.models.two_token import TwoToken
from attnflow.models.value_softmax import ValueSoftmax

Extras = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Output:
    json: Annotated[bool, Doc("print one JSON object with the final observables")] = False
    plot: Annotated[Path | None, Doc("write a picture: PNG, PDF or SVG by its ending")] = None

    def unused(self, model: Any) -> dict[str, str]:
        """Options and fields of the model that have no effect on this run, and when they have."""
        del model
        return {}


@dataclasses.dataclass(frozen=True)
class FlowOptions(Output):
    t1: Annotated[float, Doc("final time")] = 1e4
    points: Annotated[int, Doc("output times, even in log(1 + t)")] = 200
    key: Annotated[int | None, Doc("seed of a random start around the given one")] = None
    rtol: Annotated[float, Doc("relative tolerance of the integrator")] = 1e-10

    def unused(self, model: Any) -> dict[str, str]:
        return {"scale": "with --key"} if self.key is None else {}

    def run(self, model) -> tuple[xr.Dataset, Extras]:
        if isinstance(model, ValueSoftmax) and self.key is None:
            model.require_order()
        flow = gradient_flow(model, self.t1, points=self.points, key=self.key, rtol=self.rtol)
        extras = critical(model) if isinstance(model, TwoToken) and self.key is None else {}
        return flow, extras | {"t1": self.t1}


@dataclasses.dataclass(frozen=True)
class DescentOptions(Output):
    steps: Annotated[int, Doc("steps of the optimizer")] = 10_000
    step: Annotated[float, Doc("step size")] = 0.1
    optimizer: Annotated[str, Doc("sgd, adam, gauss_newton, levenberg_marquardt or natural")] = (
        "sgd"
    )
    explain: Annotated[bool, Doc("tell why the run stands where it stands")] = False

    def unused(self, model: Any) -> dict[str, str]:
        chosen = self.optimizer == "levenberg_marquardt"  # it chooses its own steps
        return {"step": "with another --optimizer"} if chosen else {}

    def run(self, task: StudentTeacher) -> tuple[xr.Dataset, Extras]:
        positive("step", self.step)
        at_least("steps", self.steps, 1)
        choice("optimizer", self.optimizer, OPTIMIZERS)
        if self.optimizer in SECOND_ORDER:
            entries = sum(task.d**2 if block == "W" else task.d for block in task.trained)
            shown = f"{self.optimizer} with {entries} parameters and {task.samples} samples"
            fits_memory(shown, 8 * 4 * entries * (entries + task.samples))
        model = task.model()
        optimizer = OPTIMIZERS[self.optimizer](model, self.step)
        run, params = descend(model, self.steps, optimizer, return_params=True)
        extras: Extras = {"steps": self.steps}
        if self.explain:
            step = self.step if self.optimizer == "sgd" else None
            extras["stall"] = dataclasses.asdict(explain_stall(model, params, step=step))
        return run, extras


@dataclasses.dataclass(frozen=True)
class HeadsOptions(Output):
    t1: Annotated[float, Doc("final time: step size × steps")] = 100.0
    points: Annotated[int, Doc("output times, even in t")] = 100
    level: Annotated[
        str, Doc("theory (order-parameter flow), or SGD: exact, fast, batch_free or direct")
    ] = "theory"
    rate: Annotated[float, Doc("step size of SGD")] = 0.02

    def unused(self, model: HeadsTask) -> dict[str, str]:
        idle = {"rate": "with a --level of SGD"} if self.level == "theory" else {}
        return idle | ({"nu2": "with another --signal"} if model.signal == "spikes" else {})

    def run(self, task: HeadsTask) -> tuple[xr.Dataset, Extras]:
        choice("level", self.level, ("theory", *LEVELS))
        positive("t1", self.t1)
        positive_moderate("rate", self.rate)
        at_least("points", self.points, 2)
        fits_memory(f"points = {self.points}", 4 * 8 * self.points)
        below("t1/rate", self.t1 / self.rate, 2**53, "beyond, floating point cannot count steps")
        model = task.model()
        if self.level == "theory":
            times = np.linspace(0, self.t1, self.points)
            run = gradient_flow(model, times=times, solver="quick", rtol=1e-6, atol=1e-8)
        else:
            steps = max(1, round(self.t1 / self.rate))
            many = sgd(
                model, steps, self.rate, level=self.level, record=self.points, seed=task.seed
            )
            run = many.isel(run=0).swap_dims(step="time").drop_vars(["run", "step"])
        return run, {"t1": self.t1, "heads": summary(model, run)}


def summary(model, run: xr.Dataset) -> Extras:
    """What the heads did, and what could be done."""
    risk, error = bayes_risk(model.signal, model.tokens, bayes_samples(model.samples))
    m, mean = run.m.values, np.asarray(model.signal.mean())
    found: Extras = {
        "bayes_risk": risk,
        "bayes_risk_error": error,
        "mean_learned": unspecialized_time(run.time.values, m, mean),
        "split_times": split_times(run.time.values, m).tolist(),
        "groups": head_groups(m[-1]),
    }
    if model.heads > 1:
        rates = growth(model, plateau(model))
        found["plateau_growth"] = rates.rates.tolist()
        found["predicted_split"] = float(rates.time(float(model.dimension))[0])
    return found


def _preconditioned(direction, step: float):
    return optax.chain(direction, optax.scale(-step))


OPTIMIZERS = {
    "sgd": lambda model, step: optax.sgd(step),
    "adam": lambda model, step: optax.adam(step),
    "gauss_newton": lambda model, step: _preconditioned(
        gauss_newton(model.outputs, model.loss_of_outputs), step
    ),
    "levenberg_marquardt": lambda model, step: levenberg_marquardt(  # it chooses its own steps
        model.outputs, model.loss_of_outputs
    ),
    "natural": lambda model, step: _preconditioned(simplex_natural_gradient(model.scores), step),
}


SECOND_ORDER = ("gauss_newton", "levenberg_marquardt", "natural")


def critical(model: TwoToken) -> Extras:
    points = model.critical_points()
    return {
        "critical_times": points.times.tolist(),
        "critical_norm2": points.norm2.tolist(),
        "phases": [phase._asdict() for phase in points.phases],
        "shape": points.shape,
    }


SCHEDULES = ("uniform", "em", "alternating")


@dataclasses.dataclass(frozen=True)
class RoutingOptions(Output):
    steps: Annotated[int, Doc("steps of descent")] = 1000
    rate: Annotated[float, Doc("step size")] = 0.3
    optimizer: Annotated[str, Doc("sgd or adam")] = "sgd"
    schedule: Annotated[
        str, Doc("uniform, em (values `factor` times faster) or alternating (E and M steps)")
    ] = "uniform"
    factor: Annotated[float, Doc("em: how much faster values move")] = 10.0
    output_too: Annotated[bool, Doc("em: W_O as well as W_V")] = False

    def unused(self, model: HeadTask) -> dict[str, str]:
        idle: dict[str, str] = {}
        if self.schedule != "em":
            idle |= dict.fromkeys(("factor", "output_too"), "with --schedule em")
        if model.task != "chain":
            idle |= dict.fromkeys(("stay", "heads", "normalized", "residual"), "with --task chain")
        if model.task != "diversity":
            idle["diversity"] = "with --task diversity"
        return idle

    def run(self, task: HeadTask) -> tuple[xr.Dataset, Extras]:
        positive("rate", self.rate)
        positive("factor", self.factor)
        at_least("steps", self.steps, 1)
        choice("optimizer", self.optimizer, ("sgd", "adam"))
        choice("schedule", self.schedule, SCHEDULES)
        model = task.model()
        run = descend(model, self.steps, self._optimizer(model))
        return run[[x for x in run.data_vars if run[x].ndim == 1]], {"routing": told(model, run)}

    def _optimizer(self, model) -> optax.GradientTransformation:
        plain = getattr(optax, self.optimizer)(self.rate)
        values = "W_V" if "W_V" in model.start else "values"
        routes = ("W_Q", "W_K") if "W_Q" in model.start else ("scores",)
        if self.schedule == "em":
            return em_like(plain, self.factor, (values, *["W_O"] * self.output_too))
        if self.schedule == "alternating":
            return alternating(plain, (routes, (values, "W_O")))
        return plain


def told(model, run: xr.Dataset) -> Extras:
    """What became of attention and values, with the signatures of failure."""
    steps = run.step.values
    found: Extras = {"values_freeze": freezing(steps, run["values"].values)._asdict()}
    values = run["values"].values
    if isinstance(model, Head):
        attention, values = run["attention"].values, values[:, 0]
        found["signs"] = failure_signs(attention[-1], values[-1], values[0])._asdict()
    else:
        scores = run["scores"].values
        grown = np.exp(scores - scores.max(axis=-1, keepdims=True))
        attention = grown / grown.sum(axis=-1, keepdims=True)
    found["attention_freezes"] = freezing(steps, attention)._asdict()
    shape = principal_shape(values[-1])
    found["value_components"] = shape.components
    found["value_participation"] = shape.participation
    return found
