"""A directory a run, named by the hash of its config. What is there is whole.

A run is written into a hidden sibling and takes its name only when all its files are on disk,
`DONE` last with the checksums of the others. So a reader sees all of a run or nothing, whatever was
killed; two writers of the same run do its work twice and one of them wins.
"""

import dataclasses
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xarray as xr

from attnflow.runs.checkpoint import Checkpoint
from attnflow.runs.config import canonical, digest
from attnflow.runs.environment import environment
from attnflow.runs.files import whole

FILES = ("config.json", "environment.json", "scalars.parquet", "arrays.nc", "log.txt")
CLOCKS = ("step", "time")
SMALL = 1 << 20  # bytes up to which netCDF 3 is written: twenty times faster than netCDF 4


class StoreError(RuntimeError):
    """The store cannot do what was asked; it is as it was."""


@dataclasses.dataclass(frozen=True)
class Run:
    """A finished run."""

    name: str
    path: Path

    @property
    def config(self) -> dict[str, Any]:
        """Its fields as plain data."""
        return self.stored["config"]

    @property
    def stored(self) -> dict[str, Any]:
        return json.loads((self.path / "config.json").read_text())

    @property
    def environment(self) -> dict[str, Any]:
        return json.loads((self.path / "environment.json").read_text())

    @property
    def scalars(self) -> pa.Table:
        return pq.read_table(self.path / "scalars.parquet")

    @property
    def log(self) -> str:
        return (self.path / "log.txt").read_text()

    def data(self) -> xr.Dataset:
        found = xr.load_dataset(self.path / "arrays.nc")
        narrow = [x for x in found.variables if found[x].dtype in (np.int32, np.int8)]
        return found.assign({x: found[x].astype(np.int64) for x in narrow})  # netCDF 3 has no int64

    def damage(self) -> str | None:
        """What is wrong with its files, if anything: all are read and compared with `DONE`."""
        try:
            marks = json.loads((self.path / "DONE").read_text())
        except FileNotFoundError:
            return "DONE is missing"
        except ValueError:
            return "DONE is not readable"
        for name, mark in marks.items():
            try:
                if _checksum(self.path / name) != mark:
                    return f"{name} is not what was written"
            except OSError as error:
                return f"{name} cannot be read ({error.strerror})"
        return None


@dataclasses.dataclass(frozen=True)
class Store:
    """The runs below one folder."""

    root: Path

    def __init__(self, root: str | os.PathLike[str]):
        object.__setattr__(self, "root", Path(root))

    def name(self, config: Any, experiment: str = "") -> str:
        return digest(canonical(config, experiment))

    def find(self, config: Any, experiment: str = "") -> Run | None:
        """The finished run of this config, or None. Raises on one that is damaged, and on the run
        of another config under the same name."""
        text = canonical(config, experiment)
        run = self.get(digest(text))
        if run is None:
            return None
        wrong = run.damage()
        if wrong is not None:
            raise DamagedRun(run, wrong)
        stored = (run.path / "config.json").read_text().strip()
        if stored != text:
            raise StoreError(
                f"run {run.name} is of another config with the same hash: give this sweep a store "
                "of its own"
            )
        return run

    def get(self, name: str) -> Run | None:
        path = self.root / name
        return Run(name, path) if (path / "DONE").exists() else None

    def __iter__(self) -> Iterator[Run]:
        """All finished runs, by name."""
        if not self.root.exists():
            return
        with os.scandir(self.root) as entries:
            names = sorted(entry.name for entry in entries if not entry.name.startswith("."))
        for name in names:
            run = self.get(name)
            if run is not None:
                yield run

    def add(
        self,
        config: Any,
        data: xr.Dataset,
        *,
        experiment: str = "",
        log: str = "",
        seconds: float = 0.0,
    ) -> Run:
        """Store what a config gave. If the run is there already and whole, it stays."""
        text = canonical(config, experiment)
        name = digest(text)
        data = _storable(data)
        self.root.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".new-{name}-", dir=self.root))
        try:
            about = environment() | {"seconds": seconds, "seed": getattr(config, "seed", None)}
            (draft / "config.json").write_text(text + "\n")
            (draft / "environment.json").write_text(json.dumps(about, indent=1) + "\n")
            (draft / "log.txt").write_text(log)
            pq.write_table(scalars_of(data), draft / "scalars.parquet")
            _write_arrays(data, draft / "arrays.nc")
            _fsync(draft / "arrays.nc")  # what a power cut takes of the rest, the checksums tell
            marks = {each: _checksum(draft / each) for each in FILES}
            (draft / "DONE").write_text(json.dumps(marks, indent=1) + "\n")
            draft.chmod(0o755)
            run = self._named(draft, name)
            self.forget_failure(name)
            self.checkpoint(config, experiment).clear()
            return run
        except OSError as error:
            raise StoreError(
                f"run {name} could not be stored: {error.strerror or error}"
            ) from error
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def _named(self, draft: Path, name: str) -> Run:
        run = Run(name, self.root / name)
        for _ in range(100):
            try:
                draft.rename(run.path)
                return run
            except OSError:
                if not run.path.exists():
                    raise
            if run.damage() is None:
                return run  # somebody was faster
            self.remove(run)
        raise StoreError(f"run {name} cannot take its name: something keeps making {run.path}")

    def remove(self, run: Run) -> None:
        """In one step for every reader."""
        gone = Path(tempfile.mkdtemp(prefix=f".old-{run.name}-", dir=self.root))
        try:
            run.path.rename(gone / "run")
        except FileNotFoundError:
            pass
        finally:
            shutil.rmtree(gone, ignore_errors=True)

    def add_failure(self, config: Any, traceback: str, *, experiment: str = "") -> None:
        """Keep why a config gave nothing; until it gives something."""
        text = canonical(config, experiment)
        record = json.loads(text) | {"traceback": traceback}
        with whole(self._failure(digest(text))) as draft:
            draft.write_text(json.dumps(record, indent=1) + "\n")

    def _failure(self, name: str) -> Path:
        return self.root / ".failed" / f"{name}.json"

    def forget_failure(self, name: str) -> None:
        self._failure(name).unlink(missing_ok=True)

    def failures(self) -> dict[str, dict[str, Any]]:
        """By the name of the run: config and traceback."""
        found = sorted((self.root / ".failed").glob("[!.]*.json"))
        return {path.stem: json.loads(path.read_text()) for path in found}

    def checkpoint(self, config: Any, experiment: str = "") -> Checkpoint:
        """Where a run of this config may keep its state."""
        return Checkpoint(self.root / ".work" / f"{self.name(config, experiment)}.npz")

    def sweep_up(self) -> int:
        """Remove what killed processes left; for when no other process writes here."""
        left = [*self.root.glob(".new-*"), *self.root.glob(".old-*")]
        for path in left:
            shutil.rmtree(path, ignore_errors=True)
        return len(left)


class DamagedRun(StoreError):
    """A run whose files are not those that were written."""

    def __init__(self, run: Run, wrong: str):
        super().__init__(f"run {run.name} is damaged: {wrong}")
        self.run, self.wrong = run, wrong


def _storable(data: xr.Dataset) -> xr.Dataset:
    for name, values in data.variables.items():
        if values.dtype.kind in "fiubU":
            continue
        if all(isinstance(x, str) for x in values.values.flat):  # words as objects
            data = data.assign({name: values.astype(str)})
        else:
            raise ValueError(f"{name} is {values.dtype}: a run stores numbers and words")
    return data


def scalars_of(data: xr.Dataset) -> pa.Table:
    """What is one number, or one number a step (or time): a column each."""
    clock = next((name for name in CLOCKS if name in data.dims), None)
    length = data.sizes[clock] if clock else 1
    columns: dict[str, Any] = {clock: data[clock].values} if clock else {}
    for name in data.data_vars:
        values = data.variables[name]
        if values.dtype.kind not in "fiub":
            continue
        if values.dims == ((clock,) if clock else ()):
            columns[str(name)] = np.atleast_1d(values.values)
        elif clock and values.dims == ():
            columns[str(name)] = np.broadcast_to(values.values, length)
    return pa.table({name: np.ascontiguousarray(x) for name, x in columns.items()})


def _write_arrays(data: xr.Dataset, path: Path) -> None:
    plain = all(_fits_netcdf_3(values) for values in data.variables.values())
    if plain and data.nbytes <= SMALL:
        data.to_netcdf(path, engine="scipy", format="NETCDF3_64BIT")
    else:
        data.to_netcdf(path, engine="h5netcdf")


def _fits_netcdf_3(values: xr.Variable) -> bool:
    if values.dtype.kind == "i":
        return values.size == 0 or bool(np.abs(values.values).max() < 2**31)
    return values.dtype.kind in "fU"


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fsync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
