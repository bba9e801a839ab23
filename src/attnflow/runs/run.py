"""One stored run: its files, and whether they are what was written."""

import dataclasses
import hashlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import xarray as xr

from attnflow.runs.config import SCHEMA, digest
from attnflow.runs.packing import FILES, read_arrays

OTHER = "it is a copy of another run"
CONFIG = {"schema": int, "experiment": str, "type": str, "config": dict}  # of config.json
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
        return verify(str(self.path), self.name, read)


def verify(folder: str, run: str, read: bool) -> tuple[dict[str, Any], float, str | None]:
    """As `Run.verify`, of the run of this name in `folder`."""
    try:
        done, about = _content(folder, DONE)
        text, _ = _content(folder, "config.json")
        stored = parse_config(text)
        marks = read_marks(done, run)
        for name, mark in marks.items():
            if name == "config.json":
                _require(name, hashlib.sha256(text).hexdigest() == mark.sha256)
            else:
                _compare(folder, name, mark, read)
        if marks["config.json"].size is None and digest(text.decode().strip()) != run:
            raise ValueError(OTHER)  # the first edition kept no name in DONE
        return stored, about.st_mtime, None
    except (OSError, ValueError) as error:
        return {}, 0.0, _why(error)


class Mark(NamedTuple):
    """A file's checksum and size; the first edition did not keep sizes."""

    sha256: str
    size: int | None = None


def write_done(folder: Path, name: str, files: Mapping[str, bytes | memoryview]) -> None:
    """`DONE` with the marks of all other files; `files`: content of those that are at hand."""
    marks = {each: _mark(folder / each, files.get(each)) for each in FILES}
    done = {"run": name, "files": marks}
    (folder / DONE).write_text(json.dumps(done, indent=1) + "\n")


def _mark(path: Path, content: bytes | memoryview | None) -> Mark:
    if content is not None:
        return Mark(hashlib.sha256(content).hexdigest(), len(content))
    with path.open("rb") as file:
        return Mark(hashlib.file_digest(file, "sha256").hexdigest(), file.tell())


def read_marks(content: bytes, name: str) -> dict[str, Mark]:
    """Of every file of the run of this name; a ValueError says what is wrong."""
    try:
        done = json.loads(content.decode())
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
    for sha256, size in marks.values():
        if type(sha256) is not str or not (size is None or type(size) is int):
            raise ValueError("DONE is not readable")
    return marks


def config_of(run: Run) -> dict[str, Any]:
    """Its config.json, parsed; OSError or ValueError if there is none."""
    return parse_config(_content(str(run.path), "config.json")[0])


def parse_config(content: bytes) -> dict[str, Any]:
    """schema, experiment, type and config."""
    try:
        stored = json.loads(content.decode())
    except ValueError:
        raise ValueError("config.json is not readable") from None
    if not isinstance(stored, dict) or any(
        type(stored.get(name)) is not kind for name, kind in CONFIG.items()
    ):
        raise ValueError("config.json is not a config")
    if stored["schema"] > SCHEMA:
        raise ValueError("a newer attnflow stored it")
    return stored


def regular(path: Path) -> bytes:
    """The content of a file that is one: no folder, no link out of the store, no device."""
    return _content(str(path.parent), path.name)[0]


def _content(folder: str, name: str) -> tuple[bytes, os.stat_result]:
    """Of a file: its bytes, and what the system knows of it."""
    handle = os.open(f"{folder}/{name}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        about = os.fstat(handle)
        _require_file(name, about)
        return os.read(handle, about.st_size), about
    finally:
        os.close(handle)


def _require_file(name: str, about: os.stat_result) -> None:
    if not stat.S_ISREG(about.st_mode):
        raise ValueError(f"{name} is no file")


def _compare(folder: str, name: str, mark: Mark, read: bool) -> None:
    path = f"{folder}/{name}"
    about = os.lstat(path)
    _require_file(name, about)
    same = mark.size in (None, about.st_size)
    if same and read:
        with open(path, "rb") as file:
            same = hashlib.file_digest(file, "sha256").hexdigest() == mark.sha256
    _require(name, same)


def _require(name: str, same: bool) -> None:
    if not same:
        raise ValueError(f"{name} is not what was written")


def _why(error: Exception) -> str:
    if isinstance(error, FileNotFoundError) and error.filename is not None:
        return f"{Path(error.filename).name} is missing"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{Path(error.filename).name} cannot be read ({error.strerror})"
    return str(error)
