"""The views of the explorer: a form, a computation, its pictures. One short file each."""

import contextlib
import dataclasses
import functools
import importlib
import threading
from collections.abc import Callable, Mapping
from typing import Any

from attnflow._checks import choice
from attnflow.web.answers import Answer
from attnflow.web.fields import Control, Field, fields_of

NAMES = ("two_tokens", "polarization", "conditioning", "specialization", "routing")
# In this process: views that have answered, whose program is begun, and whose program is there.
_first: set[str] = set()
_begun: set[str] = set()
_compiled: set[str] = set()
_compiling, _here = threading.Lock(), threading.local()


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
    compiled ones fast enough to drag a slider. The program is compiled beside the answers, after
    the first of them."""
    if name in _compiled or getattr(_here, "compiling", False):
        return "compiled"
    if name not in _first:
        _first.add(name)
    elif name not in _begun:
        _begun.add(name)
        threading.Thread(target=_compile_beside, args=(name,), daemon=True).start()
    return "host"


def compile_view(name: str) -> None:
    """From now on the view is computed by its program."""
    _begun.add(name)
    with _compiling:  # a view at a time
        if name in _compiled:
            return
        view, _here.compiling = get(name), True
        try:
            view.compute(view.defaults)
            _compiled.add(name)
        finally:
            _here.compiling = False


def _compile_beside(name: str) -> None:
    with contextlib.suppress(Exception):  # the host goes on
        compile_view(name)


def picked(part: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Of all values those that are fields of `part`."""
    names = {field.name for field in dataclasses.fields(part)}
    return {name: value for name, value in values.items() if name in names}
