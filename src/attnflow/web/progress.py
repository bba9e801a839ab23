"""How many runs a store has and how far its sweeps are, looked at again while somebody listens."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

EVERY = 0.5  # seconds
QUIET = 15.0  # after so long a sign of life, so that a lost listener is noticed


class Watch:
    """Counts; a run seen once as done costs nothing more to look at."""

    def __init__(self, store: Path):
        self.store = store
        self.done: set[str] = set()

    def look(self) -> dict[str, Any]:
        """Runs that are done and that failed, and how far the sweeps are that are under way."""
        from attnflow.runs.status import under_way  # with libraries the server does not need

        try:
            with os.scandir(self.store) as entries:
                names = {entry.name for entry in entries if not entry.name.startswith(".")}
        except OSError:
            names = set()
        self.done &= names
        self.done |= {x for x in names - self.done if (self.store / x / "DONE").exists()}
        return {
            "done": len(self.done),
            "failed": _failures(self.store / ".failed"),
            "sweeps": [_told(sweep) for sweep in under_way(self.store)],
        }


def _told(sweep: Any) -> dict[str, Any]:
    seconds = sweep.seconds_left
    return {
        "experiment": sweep.experiment,
        "total": sweep.total,
        "done": sweep.done,
        "failed": sweep.failed,
        "seconds_left": None if seconds is None else round(seconds),
    }


def _failures(folder: Path) -> int:
    try:
        names = os.listdir(folder)
    except OSError:
        return 0
    return sum(name.endswith(".json") and not name.startswith(".") for name in names)


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
