"""The state of a long run on disk: arrays by name, the last whole save or nothing."""

import dataclasses
import hashlib
import time
from collections.abc import Mapping
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from attnflow.runs.files import whole


@dataclasses.dataclass
class Checkpoint:
    """`save` at most every `every` seconds, `load` what was saved last (None: nothing, or nothing
    that can be trusted)."""

    path: Path
    every: float = 30.0
    saved: float = dataclasses.field(default_factory=time.monotonic)

    def due(self) -> bool:
        return time.monotonic() - self.saved >= self.every

    def save(self, state: Mapping[str, np.ndarray]) -> None:
        arrays = {name: np.asarray(x) for name, x in state.items()}
        with whole(self.path) as draft, draft.open("wb") as file:
            np.savez(file, **arrays, mark=np.array(_mark(arrays)))  # pyright: ignore[reportArgumentType]
        self.saved = time.monotonic()

    def load(self) -> dict[str, np.ndarray] | None:
        try:
            with self.path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
                state = {name: stored[name] for name in stored.files}
        except (OSError, ValueError, EOFError, KeyError, BadZipFile):
            return None
        mark = str(state.pop("mark", ""))
        return state if mark == _mark(state) else None

    def clear(self) -> None:
        self.path.unlink(missing_ok=True)


def _mark(arrays: Mapping[str, np.ndarray]) -> str:
    sums = hashlib.sha256()
    for name in sorted(arrays):
        sums.update(name.encode() + str(arrays[name].dtype).encode())
        sums.update(np.ascontiguousarray(arrays[name]).tobytes())
    return sums.hexdigest()
