"""Routing: where attention moves, what values answer for."""

import dataclasses
from typing import Annotated, Any

import numpy as np
import optax
from typing_extensions import Doc

from attnflow.dynamics.descents import descents, recorded_steps
from attnflow.dynamics.schedules import alternating, em_like
from attnflow.models.head import HeadTask
from attnflow.web.answers import Answer, Axis, Fact, Plot, call, command, heat, line
from attnflow.web.fields import Choice, Moment, Slider
from attnflow.web.views import View, picked

RECORDS = 31


@dataclasses.dataclass(frozen=True)
class Training:
    steps: Annotated[int, Doc("steps of descent")] = 1000
    rate: Annotated[float, Doc("step size")] = 0.3
    schedule: Annotated[str, Doc("whose final numbers are told, and whose command is copied")] = (
        "uniform"
    )
    factor: Annotated[float, Doc("em: how much faster values move")] = 10.0
    moment: Annotated[int, Doc("which record the maps show")] = RECORDS - 1


def _em(rate, factor):
    return em_like(optax.sgd(rate), factor, ("W_V",))


def _alternating(rate):
    return alternating(optax.sgd(rate), (("W_Q", "W_K"), ("W_V", "W_O")))


def followed(model, steps: np.ndarray, rate: float, factor: float) -> dict[str, dict]:
    """Each schedule's observables; the uniform one is the em-like one at equal speeds, so that both
    are one program."""
    speeds = [{"rate": rate, "factor": each} for each in (1.0, factor)]
    uniform, em = descents(model, _em, speeds, steps)
    (by_turns,) = descents(model, _alternating, [{"rate": rate}], steps)
    return {"uniform": uniform, "em": em, "alternating": by_turns}


SCHEDULES = ("uniform", "em", "alternating")


def compute(values: dict[str, Any]) -> Answer:
    task = HeadTask(task="toy", **picked(HeadTask, values))
    model = task.model()
    steps = recorded_steps(values["steps"], RECORDS)
    runs = followed(model, steps, values["rate"], values["factor"])
    for name, run in runs.items():
        if not np.isfinite(run["loss"]).all():
            lost = steps[np.argmin(np.isfinite(run["loss"]))]
            raise ValueError(f"rate: {name} diverges by step {lost}: take a smaller step size")
    plots = []
    for which in ("compatibility", "advantage"):
        limit = max(np.abs(run[which]).max() for run in runs.values())
        for name, run in runs.items():
            map_ = heat(run[which][:, 0], which, limit=float(limit))
            axes = Axis("key position"), Axis("query position")
            plots.append(Plot(f"{name}: {which}", *axes, [map_], moments=steps.tolist()))
    clock = Axis("step + 1", log=True)
    for key, title in {
        "loss": "Loss (nats)",
        "entropy": "Entropy of attention (nats)",
        "value_norm": "Mean norm of the values",
    }.items():
        traces = [line(steps + 1, run[key], name, i) for i, (name, run) in enumerate(runs.items())]
        plots.append(Plot(title, clock, Axis(title.lower()), traces))
    chosen, schedule = runs[values["schedule"]], values["schedule"]
    keys = ("loss", "entropy", "value_norm", "error_norm")
    facts = [Fact(f"{x.replace('_', ' ')}, {schedule}", float(chosen[x][-1]), x) for x in keys]
    facts += [
        Fact(f"loss, {name}", float(run["loss"][-1]))
        for name, run in runs.items()
        if name != schedule
    ]
    given = picked(HeadTask, values) | {"task": "toy"}
    return Answer(
        plots,
        facts,
        command("head", (HeadTask, given), (Training, values | {"moment": RECORDS - 1})),
        "import attnflow as af, optax\n\n"
        f"model = {call('af.head.HeadTask', HeadTask, given)}.model()\n"
        f"optimizer = {PYTHON[schedule].format(**values)}\n"
        f"run = af.descend(model, {values['steps']}, optimizer)\n"
        "print(run.loss.values[-1], run.advantage.values[-1])",
    )


PYTHON = {
    "uniform": "optax.sgd({rate!r})",
    "em": "af.em_like(optax.sgd({rate!r}), {factor!r}, ('W_V',))",
    "alternating": "af.alternating(optax.sgd({rate!r}), (('W_Q', 'W_K'), ('W_V', 'W_O')))",
}

VIEW = View(
    "routing",
    "Routing",
    "A head under cross-entropy. Compatibility b says how much a value adds to a query's error; "
    "attention flows to keys of positive advantage, and values move against the errors of the "
    "queries that use them. Three schedules from the same start.",
    (HeadTask, Training),
    {
        "length": Slider(2, 10, default=5, label="length T"),
        "classes": Slider(2, 6, default=3),
        "width": Slider(1, 6, default=2),
        "scale": Slider(0.1, 3, step=0.01, default=1.0),
        "seed": Slider(0, 200),
        "steps": Slider(10, 3000, log=True, default=300),
        "rate": Slider(0.01, 1.5, log=True),
        "factor": Slider(1, 100, log=True),
        "schedule": Choice(SCHEDULES),
        "moment": Moment(RECORDS, RECORDS - 1),
    },
    compute,
)
