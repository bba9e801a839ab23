"""From config dataclasses to the controls of a form, and from a query string back to values.

Names, defaults and help are those of the dataclass that the command line parses too. A control says
only what a dataclass does not: between which ends a slider runs.
"""

import dataclasses
import math
import re
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tyro
from typing_extensions import Doc

from attnflow._checks import choice


class FieldError(ValueError):
    """What is wrong with the value of one field; `field` is None if it is no single one."""

    def __init__(self, message: str, field: str | None = None):
        super().__init__(message)
        self.field = field


@dataclasses.dataclass(frozen=True)
class Slider:
    """A number from `low` to `high`, the dataclass's default unless `default` is given; `log`:
    even in its logarithm. The ends also bound what a request may cost."""

    low: float
    high: float
    log: bool = False
    step: float | None = None
    unit: str = ""
    default: float | None = None
    label: str = ""


@dataclasses.dataclass(frozen=True)
class Choice:
    options: tuple[str, ...]
    default: str | None = None
    label: str = ""


@dataclasses.dataclass(frozen=True)
class Bars:
    """As many numbers as the default has, each a bar to drag."""

    low: float
    high: float
    default: tuple[float, ...]
    log: bool = False
    unit: str = ""
    label: str = ""


@dataclasses.dataclass(frozen=True)
class Marks:
    """Whole numbers below `count`, each once: things that are ticked or clicked. `of`: the field
    that says how many of them there are."""

    count: int
    of: str = ""
    default: tuple[int, ...] = ()
    label: str = ""


@dataclasses.dataclass(frozen=True)
class Moment:
    """Which of the recorded moments the page shows; no business of the computation."""

    count: int
    default: int
    label: str = ""


Control = Slider | Choice | Bars | Marks | Moment


@dataclasses.dataclass(frozen=True)
class Field:
    """A field of a config with its control. `name` is that of the command line and of the address
    bar; `attribute` that of the dataclass, where the two differ."""

    name: str
    attribute: str
    kind: type
    default: Any
    help: str
    control: Control

    def as_dict(self) -> dict[str, Any]:
        about = dataclasses.asdict(self.control)
        return about | {
            "name": self.name,
            "kind": type(self.control).__name__.lower(),
            "whole": self.kind is int,
            "default": self.default,
            "label": self.control.label or self.name,
            "help": self.help,
        }

    def read(self, text: str) -> Any:
        control = self.control
        if isinstance(control, Choice):
            choice(self.name, text, control.options)
            return text
        if isinstance(control, Slider):
            return self._number(text, control.low, control.high)
        if isinstance(control, Moment):
            return self._number(text, 0, control.count - 1)
        parts = [part for part in text.split(",") if part]
        if isinstance(control, Marks):
            marks = tuple(self._number(part, 0, control.count - 1) for part in parts)
            if len(set(marks)) < len(marks):
                raise FieldError(f"{self.name}: each number once (got {_short(text)})")
            return tuple(sorted(marks))
        if len(parts) != len(control.default):
            raise FieldError(
                f"{self.name} are {len(control.default)} numbers (got {len(parts)}), "
                "separated by commas"
            )
        return tuple(self._number(part, control.low, control.high) for part in parts)

    def _number(self, text: str, low: float, high: float) -> Any:
        whole = self.kind is int or isinstance(self.control, Marks | Moment)
        try:
            number = int(text) if whole else float(text)
        except ValueError:
            kind = "a whole number" if whole else "a number"
            raise FieldError(f"{self.name} must be {kind} (got {_short(text)})") from None
        if not math.isfinite(number) or not low <= number <= high:
            raise FieldError(
                f"{self.name} must lie from {low:g} to {high:g} on this page (got {_short(text)})"
            )
        return number


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "…")


def fields_of(parts: Sequence[type], controls: Mapping[str, Control]) -> list[Field]:
    """The controlled fields, in the order of `controls`; each must be a field of one of `parts`."""
    known = {}
    for part in parts:
        hints = typing.get_type_hints(part, include_extras=True)
        known |= {field.name: (field, hints[field.name]) for field in dataclasses.fields(part)}
    found = []
    for attribute, control in controls.items():
        field, hint = known[attribute]
        kind, notes = _unwrapped(hint)
        given = None if isinstance(control, Moment) else control.default
        found.append(
            Field(
                name=cli_name(attribute, notes),
                attribute=attribute,
                kind=kind,
                default=control.default if isinstance(control, Moment) else _first(given, field),
                help=next((x.documentation for x in notes if isinstance(x, Doc)), ""),
                control=control,
            )
        )
    return found


def _first(given: Any, field: dataclasses.Field) -> Any:
    return field.default if given is None else given


def _unwrapped(hint: Any) -> tuple[Any, tuple]:
    """The plain type of a hint (of `int | None` it is int), and its annotations."""
    notes = getattr(hint, "__metadata__", ())
    kind = typing.get_args(hint)[0] if notes else hint
    options = [x for x in typing.get_args(kind) if x is not type(None)]
    if type(None) in typing.get_args(kind) and len(options) == 1:
        kind = options[0]
    return kind, notes


def cli_name(attribute: str, notes: Iterable[Any]) -> str:
    """`tyro.conf.arg(name=…)` renames a field on the command line."""
    marker = type(tyro.conf.arg(name="x"))
    names = [getattr(note, "name", None) for note in notes if isinstance(note, marker)]
    return next(filter(None, names), attribute)


def read_query(fields: Sequence[Field], query: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Values by attribute; what the query does not name has its default."""
    by_name = {field.name: field for field in fields}
    values = {field.attribute: field.default for field in fields}
    seen = set()
    for name, text in query:
        choice("field", name, by_name)
        if name in seen:
            raise FieldError(f"{name} is given twice", name)
        seen.add(name)
        try:
            values[by_name[name].attribute] = by_name[name].read(text.strip())
        except ValueError as error:
            raise FieldError(str(error), name) from None
    return values


def blamed(fields: Sequence[Field], message: str) -> str | None:
    """The field that an error's text begins with, as every check of the boundary writes it."""
    first = re.match(r"\w+", message)
    for field in fields:
        if first and first.group() in (field.name, field.attribute):
            return field.name
    return None
