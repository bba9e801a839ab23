"""What a view answers: pictures as plain numbers, facts, and how to get them again.

A picture is a list of traces in a format of our own; the page turns it into calls of its plotting
library, so that nothing in it is ever taken for markup.
"""

import dataclasses
import functools
import shlex
import typing
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attnflow.web.fields import cli_name

Trace = dict[str, Any]
DIGITS = 7  # of the numbers of a picture; facts have all


@dataclasses.dataclass(frozen=True)
class Axis:
    title: str
    log: bool = False
    low: float | None = None
    high: float | None = None


@dataclasses.dataclass(frozen=True)
class Plot:
    """`moments`: labels of the recorded moments, where traces have a value for each. `square`: one
    unit is as long on both axes. `wide`: it takes a row of its own. `pick`: the field of Marks that
    a click on a trace with `mark` changes."""

    title: str
    x: Axis
    y: Axis
    traces: Sequence[Trace]
    moments: Sequence[float] | None = None
    square: bool = False
    wide: bool = False
    pick: str = ""


@dataclasses.dataclass(frozen=True)
class Fact:
    """`key`: where `command --json` prints the same value (dots go into objects). `missing`: what
    it means that the value, or a number in it, is not finite."""

    label: str
    value: Any
    key: str = ""
    missing: str = "—"


@dataclasses.dataclass(frozen=True)
class Answer:
    plots: Sequence[Plot]
    facts: Sequence[Fact]
    command: str
    python: str
    note: str = ""


def line(x: Any, y: Any, name: str, color: int, dash: str = "", **more: Any) -> Trace:
    """dash: "" (solid), "dash" or "dot". more: `mark`, the number a click means; `show`=False: not
    in the legend."""
    return {"kind": "line", "x": numbers(x), "y": numbers(y), "name": name, "color": color} | (
        {"dash": dash} | more
    )


def dots(x: Any, y: Any, name: str, color: int, symbol: str = "circle", **more: Any) -> Trace:
    points = {"kind": "points", "x": numbers(x), "y": numbers(y), "name": name, "color": color}
    return points | {"symbol": symbol} | more


def bars(x: Sequence[str], y: Any, name: str, color: int) -> Trace:
    return {"kind": "bar", "x": list(x), "y": numbers(y), "name": name, "color": color}


def level(y: float, name: str, color: int) -> Trace:
    """A horizontal line over the whole width."""
    return {"kind": "level", "y": y, "name": name, "color": color}


def band(low: float, high: float, name: str, color: int) -> Trace:
    """A stretch of the x axis, shaded, with its name."""
    return {"kind": "band", "x": [low, high], "name": name, "color": color}


def contour(x: Any, y: Any, z: Any, name: str) -> Trace:
    return {"kind": "contour", "x": numbers(x), "y": numbers(y), "z": numbers(z), "name": name}


def heat(z: Any, name: str, *, limit: float) -> Trace:
    """A map (row, column), or one a moment, in colours that part at 0 and end at ±`limit`."""
    return {"kind": "heat", "z": numbers(z), "name": name, "limit": limit}


def numbers(values: Any) -> np.ndarray:
    """For a picture: seven digits. What is not finite is a gap."""
    array = np.asarray(values, float)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        digits = 10.0 ** (DIGITS - 1 - np.floor(np.log10(np.abs(array))))
        short = np.round(array * digits) / digits
    return np.where(np.isfinite(short), short, array)


def command(model: str, *parts: tuple[type, Mapping[str, Any]]) -> str:
    """`attnflow simulate MODEL` with the values that differ from the defaults of their dataclass,
    or are new to it."""
    words = ["attnflow", "simulate", model]
    for part, values in parts:
        hints = _hints(part)
        for name, value in changed(part, values).items():
            option = f"--{cli_name(name, getattr(hints[name], '__metadata__', ()))}"
            if isinstance(value, tuple):
                words += [option, *map(_word, value)]
            else:
                words += [f"{option}={_word(value)}"]
    return shlex.join(words)


@functools.cache
def _hints(part: type) -> dict[str, Any]:
    return typing.get_type_hints(part, include_extras=True)


def call(name: str, part: type, values: Mapping[str, Any]) -> str:
    """A Python call with the values that differ from the defaults."""
    given = ", ".join(f"{key}={value!r}" for key, value in changed(part, values).items())
    return f"{name}({given})"


def changed(part: type, values: Mapping[str, Any]) -> dict[str, Any]:
    defaults = {field.name: field.default for field in dataclasses.fields(part)}
    return {name: x for name, x in values.items() if name in defaults and x != defaults[name]}


def _word(value: Any) -> str:
    return repr(value) if isinstance(value, float) else str(value)
