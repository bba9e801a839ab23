"""Compiled programs on disk: what has been compiled once on this machine is not compiled again.

JAX keeps them; here is said where, how many, and under which conditions. Command line, explorer
and tests use it, Python after `attnflow.cache.use()`, and workers if who started them does:
importing attnflow changes no setting of JAX. ATTNFLOW_CACHE in the environment is another place
for the folder `attnflow`, or "off".
"""

import contextlib
import dataclasses
import hashlib
import os
import shutil
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

VARIABLE = "ATTNFLOW_CACHE"
OFF = ("off", "0", "no", "false")
LIMIT = 1 << 30  # bytes; beyond, what was not used for longest goes
SHORTEST = 0.02  # seconds of compiling below which a program is not kept


def folder() -> Path | None:
    """Of this user and machine, or None if nothing is to be kept."""
    given = os.environ.get(VARIABLE, "")
    if given.lower() in OFF:
        return None
    home = given or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / "attnflow" / (os.uname().nodename or "here")


def programs(root: Path) -> Path:
    """Where programs for this processor are: one that has learnt more does not know the others."""
    return root / f"programs-{_processor()}"


def _processor() -> str:
    about = [os.uname().machine]
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        about += [line for line in file if line.startswith(("flags", "Features", "model name"))][:2]
    return hashlib.sha256("".join(about).encode()).hexdigest()[:8]


def environment(root: Path) -> dict[str, str]:
    """For JAX and Equinox, which read it when they are imported."""
    return {
        "JAX_COMPILATION_CACHE_DIR": str(programs(root)),
        "JAX_COMPILATION_CACHE_MAX_SIZE": str(LIMIT),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": str(SHORTEST),
        # A check inside a program calls Python, and such a program cannot be kept. Without, what
        # is wrong becomes NaN, and a flow that is not finite raises all the same.
        "EQX_ON_ERROR": "nan",
    }


def use() -> str | None:
    """Keep the programs of this process and of those it starts; call it before JAX is imported.
    Gives why nothing can be kept, if so."""
    root = folder()
    if root is None:
        return None
    if "jax" in sys.modules:
        raise RuntimeError("attnflow.cache.use() comes too late: JAX is imported already")
    wrong = unusable(programs(root))
    if wrong is None:
        for name, value in environment(root).items():
            os.environ.setdefault(name, value)
        warnings.showwarning = _Listener(programs(root), warnings.showwarning)
    return wrong


class _Listener:
    """Says in one line what JAX would warn of for each program. One that cannot be read it would
    keep for ever, so all are removed: they are only time."""

    def __init__(self, place: Path, other: Any):
        self.place, self.other, self.told = place, other, False

    def __call__(self, message, category, filename, lineno, file=None, line=None) -> None:
        text = str(message)
        if "persistent compilation cache entry" not in text:
            self.other(message, category, filename, lineno, file, line)
            return
        damaged = text.startswith("Error reading")
        if damaged:
            remove_programs(self.place)
        if not self.told:
            self.told = True
            why = text.partition("': ")[2]
            what = (
                "a kept program could not be read and is compiled again"
                if damaged
                else "programs are not kept"
            )
            print(f"attnflow: {what} ({why})".replace("\n", " "), file=sys.stderr)


def remove_programs(place: Path) -> None:
    for path in [*place.glob("*-cache"), *place.glob("*-atime")]:
        with contextlib.suppress(OSError):
            path.unlink()


def unusable(place: Path) -> str | None:
    """Why a folder cannot keep anything; it is made if it is not there."""
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(bytes(4096))
    except OSError as error:
        return f"{place} cannot be written ({error.strerror or error})"
    return None


@dataclasses.dataclass(frozen=True)
class Info:
    """What the cache holds. `folder`: None if it is off."""

    folder: Path | None
    programs: int = 0
    bytes: int = 0
    limit: int = LIMIT


def info() -> Info:
    root = folder()
    if root is None:
        return Info(None)
    files = list(root.rglob("*"))
    kept = sum(path.name.endswith("-cache") for path in files)
    return Info(root, kept, sum(map(_size, files)))


def _size(path: Path) -> int:
    """Of a file that another process may be removing."""
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_size if path.is_file() else 0
    return 0


def clear() -> Info:
    """Remove all that is kept; what was there."""
    before = info()
    if before.folder is not None:
        for each in ("replies", *(path.name for path in before.folder.glob("programs*"))):
            shutil.rmtree(before.folder / each, ignore_errors=True)
    return before
