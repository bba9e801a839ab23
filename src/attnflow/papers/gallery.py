"""The gallery: every figure as a config, a computation and a drawing."""

import dataclasses
import importlib
import importlib.util
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any

import xarray as xr
from matplotlib.figure import Figure as Canvas

from attnflow._checks import choice


@dataclasses.dataclass(frozen=True)
class Figure:
    """`compute(config)` gives the data, `draw(data)` the picture; drawing never computes.

    presets: "quick" (seconds) and "paper" (the published setting), each a frozen dataclass.
    """

    paper: str
    name: str
    title: str
    caption: str
    presets: Mapping[str, Any]
    compute: Callable[[Any], xr.Dataset]
    draw: Callable[[xr.Dataset], Canvas]

    @property
    def id(self) -> str:
        return f"{self.paper}/{self.name}"


class Gallery:
    """The figures of one paper."""

    def __init__(self, paper: str):
        self.paper = paper
        self.figures: dict[str, Figure] = {}

    def figure(
        self,
        name: str,
        *,
        title: str,
        caption: str,
        quick: Any,
        paper: Any,
        draw: Callable[[xr.Dataset], Canvas],
    ):
        def add(compute: Callable[[Any], xr.Dataset]):
            if name in self.figures:
                raise ValueError(f"{self.paper}/{name} is in the gallery already")
            presets = {"quick": quick, "paper": paper}
            self.figures[name] = Figure(self.paper, name, title, caption, presets, compute, draw)
            return compute

        return add


def papers() -> list[str]:
    """Every subpackage of `attnflow.papers` with figures, in order of name."""
    import attnflow.papers as here

    return sorted(
        module.name
        for module in pkgutil.iter_modules(here.__path__)
        if module.ispkg and importlib.util.find_spec(f"attnflow.papers.{module.name}.figures")
    )


def select(target: str = "") -> list[Figure]:
    """All figures, those of `PAPER`, or the one `PAPER/FIGURE`."""
    paper, _, name = target.partition("/")
    if paper:
        choice("paper", paper, papers())
    chosen = []
    for each in [paper] if paper else papers():
        gallery: Gallery = importlib.import_module(f"attnflow.papers.{each}.figures").GALLERY
        if name:
            choice("figure", name, gallery.figures)
        chosen += (
            [gallery.figures[name]]
            if name
            else sorted(gallery.figures.values(), key=lambda figure: _numbers_first(figure.name))
        )
    return chosen


def _numbers_first(name: str) -> tuple[bool, int, str]:
    """Figures in the order of their numbers, then the named ones."""
    return (not name.isdigit(), int(name) if name.isdigit() else 0, name)
