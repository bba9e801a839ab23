"""Chosen runs of a store as one self-contained HTML page."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from attnflow.papers import gallery
from attnflow.papers.style import canvas
from attnflow.runs.figures import NAME
from attnflow.runs.filters import Entry, flat
from attnflow.runs.packing import CLOCKS
from attnflow.web.pages import drawn, render

CURVES = 12  # scalars that are drawn


@dataclasses.dataclass(frozen=True)
class Shown:
    """A run as the page tells it."""

    name: str
    experiment: str
    config: dict[str, Any]
    environment: dict[str, Any]
    ends: dict[str, float]
    picture: str
    log: str


def page(entries: Sequence[Entry]) -> str:
    return render("runs.html", ("xarray", "numpy"), runs=[shown(entry) for entry in entries])


def shown(entry: Entry) -> Shown:
    run = entry.run
    data = run.data()
    picture = figure_of(entry, data) or curves(data)
    return Shown(
        entry.name,
        entry.experiment,
        flat(run.config),
        run.environment,
        {str(name): float(data[name]) for name in data.data_vars if numeric(data[name], 0)},
        "" if picture is None else drawn(picture),
        run.log,
    )


def figure_of(entry: Entry, data: xr.Dataset) -> Figure | None:
    """The picture of a figure's data, if the gallery knows it."""
    if entry.experiment != NAME:
        return None
    known = {figure.id: figure for figure in gallery.select()}
    figure = known.get(str(entry.config.get("figure")))
    return None if figure is None else figure.draw(data)


def curves(data: xr.Dataset) -> Figure | None:
    """Scalars over steps or time, a panel each; nothing if there are none."""
    clock = next((name for name in CLOCKS if name in data.dims), None)
    if clock is None or data.sizes[clock] < 2:
        return None
    series = [
        str(name)
        for name in data.data_vars
        if data[name].dims == (clock,) and numeric(data[name], 1)
    ]
    if not series:
        return None
    series = series[:CURVES]
    rows = -(-len(series) // 3)
    figure, axes = canvas(rows, min(3, len(series)), width=3.2, height=2.2)
    for ax, name in zip(axes.flat, series, strict=False):
        ax.plot(data[clock], data[name])
        ax.set(xlabel=clock, title=name)
    for ax in axes.flat[len(series) :]:
        ax.set_visible(False)
    return figure


def numeric(values: xr.DataArray, axes: int) -> bool:
    return values.ndim == axes and np.issubdtype(values.dtype, np.number)
