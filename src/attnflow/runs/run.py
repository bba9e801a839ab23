"""One stored run: its files, and whether they are what was written."""

import dataclasses
import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import xarray as xr

from attnflow.runs.config import SCHEMA, digest
from attnflow.runs.packing import FILES, read_arrays

OTHER = "it is a copy of another run"
DONE = "DONE"  # the last file of a run to be written: its name, sizes and checksums


@dataclasses.dataclass(frozen=True)
class Run:
    """A folder that holds a run. What is read from it can be trusted once `damage()` is None."""

    name: str
    path: Path

    @property
    def config(self) -> dict[str, Any]:
        """Its fields as plain data."""
        return self.stored["config"]

    @property
    def stored(self) -> dict[str, Any]:
        return json.loads((self.path / "config.json").read_bytes())

    @property
    def environment(self) -> dict[str, Any]:
        return json.loads((self.path / "environment.json").read_bytes())

    @property
    def scalars(self) -> pa.Table:
        return pq.read_table(self.path / "scalars.parquet")

    @property
    def log(self) -> str:
        return (self.path / "log.txt").read_text(encoding="utf-8")

    def data(self) -> xr.Dataset:
        return read_arrays(self.path / "arrays.nc")

    def damage(self) -> str | None:
        """What is wrong with its files, or None; O(bytes)."""
        return self.verify()[2]

    def verify(self, read: bool = True) -> tuple[dict[str, Any], float, str | None]:
        """Its config as stored, the time of its end (seconds since 1970) and what is wrong with it.
        Unless they are read, the sizes of all files but the config are compared."""
        try:
            done, about = _content(f"{self.path}/{DONE}")
            text, _ = _content(f"{self.path}/config.json")
            stored = parse_config(text)
            marks = read_marks(done, self.name)
            for name, mark in marks.items():
                if name == "config.json":
                    _require(name, hashlib.sha256(text).hexdigest() == mark.sha256)
                else:
                    _compare(f"{self.path}/{name}", mark, read)
            if marks["config.json"].size is None and digest(text.decode().strip()) != self.name:
                raise ValueError(OTHER)  # the first edition kept no name in DONE
            return stored, about.st_mtime, None
        except (OSError, ValueError) as error:
            return {}, 0.0, _why(error)


@dataclasses.dataclass(frozen=True)
class Mark:
    """A file's checksum and size; the first edition did not keep sizes."""

    sha256: str
    size: int | None = None


def write_done(folder: Path, name: str) -> None:
    """`DONE` with the marks of all other files."""
    marks = {}
    for each in FILES:
        with (folder / each).open("rb") as file:
            marks[each] = [hashlib.file_digest(file, "sha256").hexdigest(), file.tell()]
    done = {"run": name, "files": marks}
    (folder / DONE).write_text(json.dumps(done, indent=1) + "\n")


def read_marks(content: bytes, name: str) -> dict[str, Mark]:
    """Of every file of the run of this name; a ValueError says what is wrong."""
    try:
        done = json.loads(content)
    except ValueError:
        raise ValueError("DONE is not readable") from None
    if isinstance(done, dict) and "files" in done:
        if done.get("run") != name:
            raise ValueError(OTHER)
        files = done["files"]
    else:
        files = {k: [v, None] for k, v in done.items()} if isinstance(done, dict) else None
    try:
        marks = {each: Mark(*files[each]) for each in FILES}  # pyright: ignore[reportOptionalSubscript]
    except (TypeError, KeyError):
        raise ValueError("DONE does not name every file") from None
    for mark in marks.values():
        if not isinstance(mark.sha256, str) or type(mark.size) not in (int, type(None)):
            raise ValueError("DONE is not readable")
    return marks


def config_of(run: Run) -> dict[str, Any]:
    """Its config.json, parsed; OSError or ValueError if there is none."""
    return parse_config(_content(f"{run.path}/config.json")[0])


def parse_config(content: bytes) -> dict[str, Any]:
    """schema, experiment, type and config."""
    try:
        stored = json.loads(content)
    except ValueError:
        raise ValueError("config.json is not readable") from None
    kinds = {"schema": int, "experiment": str, "type": str, "config": dict}
    if not isinstance(stored, dict) or any(
        type(stored.get(name)) is not kind for name, kind in kinds.items()
    ):
        raise ValueError("config.json is not a config")
    if stored["schema"] > SCHEMA:
        raise ValueError("a newer attnflow stored it")
    return stored


def regular(path: Path) -> bytes:
    """The content of a file that is one: no folder, no link out of the store, no device."""
    return _content(str(path))[0]


def _content(path: str) -> tuple[bytes, os.stat_result]:
    """Its content, and what the system knows of it."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        about = os.fstat(handle)
        _require_file(path, about)
        with open(handle, "rb", buffering=0, closefd=False) as file:
            return file.readall(), about
    finally:
        os.close(handle)


def _require_file(path: str, about: os.stat_result) -> None:
    if not stat.S_ISREG(about.st_mode):
        raise ValueError(f"{os.path.basename(path)} is no file")


def _compare(path: str, mark: "Mark", read: bool) -> None:
    about = os.lstat(path)
    _require_file(path, about)
    same = mark.size in (None, about.st_size)
    if same and read:
        with open(path, "rb") as file:
            same = hashlib.file_digest(file, "sha256").hexdigest() == mark.sha256
    _require(os.path.basename(path), same)


def _require(name: str, same: bool) -> None:
    if not same:
        raise ValueError(f"{name} is not what was written")


def _why(error: Exception) -> str:
    if isinstance(error, FileNotFoundError) and error.filename is not None:
        return f"{Path(error.filename).name} is missing"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{Path(error.filename).name} cannot be read ({error.strerror})"
    return str(error)
