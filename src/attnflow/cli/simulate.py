"""attnflow simulate MODEL: the gradient flow of one model, as a table or as JSON."""

import dataclasses
import json
import math
import sys
import typing
from pathlib import Path
from typing import Annotated, Any

import tyro
import xarray as xr
from typing_extensions import Doc

from attnflow._checks import choice
from attnflow.cli.display import picture, show
from attnflow.dynamics.flow import gradient_flow
from attnflow.models.interface import Model
from attnflow.models.sink_matrix import SinkMatrix
from attnflow.models.tied import TiedValueSoftmax
from attnflow.models.two_token import TwoToken
from attnflow.models.value_softmax import ValueSoftmax
from attnflow.runs.files import whole

MODELS: dict[str, type[Model]] = {
    "two_token": TwoToken,
    "value_softmax": ValueSoftmax,
    "sink_matrix": SinkMatrix,
    "tied_value_softmax": TiedValueSoftmax,
}


@dataclasses.dataclass(frozen=True)
class Options:
    t1: Annotated[float, Doc("final time")] = 1e4
    points: Annotated[int, Doc("output times, even in log(1 + t)")] = 200
    key: Annotated[int | None, Doc("seed of a random start around the given one")] = None
    rtol: Annotated[float, Doc("relative tolerance of the integrator")] = 1e-10
    json: Annotated[bool, Doc("print one JSON object with the final observables")] = False
    plot: Annotated[Path | None, Doc("write a picture: PNG, PDF or SVG by its ending")] = None


def run(arguments: list[str]) -> int:
    name = arguments[0] if arguments else "--help"
    if name in ("-h", "--help"):
        print(f"usage: attnflow simulate MODEL [OPTIONS]\n\nmodels: {', '.join(MODELS)}")
        return 0
    choice("model", name, MODELS)
    model, options = parse(name, arguments[1:])
    if options.plot is not None:
        choice("picture format", options.plot.suffix, (".png", ".pdf", ".svg"))
    flow = gradient_flow(
        model, options.t1, points=options.points, key=options.key, rtol=options.rtol
    )
    extras = critical(model) if isinstance(model, TwoToken) and options.key is None else {}
    if options.plot is not None:
        with whole(options.plot) as draft:
            picture(flow, name).savefig(draft)
    if options.json:
        print(json.dumps(final(flow) | extras | {"t1": options.t1, "model": name}, allow_nan=False))
    else:
        show(flow, extras, name)
        if options.plot is not None:
            print(f"picture: {options.plot}", file=sys.stderr)
    return 0


def parse(name: str, arguments: list[str]) -> tuple[Model, Options]:
    """The model's fields and the options, side by side on one command line.

    The values go through a plain twin of the two dataclasses: the model is built outside the
    parser, so that its own one-line error reaches the user.
    """
    model = MODELS[name]
    twin = dataclasses.make_dataclass(
        "Simulation",
        [
            (field.name, typing.get_type_hints(cls, include_extras=True)[field.name], field.default)
            for cls in (model, Options)
            for field in dataclasses.fields(cls)
        ],
    )
    summary = (model.__doc__ or "").split("\n\n")[0]
    parsed = vars(
        tyro.cli(
            twin,
            args=arguments,
            prog=f"attnflow simulate {name}",
            description=summary,
            config=(tyro.conf.FlagCreatePairsOff,),
        )
    )
    own = {field.name for field in dataclasses.fields(Options)}
    chosen = Options(**{key: value for key, value in parsed.items() if key in own})
    return model(**{key: value for key, value in parsed.items() if key not in own}), chosen


def final(flow: xr.Dataset) -> dict[str, Any]:
    return {str(name): flow[name].isel(time=-1).values.tolist() for name in flow.data_vars}


def critical(model: TwoToken) -> dict[str, Any]:
    points = model.critical_points()
    return {
        "critical_times": points.times.tolist(),
        "critical_norm2": points.norm2.tolist(),
        "phases": [
            {"name": p.name, "start": p.start, "end": None if math.isinf(p.end) else p.end}
            for p in points.phases
        ],
        "shape": points.shape,
    }
