"""Which sweeps are under way in a store, and how far they are.

Each sweep holds a lock on a file of its own for as long as its process lives, so that the rest of
a killed sweep is never taken for one under way.
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

FOLDER = ".sweeps"
EVERY = 0.5  # seconds between two writes


@dataclasses.dataclass(frozen=True)
class SweepStatus:
    """`total` runs were to do at the start, of which `done` are stored and `failed` failed.
    `begun`, `updated`: seconds since 1970."""

    experiment: str
    total: int
    done: int
    failed: int
    begun: float
    updated: float

    @property
    def seconds_left(self) -> float | None:
        """At the pace so far; None before the first run has ended."""
        ended = self.done + self.failed
        if not ended:
            return None
        return (self.updated - self.begun) / ended * (self.total - ended)


class Announcement:
    """The status file of one sweep: a context manager. It is a courtesy to readers: a store where
    it cannot be written is swept all the same."""

    def __init__(self, root: Path, experiment: str, total: int):
        self.folder, self.name = root / FOLDER, uuid.uuid4().hex
        now = time.time()
        self.status = SweepStatus(experiment, total, 0, 0, now, now)
        self.written = 0.0
        self.lock: int | None = None

    def __enter__(self) -> "Announcement":
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            self.lock = os.open(self.folder / f"{self.name}.lock", os.O_CREAT | os.O_RDONLY)
            fcntl.flock(self.lock, fcntl.LOCK_EX)
            self._write()
        return self

    def update(self, done: int, failed: int) -> None:
        self.status = dataclasses.replace(
            self.status, done=done, failed=failed, updated=time.time()
        )
        if time.monotonic() - self.written >= EVERY:
            with contextlib.suppress(OSError):
                self._write()

    def _write(self) -> None:
        draft = self.folder / f".{self.name}"
        draft.write_text(json.dumps(dataclasses.asdict(self.status)))
        draft.replace(self.folder / f"{self.name}.json")
        self.written = time.monotonic()

    def __exit__(self, *_) -> None:
        for leftover in (f".{self.name}", f"{self.name}.json", f"{self.name}.lock"):
            with contextlib.suppress(OSError):
                (self.folder / leftover).unlink(missing_ok=True)
        if self.lock is not None:
            os.close(self.lock)


def under_way(root: Path) -> list[SweepStatus]:
    """The sweeps whose processes live, oldest first. Files that cannot be read are passed over."""
    found = []
    for lock in _locks(root):
        if is_locked(lock):
            with contextlib.suppress(OSError, ValueError, TypeError):
                status = SweepStatus(**json.loads(lock.with_suffix(".json").read_text()))
                status.seconds_left  # noqa: B018 (numbers, or it raises here)
                found.append(status)
    return sorted(found, key=lambda each: each.begun)


def remove_dead(root: Path) -> None:
    """Files of sweeps whose processes are gone."""
    for lock in _locks(root):
        if not is_locked(lock):
            for leftover in (lock.with_suffix(".json"), lock.with_name(f".{lock.stem}"), lock):
                with contextlib.suppress(OSError):
                    leftover.unlink(missing_ok=True)


def _locks(root: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        yield from (root / FOLDER).glob("[!.]*.lock")


def is_locked(path: Path) -> bool:
    """Some process holds a lock on this file or folder."""
    with unlocked(path) as free:
        return not free


@contextlib.contextmanager
def unlocked(path: Path) -> Iterator[bool]:
    """Whether nobody holds a lock on this file or folder; then nobody gets one inside."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        yield True
        return
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = True
        except OSError:  # held, or a file system without locks: then better taken for held
            free = False
        yield free
    finally:
        os.close(handle)
