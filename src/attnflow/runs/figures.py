"""A figure on disk: its data (netCDF), its picture (PNG, PDF) and the config that made them."""

import dataclasses
import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import xarray as xr

from attnflow._checks import choice
from attnflow.runs.files import whole


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


@dataclasses.dataclass(frozen=True)
class Rendered:
    """Where a figure lies, and how long its data took (0 if they were there already)."""

    id: str
    preset: str
    data: Path
    picture: Path
    config: str
    seconds: float


def config_json(config: Any) -> str:
    return json.dumps(
        {"config": type(config).__name__} | dataclasses.asdict(config), sort_keys=True, default=list
    )


def render(figure: Drawable, preset: str, out: Path, *, fresh: bool = False) -> Rendered:
    """Compute the data unless data of the same config lie there, and draw them."""
    choice("preset", preset, figure.presets)
    config = config_json(figure.presets[preset])
    folder = out / figure.id / preset
    data_path = folder / "data.nc"
    digest = hashlib.sha256(config.encode()).hexdigest()
    begun = time.perf_counter()
    data = None if fresh else _stored(data_path, digest)
    seconds = 0.0
    if data is None:
        data = figure.compute(figure.presets[preset])
        seconds = time.perf_counter() - begun
        data.attrs |= {"figure": figure.id, "config": config, "config_sha256": digest}
        with whole(data_path) as draft:
            data.to_netcdf(draft, engine="h5netcdf")
    drawing = figure.draw(data)
    for suffix in ("png", "pdf"):
        with whole(folder / f"figure.{suffix}") as draft:
            drawing.savefig(draft, dpi=150)
        drawing.set_layout_engine("none")  # laid out once, for both formats
    with whole(folder / "config.json") as draft:
        draft.write_text(config + "\n")
    return Rendered(figure.id, preset, data_path, folder / "figure.png", config, seconds)


def _stored(path: Path, digest: str) -> xr.Dataset | None:
    """The data at `path` if they were made by the same config, else None."""
    if not path.exists():
        return None
    try:
        data = xr.load_dataset(path, engine="h5netcdf")
    except OSError:
        return None  # not a netCDF file: make it again
    return data if data.attrs.get("config_sha256") == digest else None
