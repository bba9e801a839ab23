"""One cross-entropy head, trained in discrete steps."""

import dataclasses
from typing import Annotated

import numpy as np
import optax
import xarray as xr
from typing_extensions import Doc

from attnflow._checks import at_least, choice, positive
from attnflow.cli.options import Extras, Output
from attnflow.dynamics.descent import descend
from attnflow.dynamics.schedules import alternating, em_like
from attnflow.instruments import failure_signs, freezing, principal_shape
from attnflow.models.head import Head, HeadTask

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
