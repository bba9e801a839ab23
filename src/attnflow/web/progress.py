"""How many runs a store has, looked at again and again for as long as somebody listens."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

EVERY = 0.5  # seconds
QUIET = 15.0  # after so long a sign of life, so that a lost listener is noticed


class Watch:
    """Counts; a run seen once as done costs nothing more to look at."""

    def __init__(self, store: Path):
        self.store = store
        self.done: set[str] = set()

    def look(self) -> dict[str, int]:
        """done and failed runs, runs that keep a checkpoint, and those being written just now."""
        try:
            with os.scandir(self.store) as entries:
                names = {entry.name for entry in entries}
        except OSError:
            names = set()
        plain = {name for name in names if not name.startswith(".")}
        self.done &= plain
        self.done |= {x for x in plain - self.done if (self.store / x / "DONE").exists()}
        return {
            "done": len(self.done),
            "failed": _count(self.store / ".failed", ".json"),
            "running": _count(self.store / ".work", ".npz"),
            "writing": sum(name.startswith(".new-") for name in names),
        }


def _count(folder: Path, ending: str) -> int:
    try:
        names = os.listdir(folder)
    except OSError:
        return 0
    return sum(name.endswith(ending) and not name.startswith(".") for name in names)


async def events(store: Path) -> AsyncIterator[str]:
    """Server-sent events: the counts at once, and then whenever they change."""
    watch, last, silent = Watch(store), None, 0.0
    while True:
        now = await asyncio.to_thread(watch.look)
        if now != last:
            yield f"data: {json.dumps(now)}\n\n"
            last, silent = now, 0.0
        elif silent >= QUIET:
            yield ": still here\n\n"
            silent = 0.0
        await asyncio.sleep(EVERY)
        silent += EVERY
