"""The views of the explorer: a form, a computation, its pictures. One short file each."""

import dataclasses
import functools
import importlib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from attnflow._checks import choice
from attnflow.web.answers import Answer
from attnflow.web.fields import Control, Field, fields_of

NAMES = ("two_tokens", "polarization", "conditioning", "specialization", "routing")
SOON = 8  # answers of a view that may come from the host, at once, before its program is compiled
_answers: Counter[str] = Counter()


@dataclasses.dataclass(frozen=True)
class View:
    """`compute(values)` gets the value of every control by its attribute in `parts`, the
    dataclasses that name, document and check them."""

    name: str
    title: str
    intro: str
    parts: tuple[type, ...]
    controls: Mapping[str, Control]
    compute: Callable[[dict[str, Any]], Answer]

    @functools.cached_property
    def fields(self) -> list[Field]:
        return fields_of(self.parts, self.controls)

    @property
    def defaults(self) -> dict[str, Any]:
        return {field.attribute: field.default for field in self.fields}

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "title": self.title,
            "intro": self.intro,
            "fields": [field.as_dict() for field in self.fields],
        }


def get(name: str) -> View:
    choice("view", name, NAMES)
    return importlib.import_module(f"attnflow.web.views.{name}").VIEW


def engine(name: str) -> str:
    """For the next flow of a view in this process: the host's answers come at once, and the
    compiled ones fast enough to drag a slider, once they are compiled."""
    _answers[name] += 1
    return "host" if _answers[name] <= SOON else "compiled"


def compile_view(name: str) -> None:
    """From now on the view is computed by its program."""
    view = get(name)
    _answers[name] = SOON
    view.compute(view.defaults)


def picked(part: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Of all values those that are fields of `part`."""
    names = {field.name for field in dataclasses.fields(part)}
    return {name: value for name, value in values.items() if name in names}
