"""A figure on disk: its data are a run of the store, its picture (PNG, PDF) is drawn from them."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import xarray as xr

from attnflow._checks import choice
from attnflow.runs.files import whole
from attnflow.runs.store import Run, Store
from attnflow.runs.sweeps import Experiment, sweep

NAME = "figure"


class Drawable(Protocol):
    """What a figure must offer; `attnflow.papers.gallery.Figure` does."""

    @property
    def id(self) -> str: ...
    @property
    def presets(self) -> Any: ...
    @property
    def compute(self) -> Callable[[Any], xr.Dataset]: ...
    @property
    def draw(self) -> Callable[[xr.Dataset], Any]: ...


class Album(Protocol):
    """Takes figures as pages: matplotlib's PdfPages."""

    def savefig(self, figure: Any) -> None: ...


@dataclasses.dataclass(frozen=True)
class FigureConfig:
    """What names the run of a figure: which figure, and the settings of the preset."""

    figure: str
    settings: Any


@dataclasses.dataclass(frozen=True)
class Rendered:
    """Where a figure lies, how long its data took (0 if they were there already), and what its
    data were made with (`environment`)."""

    id: str
    preset: str
    data: Path
    picture: Path
    config: str
    seconds: float
    environment: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def config_of(figure: Drawable, preset: str) -> FigureConfig:
    choice("preset", preset, figure.presets)
    return FigureConfig(figure.id, figure.presets[preset])


def drawn(
    figure: Drawable,
    preset: str,
    run: Run,
    out: Path,
    seconds: float = 0.0,
    album: Album | None = None,
) -> Rendered:
    """Draw stored data into `out`/figures, and as a page of the album."""
    folder = out / "figures" / figure.id / preset
    drawing = figure.draw(run.data())
    for suffix in ("png", "pdf"):
        with whole(folder / f"figure.{suffix}") as draft:
            drawing.savefig(draft, dpi=150)
        drawing.set_layout_engine("none")  # laid out once, for all formats
    if album is not None:
        album.savefig(drawing)
    config = (run.path / "config.json").read_text()
    with whole(folder / "config.json") as draft:
        draft.write_text(config)
    data, picture = run.path / "arrays.nc", folder / "figure.png"
    return Rendered(figure.id, preset, data, picture, config.strip(), seconds, run.environment)


def render(figure: Drawable, preset: str, out: Path, *, fresh: bool = False) -> Rendered:
    """Compute the data in this process unless they are in the store `out`/runs, and draw them."""
    config, store = config_of(figure, preset), Store(out / "runs")
    experiment = Experiment(NAME, lambda config: figure.compute(config.settings))
    report = sweep([config], experiment, store, engine="here", fresh=fresh, progress=False)
    for why in report.failed.values():
        raise RuntimeError(f"{figure.id} could not be computed:\n{why}")
    run = store.find(config, NAME)
    assert run is not None
    return drawn(figure, preset, run, out, report.seconds if report.done else 0.0)
