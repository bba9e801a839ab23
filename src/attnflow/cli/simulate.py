"""attnflow simulate MODEL: one run of one model, as a table or as JSON.

Most models are followed along their gradient flow; the prompt model and the cross-entropy head in
discrete steps; the single-location model along the flow of its order parameters or by SGD.
"""

import dataclasses
import importlib
import json
import sys
import typing
from typing import Any

import numpy as np
import xarray as xr

from attnflow._checks import can_write, choice
from attnflow.cli.display import picture, show
from attnflow.cli.options import Extras
from attnflow.cli.parsing import parse_options, refuse_unused
from attnflow.dynamics.errors import DescentError
from attnflow.runs.files import whole
from attnflow.runs.text import plain

FLOW = "flow.FlowOptions"
MODELS = {  # the model's class and its options, imported when it is run
    "two_token": ("two_token.TwoToken", FLOW),
    "value_softmax": ("value_softmax.ValueSoftmax", FLOW),
    "sink_matrix": ("sink_matrix.SinkMatrix", FLOW),
    "tied_value_softmax": ("tied.TiedValueSoftmax", FLOW),
    "prompt": ("prompt.StudentTeacher", "descent.DescentOptions"),
    "single_location": ("single_location.HeadsTask", "heads.HeadsOptions"),
    "head": ("head.HeadTask", "routing.RoutingOptions"),
}


def classes(name: str) -> tuple[type, type]:
    """The dataclass of a model, and that of its options."""
    found = []
    for package, path in zip(("models", "cli.options"), MODELS[name], strict=True):
        module, _, attribute = path.rpartition(".")
        found.append(getattr(importlib.import_module(f"attnflow.{package}.{module}"), attribute))
    return found[0], found[1]


def run(arguments: list[str]) -> int:
    name = arguments[0] if arguments else "--help"
    if name in ("-h", "--help"):
        print(f"usage: attnflow simulate MODEL [OPTIONS]\n\nmodels: {', '.join(MODELS)}")
        return 0
    choice("model", name, MODELS)
    model, options = parse(name, arguments[1:])
    for part in (model, options):
        refuse_unused(part, options.unused(model))
    if options.plot is not None:
        choice("picture format of --plot", options.plot.suffix, (".png", ".pdf", ".svg"))
        can_write("--plot", options.plot)
    diverged: DescentError | None = None
    try:
        trajectory, extras = options.run(model)
        require_finite(trajectory)
    except DescentError as error:
        if not error.recorded.sizes.get("step"):
            raise
        diverged, trajectory = error, scalars(error.recorded)
        extras = {"diverged": str(error), "diverged_at": error.step}
    if options.plot is not None:
        with whole(options.plot) as draft:
            picture(trajectory, name).savefig(draft)
    if options.json:
        print(json.dumps(plain(final(trajectory) | extras | {"model": name}), allow_nan=False))
    else:
        show(trajectory, extras, name)
        if options.plot is not None:
            print(f"picture: {options.plot}", file=sys.stderr)
    if diverged is not None:
        raise diverged  # after what was recorded has been shown
    return 0


def require_finite(trajectory: xr.Dataset) -> None:
    for name, values in trajectory.data_vars.items():
        if not np.isfinite(values.values).all():
            raise RuntimeError(f"{name} leaves floating point: take numbers nearer to 1")


def scalars(trajectory: xr.Dataset) -> xr.Dataset:
    return trajectory[[name for name in trajectory.data_vars if trajectory[name].ndim == 1]]


def parse(name: str, arguments: list[str]) -> tuple[Any, Any]:
    """The model's fields and the options, side by side on one command line.

    The values go through a plain twin of the two dataclasses: the model is built outside the
    parser, so that its own one-line error reaches the user.
    """
    model, options = classes(name)
    twin = dataclasses.make_dataclass(
        "Simulation",
        [
            (field.name, typing.get_type_hints(cls, include_extras=True)[field.name], field.default)
            for cls in (model, options)
            for field in dataclasses.fields(cls)
        ],
    )
    parsed = vars(
        parse_options(
            twin,
            arguments,
            prog=f"attnflow simulate {name}",
            description=(model.__doc__ or "").split("\n\n")[0],
        )
    )
    own = {field.name for field in dataclasses.fields(options)}
    chosen = options(**{key: value for key, value in parsed.items() if key in own})
    return model(**{key: value for key, value in parsed.items() if key not in own}), chosen


def final(trajectory: xr.Dataset) -> Extras:
    return {str(name): trajectory[name].values[-1].tolist() for name in trajectory.data_vars}
