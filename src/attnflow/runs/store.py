"""One directory per run, named by the hash of its config. What is there is whole.

A run is written into a hidden sibling and takes its name only when all its files are on disk,
`DONE` last with the checksums of the others. So a reader sees all of a run or nothing, whatever was
killed; two writers of the same run do its work twice and one of them wins. A draft is locked while
its writer lives: what is not locked is the rest of a killed process, and is removed by the next
sweep.
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import xarray as xr

from attnflow.runs import status
from attnflow.runs.checkpoint import FileCheckpoint
from attnflow.runs.config import DIGITS, canonical, is_same, names
from attnflow.runs.files import whole
from attnflow.runs.packing import FILES, pack, write_arrays
from attnflow.runs.run import DONE, Run, config_of, regular, write_done

STALE = 3600.0  # seconds after which a draft of a single file is the rest of a killed process


class StoreError(RuntimeError):
    """The store cannot do what was asked; it is as it was."""


class DamagedRun(StoreError):
    """A run whose files are not those that were written."""

    def __init__(self, run: Run, wrong: str):
        super().__init__(f"run {run.name} is damaged: {wrong}")
        self.run, self.wrong = run, wrong


@dataclasses.dataclass(frozen=True)
class Check:
    """What `Store.check` found. `damaged`: run name to what is wrong; `failed`: runs with a
    recorded failure; `unreadable`: records of failures that are damaged; `leftovers`: drafts of
    killed processes, which the next sweep removes."""

    whole: list[str]
    damaged: dict[str, str]
    failed: list[str]
    unreadable: list[str]
    leftovers: list[str]


@dataclasses.dataclass(frozen=True)
class Store:
    """The runs below one folder."""

    root: Path

    def __init__(self, root: str | os.PathLike[str]):
        object.__setattr__(self, "root", Path(root))

    def name(self, config: Any, experiment: str = "") -> str:
        """The name of this config's run: that of the stored one, else the one it will get."""
        candidates = names(config, experiment)
        free = []
        for name in candidates:
            holds = self._holds(name, config, experiment)
            if holds:
                return name
            free += [name] if holds is None else []
        if not free:
            raise StoreError(
                f"run {candidates[0]} is of another config with the same hash: give this sweep a "
                "store of its own"
            )
        return free[0]

    def _holds(self, name: str, config: Any, experiment: str) -> bool | None:
        """Whether the run of this name is of this config; None: there is none that can say so."""
        run = Run(name, self.root / name)
        try:
            same = is_same(config_of(run), config, experiment)
        except (OSError, ValueError):
            return None
        return None if not same and run.damage() else same

    def find(self, config: Any, experiment: str = "") -> Run | None:
        """The finished run of this config, or None. Raises on one that is damaged."""
        run = self.get(self.name(config, experiment))
        if run is None:
            return None
        wrong = run.damage()
        if wrong is not None:
            raise DamagedRun(run, wrong)
        return run

    def get(self, name: str) -> Run | None:
        """The run of this name, whole or damaged."""
        return Run(name, self.root / name) if is_run(self.root, name) else None

    def __iter__(self) -> Iterator[Run]:
        """All runs that have their `DONE` mark, by name."""
        for name in self.names():
            if (self.root / name / DONE).exists():
                yield Run(name, self.root / name)

    def names(self) -> list[str]:
        """Of all runs, whole or damaged."""
        try:
            with os.scandir(self.root) as entries:
                found = sorted(entry.name for entry in entries if not entry.name.startswith("."))
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [name for name in found if is_run(self.root, name)]

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
        files = pack(config, data, experiment, log, seconds)
        return self.add_files(config, files, experiment=experiment, data=data)

    def add_files(
        self,
        config: Any,
        files: Mapping[str, bytes | memoryview],
        *,
        experiment: str = "",
        data: xr.Dataset | None = None,
    ) -> Run:
        """The same with files that `pack` made, perhaps elsewhere; without `arrays.nc` among them,
        the data are written here."""
        name = self.name(config, experiment)
        run = Run(name, self.root / name)
        try:
            with self._locked_folder(f".new-{name}-") as path:
                for each, content in files.items():
                    write(f"{path}/{each}", content)
                if "arrays.nc" not in files:
                    write_arrays(data, path / "arrays.nc")
                write_done(path, name, files)
                path.chmod(0o755)
                for each in ("arrays.nc", DONE, "."):  # of the rest, the checksums tell
                    sync(f"{path}/{each}")
                self._take_name(path, run)
                sync(self.root)
                self.forget_failure(name)
                self.checkpoint_of(name).clear()
        except OSError as error:
            raise StoreError(
                f"run {name} could not be stored: {error.strerror or error}"
            ) from error
        return run

    @contextlib.contextmanager
    def _locked_folder(self, prefix: str) -> Iterator[Path]:
        """A hidden folder that is ours while we live; it is removed unless it was renamed."""
        self.root.mkdir(parents=True, exist_ok=True)
        while True:
            path = Path(tempfile.mkdtemp(prefix=prefix, dir=self.root))
            handle = os.open(path, os.O_RDONLY)
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(handle, fcntl.LOCK_EX)
            if path.exists():  # else somebody tidied up before the lock
                break
            os.close(handle)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)
            os.close(handle)

    def _take_name(self, draft: Path, run: Run) -> None:
        for _ in range(100):
            try:
                draft.rename(run.path)
                return
            except OSError:
                if not os.path.lexists(run.path):
                    raise
            if run.damage() is None:
                return  # somebody was faster
            self.remove(run)
        raise StoreError(f"run {run.name} cannot take its name: something keeps making {run.path}")

    def remove(self, run: Run) -> None:
        """In one step for every reader."""
        try:
            with (
                self._locked_folder(f".old-{run.name}-") as gone,
                contextlib.suppress(FileNotFoundError),
            ):
                run.path.rename(gone / "run")
        except OSError as error:
            raise StoreError(
                f"run {run.name} could not be removed: {error.strerror or error}"
            ) from error

    def add_failure(self, config: Any, traceback: str, *, experiment: str = "") -> None:
        """Keep why a config gave nothing; until it gives something."""
        record = json.loads(canonical(config, experiment)) | {"traceback": traceback}
        name = self.name(config, experiment)
        with whole(self._failure(name)) as draft:
            draft.write_text(json.dumps(record, indent=1) + "\n")

    def _failure(self, name: str) -> Path:
        return self.root / ".failed" / f"{name}.json"

    def forget_failure(self, name: str) -> None:
        self._failure(name).unlink(missing_ok=True)

    def failures(self) -> dict[str, dict[str, Any]]:
        """By the name of the run: config and traceback. Damaged records are left out, with a
        warning."""
        found, unreadable = self._failures()
        if unreadable:
            names = ", ".join(unreadable)
            warnings.warn(f"records of failures that cannot be read: {names}", stacklevel=2)
        return found

    def _failures(self) -> tuple[dict[str, dict[str, Any]], list[str]]:
        found, unreadable = {}, []
        for path in sorted((self.root / ".failed").glob("[!.]*.json")):
            try:
                record = json.loads(regular(path))
                kinds = {"experiment": str, "config": dict, "traceback": str}
                if any(type(record.get(key)) is not kind for key, kind in kinds.items()):
                    raise ValueError
                found[path.stem] = record
            except FileNotFoundError:
                continue  # just forgotten
            except (OSError, ValueError, AttributeError):
                unreadable.append(path.stem)
        return found, unreadable

    def checkpoint(self, config: Any, experiment: str = "") -> FileCheckpoint:
        """Where a run of this config may keep its state."""
        return self.checkpoint_of(self.name(config, experiment))

    def checkpoint_of(self, name: str) -> FileCheckpoint:
        return FileCheckpoint(self.root / ".work" / f"{name}.state")

    def check(self) -> Check:
        """Every file of every run, compared with what was written."""
        whole_ones, damaged = [], {}
        for name in self.names():
            wrong = Run(name, self.root / name).damage()
            if wrong is None:
                whole_ones.append(name)
            else:
                damaged[name] = wrong
        failures, unreadable = self._failures()
        left = [path.name for path in self._leftovers()]
        return Check(whole_ones, damaged, sorted(failures), unreadable, left)

    def sweep_up(self) -> int:
        """Remove what killed processes left. Drafts of living writers stay."""
        left = self._leftovers()
        for path in left:
            with status.unlocked(path) as free:
                if free and path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                elif free:
                    path.unlink(missing_ok=True)
        status.remove_dead(self.root)
        return len(left)

    def _leftovers(self) -> list[Path]:
        drafts = [*self.root.glob(".new-*"), *self.root.glob(".old-*")]
        found = [path for path in drafts if not status.is_locked(path)]
        for path in [*self.root.glob(".failed/.*"), *self.root.glob(".work/.*")]:
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > STALE:
                    found.append(path)
        return found

    def unwritable(self) -> OSError | None:
        """Why nothing can be stored here at all, if so: what a run needs is tried."""
        try:
            with self._locked_folder(".new-probe-") as path:
                for each in (*FILES, DONE):
                    write(f"{path}/{each}", bytes(4096))
                    sync(f"{path}/{each}")
        except OSError as error:
            return error
        return None


def is_run(root: Path, name: str) -> bool:
    """A folder with a name such as ours, or with a file that only a run has."""
    path = os.path.join(root, name)
    if os.path.exists(f"{path}/{DONE}"):
        return True
    hashed = len(name) == DIGITS and set(name) <= set("0123456789abcdef")
    return (hashed and os.path.lexists(path)) or os.path.exists(f"{path}/arrays.nc")


def write(path: str, content: bytes | memoryview) -> None:
    """A new file, not synced."""
    with open(path, "xb", buffering=0) as file:
        rest = memoryview(content)
        while rest:
            rest = rest[file.write(rest) :]


def sync(path: str | Path) -> None:
    """To the disk, and not only to its cache."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
