"""The heads of the single-location model: their order parameters, or SGD."""

import dataclasses
from typing import Annotated

import numpy as np
import xarray as xr
from typing_extensions import Doc

from attnflow._checks import at_least, below, choice, fits_memory, positive, positive_moderate
from attnflow.cli.options import Extras, Output
from attnflow.dynamics.flow import gradient_flow
from attnflow.dynamics.sgd import LEVELS, sgd
from attnflow.instruments import head_groups, split_times, unspecialized_time
from attnflow.models.single_location import (
    HeadsTask,
    bayes_risk,
    bayes_samples,
    growth,
    plateau,
)


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
