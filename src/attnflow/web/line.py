"""Who is next: a line in which every client is heard, and long jobs leave room for short ones."""

import asyncio
import dataclasses
import time
from collections.abc import Hashable, Iterable
from typing import Any

SHORT = 3.5  # seconds that a short job takes at most
AGE = 0.1  # seconds of expected work that weigh as much as one of waiting: nobody waits forever


class Busy(Exception):
    """Too many wait already."""


class Superseded(Exception):
    """The client has asked for something newer, before this was begun."""


@dataclasses.dataclass(eq=False)
class Job:
    """`slot`: where a newer job of the same client takes the place of one that still waits; None:
    they are all wanted. `expected`: seconds."""

    name: str
    given: dict[str, Any]
    client: Hashable
    slot: Hashable | None
    expected: float
    answer: asyncio.Future
    arrived: float = dataclasses.field(default_factory=time.monotonic)
    begun: float | None = None
    stopped: bool = False

    @property
    def elapsed(self) -> float:
        return 0.0 if self.begun is None else time.monotonic() - self.begun

    @property
    def is_long(self) -> bool:
        """Expected to be, or found to be."""
        return max(self.expected, self.elapsed) > SHORT


class Line:
    """At most `most` short jobs, and as many long ones, wait; a shorter one takes the place of the
    longest."""

    def __init__(self, most: int):
        self.most = most
        self.jobs: list[Job] = []
        self.served: dict[Hashable, float] = {}  # when a job of the client was last begun

    def add(self, job: Job) -> None:
        for older in list(self.jobs):
            if job.slot is not None and (older.client, older.slot) == (job.client, job.slot):
                self._refuse(older, Superseded())
        rivals = [each for each in self.jobs if each.is_long == job.is_long]
        if len(rivals) >= self.most:
            longest = max(rivals, key=lambda each: each.expected)
            if longest.expected <= job.expected:
                raise Busy
            self._refuse(longest, Busy())
        self.jobs.append(job)

    def _refuse(self, job: Job, why: Exception) -> None:
        self.jobs.remove(job)
        if not job.answer.done():
            job.answer.set_exception(why)

    def remove(self, job: Job) -> bool:
        """Whether it was waiting."""
        if job not in self.jobs:
            return False
        self.jobs.remove(job)
        return True

    def next(self, running: Iterable[Job], hands: int) -> Job | None:
        """The one to begin now, beside those that run; long ones leave one of several hands free.

        What takes least goes first, and each second since the client was last served counts."""
        room = hands == 1 or sum(job.is_long for job in running) < hands - 1
        able = [x for x in self.jobs if not x.answer.done() and (room or not x.is_long)]
        if not able:
            return None
        now = time.monotonic()
        job = min(able, key=lambda job: job.expected - AGE * (now - self._since(job)))
        self.jobs.remove(job)
        waiting = {each.client for each in self.jobs}
        self.served = {who: x for who, x in self.served.items() if who in waiting}
        self.served[job.client] = job.begun = now
        return job

    def _since(self, job: Job) -> float:
        return max(job.arrived, self.served.get(job.client, 0.0))
