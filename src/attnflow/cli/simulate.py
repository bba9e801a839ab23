"""attnflow simulate MODEL: one run of one model, as a table or as JSON.

Most models are followed along their gradient flow; the prompt model, whose question is why gradient
descent stalls, in discrete steps; the single-location model along the flow of its order parameters
or by SGD at its dimension.
"""

import dataclasses
import json
import sys
import typing
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import optax
import tyro
import xarray as xr
from typing_extensions import Doc

from attnflow._checks import at_least, choice, positive
from attnflow.cli.display import picture, show
from attnflow.dynamics.descent import descend
from attnflow.dynamics.flow import gradient_flow
from attnflow.dynamics.preconditioning import (
    gauss_newton,
    levenberg_marquardt,
    simplex_natural_gradient,
)
from attnflow.dynamics.stall import explain_stall
from attnflow.instruments import head_groups, split_times, unspecialized_time
from attnflow.models.prompt import StudentTeacher
from attnflow.models.single_location import HeadsTask, bayes_risk, growth, plateau, sgd
from attnflow.models.single_location.sgd import LEVELS
from attnflow.models.sink_matrix import SinkMatrix
from attnflow.models.tied import TiedValueSoftmax
from attnflow.models.two_token import TwoToken
from attnflow.models.value_softmax import ValueSoftmax
from attnflow.runs.files import whole
from attnflow.runs.text import plain

Extras = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Output:
    json: Annotated[bool, Doc("print one JSON object with the final observables")] = False
    plot: Annotated[Path | None, Doc("write a picture: PNG, PDF or SVG by its ending")] = None


@dataclasses.dataclass(frozen=True)
class FlowOptions(Output):
    t1: Annotated[float, Doc("final time")] = 1e4
    points: Annotated[int, Doc("output times, even in log(1 + t)")] = 200
    key: Annotated[int | None, Doc("seed of a random start around the given one")] = None
    rtol: Annotated[float, Doc("relative tolerance of the integrator")] = 1e-10

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

    def run(self, task: StudentTeacher) -> tuple[xr.Dataset, Extras]:
        positive("step", self.step)
        choice("optimizer", self.optimizer, OPTIMIZERS)
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

    def run(self, task: HeadsTask) -> tuple[xr.Dataset, Extras]:
        choice("level", self.level, ("theory", *LEVELS))
        positive("t1", self.t1)
        positive("rate", self.rate)
        at_least("points", self.points, 2)
        model = task.model()
        times = np.linspace(0, self.t1, self.points)
        if self.level == "theory":
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
    risk, error = bayes_risk(model.signal, model.tokens)
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

MODELS: dict[str, tuple[type, type]] = {
    "two_token": (TwoToken, FlowOptions),
    "value_softmax": (ValueSoftmax, FlowOptions),
    "sink_matrix": (SinkMatrix, FlowOptions),
    "tied_value_softmax": (TiedValueSoftmax, FlowOptions),
    "prompt": (StudentTeacher, DescentOptions),
    "single_location": (HeadsTask, HeadsOptions),
}


def run(arguments: list[str]) -> int:
    name = arguments[0] if arguments else "--help"
    if name in ("-h", "--help"):
        print(f"usage: attnflow simulate MODEL [OPTIONS]\n\nmodels: {', '.join(MODELS)}")
        return 0
    choice("model", name, MODELS)
    model, options = parse(name, arguments[1:])
    if options.plot is not None:
        choice("picture format", options.plot.suffix, (".png", ".pdf", ".svg"))
    trajectory, extras = options.run(model)
    if options.plot is not None:
        with whole(options.plot) as draft:
            picture(trajectory, name).savefig(draft)
    if options.json:
        print(json.dumps(plain(final(trajectory) | extras | {"model": name}), allow_nan=False))
    else:
        show(trajectory, extras, name)
        if options.plot is not None:
            print(f"picture: {options.plot}", file=sys.stderr)
    return 0


def parse(name: str, arguments: list[str]) -> tuple[Any, Any]:
    """The model's fields and the options, side by side on one command line.

    The values go through a plain twin of the two dataclasses: the model is built outside the
    parser, so that its own one-line error reaches the user.
    """
    model, options = MODELS[name]
    twin = dataclasses.make_dataclass(
        "Simulation",
        [
            (field.name, typing.get_type_hints(cls, include_extras=True)[field.name], field.default)
            for cls in (model, options)
            for field in dataclasses.fields(cls)
        ],
    )
    parsed = vars(
        tyro.cli(
            twin,
            args=arguments,
            prog=f"attnflow simulate {name}",
            description=(model.__doc__ or "").split("\n\n")[0],
            config=(tyro.conf.FlagCreatePairsOff,),
        )
    )
    own = {field.name for field in dataclasses.fields(options)}
    chosen = options(**{key: value for key, value in parsed.items() if key in own})
    return model(**{key: value for key, value in parsed.items() if key not in own}), chosen


def final(trajectory: xr.Dataset) -> Extras:
    return {str(name): trajectory[name].values[-1].tolist() for name in trajectory.data_vars}


def critical(model: TwoToken) -> Extras:
    points = model.critical_points()
    return {
        "critical_times": points.times.tolist(),
        "critical_norm2": points.norm2.tolist(),
        "phases": [phase._asdict() for phase in points.phases],
        "shape": points.shape,
    }
