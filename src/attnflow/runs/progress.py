"""How far a sweep is: a line that moves on a terminal, a line every few percent elsewhere."""

import sys
import time

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

EVERY = 0.05  # share of the runs between two lines
PATIENCE = 60.0  # seconds after which a line comes in any case


class Progress:
    def __init__(self, title: str, total: int, wanted: bool | None = None):
        self.title, self.total, self.done = title, total, 0
        self.begun = self.told = time.monotonic()
        self.told_done = 0
        console = Console(stderr=True)
        self.silent = wanted is False
        self.bar = None
        if console.is_terminal and not self.silent:
            columns = [
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[how]}"),
            ]
            self.bar = Bar(*columns, console=console, transient=True)
            self.task = self.bar.add_task(title, total=total, how="")

    def __enter__(self):
        if self.bar:
            self.bar.start()
        return self

    def __exit__(self, *_):
        if self.bar:
            self.bar.stop()

    def __call__(self, failed: int) -> None:
        """One more run is over."""
        self.done += 1
        if self.bar:
            self.bar.update(self.task, completed=self.done, how=self.words(failed))
            return
        now = time.monotonic()
        due = self.done - self.told_done >= EVERY * self.total or now - self.told > PATIENCE
        if not self.silent and (due or self.done == self.total):
            print(f"{self.title}: {self.words(failed)}", file=sys.stderr, flush=True)
            self.told, self.told_done = now, self.done

    def words(self, failed: int) -> str:
        rate = self.done / max(time.monotonic() - self.begun, 1e-9)
        left = (self.total - self.done) / rate
        lost = f", {failed} failed" if failed else ""
        return f"{self.done}/{self.total} runs, {rate:.3g} a second, {left:.0f} s left{lost}"
