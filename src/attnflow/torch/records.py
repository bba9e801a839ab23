"""Records of a training run: in memory, and on disk one file each until the run is whole.

While the training goes on they lie in a hidden folder of the store; at the end they become one run
of it. What a killed training left is made a run by `recover`.
"""

import dataclasses
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import xarray as xr

from attnflow.runs.files import whole
from attnflow.runs.store import Run, Store

EXPERIMENT = "watch"
LIVE = ".live-"


@dataclasses.dataclass(frozen=True)
class Watched:
    """What was watched, and how: names the run. `started` keeps repeated trainings apart."""

    model: str
    label: str
    started: str
    every: int
    sequences: int
    rows: int
    exact: int
    skip: int


class Records:
    """Datasets of single steps, kept in order."""

    def __init__(self, config: Watched, out: Path | None):
        self.config = config
        self.kept: list[xr.Dataset] = []
        self.store = None if out is None else Store(out)
        self.folder = None
        if self.store is not None:
            self.folder = self.store.root / f"{LIVE}{self.store.name(config, EXPERIMENT)}"
            with whole(self.folder / "config.json") as draft:
                draft.write_text(json.dumps(dataclasses.asdict(config)))

    def add(self, record: xr.Dataset) -> None:
        self.kept.append(record)
        if self.folder is not None:
            with whole(self.folder / f"{int(record.step):012d}.nc") as draft:
                record.to_netcdf(draft, engine="scipy")

    @property
    def history(self) -> xr.Dataset:
        return joined(self.kept)

    def close(self) -> Run | None:
        """Make one run of them; without a store, or with nothing seen, none."""
        if self.store is None or self.folder is None:
            return None
        run = None
        if self.kept:
            run = self.store.add(self.config, self.history, experiment=EXPERIMENT)
        shutil.rmtree(self.folder, ignore_errors=True)
        return run


def joined(records: Sequence[xr.Dataset]) -> xr.Dataset:
    """Along `step`, with the drift of the row sums since the first record."""
    if not records:
        raise ValueError("nothing has been recorded yet")
    found = xr.concat(
        records, dim="step", data_vars="all", coords="minimal", compat="override", join="outer"
    )
    drift = found.score_mean - found.score_mean.isel(step=0)
    label = "change of the mean score of a query's keys since the first record"
    return found.assign(row_sum_drift=drift.assign_attrs(long_name=label))


def recover(out: str | Path) -> list[Run]:
    """Make runs of what killed trainings left in a store."""
    store = Store(out)
    runs = []
    for folder in sorted(store.root.glob(f"{LIVE}*")):
        config = Watched(**json.loads((folder / "config.json").read_text()))
        files = sorted(folder.glob("[0-9]*.nc"))
        if files:
            data = joined([xr.load_dataset(file, engine="scipy") for file in files])
            runs.append(store.add(config, data, experiment=EXPERIMENT))
        shutil.rmtree(folder)
    return runs


def as_scalars(record: xr.Dataset) -> dict[str, float]:
    """One number for each quantity and layer, means over heads: for TensorBoard and the like."""
    found = {}
    for name, array in record.data_vars.items():
        values = np.asarray(array, float)
        if values.ndim == 0:
            found[str(name)] = float(values)
            continue
        for layer, row in enumerate(values.reshape(len(values), -1)):
            if np.isfinite(row).any():
                found[f"{name}/layer_{layer}"] = float(np.nanmean(row))
    return found
