"""What outlives a server, so that the next one answers at once: compiled programs, and its first
replies, which are good until the code changes."""

import contextlib
import hashlib
import importlib.metadata
import os
import platform
import shutil
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
LIBRARIES = ("jax", "jaxlib", "diffrax", "equinox", "optax", "numpy", "scipy")


def default_folder() -> Path:
    """Of this user; by machine, as programs are compiled for its processor."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / "attnflow" / (platform.node() or "here")


class Shelf:
    """Replies by name. A folder that cannot be written keeps nothing, silently: it only saves
    time."""

    def __init__(self, folder: Path):
        self.programs = folder / "programs"
        self.replies = folder / "replies" / fingerprint()
        with contextlib.suppress(OSError):
            for old in self.replies.parent.iterdir():
                if old != self.replies:
                    shutil.rmtree(old, ignore_errors=True)

    def get(self, name: str) -> bytes | None:
        with contextlib.suppress(OSError):
            return (self.replies / name).read_bytes()
        return None

    def put(self, name: str, body: bytes) -> None:
        with contextlib.suppress(OSError):
            self.replies.mkdir(parents=True, exist_ok=True)
            draft = self.replies / f".{name}.{os.getpid()}"
            draft.write_bytes(body)
            draft.replace(self.replies / name)

    def environment(self) -> dict[str, str]:
        """For JAX, which reads it when it is imported."""
        return {
            "JAX_COMPILATION_CACHE_DIR": str(self.programs),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
            # A check inside a program calls Python, and such a program cannot be kept. Without,
            # what is wrong becomes NaN, and a flow that is not finite raises all the same.
            "EQX_ON_ERROR": "nan",
        }


def fingerprint() -> str:
    """Of our code, by size and time of its files, and of the libraries that compute."""
    parts = [f"{name} {importlib.metadata.version(name)}" for name in LIBRARIES]
    for path in sorted(PACKAGE.rglob("*.py")) + sorted(PACKAGE.rglob("*.json")):
        about = path.stat()
        parts.append(f"{path.relative_to(PACKAGE)} {about.st_size} {about.st_mtime_ns}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:20]
