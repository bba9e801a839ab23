"""The gallery: every figure as a config, a computation and a drawing."""

import dataclasses
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import xarray as xr
from matplotlib.figure import Figure as Canvas

from attnflow._checks import choice
from attnflow.papers import papers_with
from attnflow.papers.trials import Trials, collect


@dataclasses.dataclass(frozen=True)
class Figure:
    """`compute(config)` gives the data, `draw(data)` the picture; drawing never computes.

    presets: "quick" (seconds) and "paper" (the published setting), each a frozen dataclass.
    missing: says which data or package it lacks here and how to get it; nothing if it can run.
    trials: the trainings it is made of; `assemble(config, found)` then gives its data, and
    `compute` does both.
    """

    paper: str
    name: str
    title: str
    caption: str
    presets: Mapping[str, Any]
    compute: Callable[[Any], xr.Dataset]
    draw: Callable[[xr.Dataset], Canvas]
    tour: bool = True
    missing: Callable[[], str] = str
    trials: Trials | None = None
    assemble: Callable[[Any, Sequence[xr.Dataset]], xr.Dataset] | None = None

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
        tour: bool = True,
        missing: Callable[[], str] = str,
        trials: Trials | None = None,
    ):
        """`tour`: whether its quick preset is among those of the report; for those that take longer
        than others it is not. With `trials` the function is `assemble`, else `compute`."""

        def add(function: Callable[..., xr.Dataset]):
            if name in self.figures:
                raise ValueError(f"{self.paper}/{name} is in the gallery already")
            presets = {"quick": quick, "paper": paper}
            compute, assemble = function, None
            if trials is not None:
                compute, assemble = _trained(trials, function), function
            self.figures[name] = Figure(
                self.paper,
                name,
                title,
                caption,
                presets,
                compute,
                draw,
                tour,
                missing,
                trials,
                assemble,
            )
            return function

        return add


def _trained(trials: Trials, assemble: Callable[..., xr.Dataset]) -> Callable[[Any], xr.Dataset]:
    return lambda config: assemble(config, collect(trials.experiment, trials.grid(config)))


def select(target: str = "") -> list[Figure]:
    """All figures, those of `PAPER`, or the one `PAPER/FIGURE`."""
    paper, _, name = target.partition("/")
    if target:
        choice("paper", paper, papers_with("figures"))
    chosen = []
    for each in [paper] if paper else papers_with("figures"):
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
