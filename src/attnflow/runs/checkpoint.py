"""The state of a long run: arrays by name, the last whole save or nothing."""

import dataclasses
import hashlib
import io
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np

from attnflow.runs.files import whole

EVERY = 30.0  # seconds between two saves
MARK = 64  # bytes of the checksum in front


class Checkpoint(Protocol):
    """What an experiment sees: `due` every `every` seconds, `save` then, `load` at the start."""

    every: float

    def due(self) -> bool: ...
    def save(self, state: Mapping[str, np.ndarray]) -> None: ...
    def load(self) -> dict[str, np.ndarray] | None: ...


@dataclasses.dataclass
class FileCheckpoint:
    """A checkpoint in a file. `load` gives None for nothing, and for what cannot be trusted."""

    path: Path
    every: float = EVERY
    saved: float = dataclasses.field(default_factory=time.monotonic)

    def due(self) -> bool:
        return time.monotonic() - self.saved >= self.every

    def save(self, state: Mapping[str, np.ndarray]) -> None:
        self.write(packed(state))
        self.saved = time.monotonic()

    def load(self) -> dict[str, np.ndarray] | None:
        return unpacked(self.read())

    def write(self, content: bytes) -> None:
        with whole(self.path) as draft:
            draft.write_bytes(content)

    def read(self) -> bytes:
        """Empty if there is none."""
        try:
            return self.path.read_bytes()
        except OSError:
            return b""

    def clear(self) -> None:
        self.path.unlink(missing_ok=True)


def packed(state: Mapping[str, np.ndarray]) -> bytes:
    """A checksum, then the arrays as .npz."""
    buffer = io.BytesIO()
    np.savez(buffer, **{name: np.asarray(x) for name, x in state.items()})  # pyright: ignore[reportArgumentType]
    content = buffer.getvalue()
    return hashlib.sha256(content).hexdigest().encode() + content


def unpacked(content: bytes) -> dict[str, np.ndarray] | None:
    """None unless the checksum holds: nothing else is parsed."""
    mark, arrays = content[:MARK], content[MARK:]
    if hashlib.sha256(arrays).hexdigest().encode() != mark:
        return None
    with np.load(io.BytesIO(arrays), allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}
