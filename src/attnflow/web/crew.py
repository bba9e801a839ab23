"""Worker processes for an asynchronous server: bounded in number, in waiting and in time.

A job that overruns loses its process, and another takes its place; nobody else waits for it. While
nobody asks, workers do chores: they import and compile what will be asked.
"""

import asyncio
import contextlib
import itertools
import multiprocessing
import os
import resource
import signal
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from attnflow.web import work
from attnflow.web.work import Reply

Do = Callable[[str, dict[str, Any]], Reply]
MEMORY = 3 << 30  # bytes of a worker beyond which it is replaced, when it has answered
ONE_CORE = {"OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu", "NPROC": "1"}
FIRST_JOBS = 8
RSS_UNIT = 1 if sys.platform == "darwin" else 1024


class Busy(Exception):
    """Too many wait already."""


class Overrun(Exception):
    """The job took longer than it may."""


class Crew:
    """`workers` processes, each doing one job at a time, and at most `waiting` jobs in line.

    `do(job, given)` is a function of a module. Every worker does all of `chores`, jobs too: the
    first at once, each other after it had nothing to do for `idle` seconds and while no other is
    busy; `done(job, given, reply)` hears of each. `pinned`: each worker stays on a core of its own,
    where its threads find each other sooner. Used from one event loop, between `start` and
    `stop`."""

    def __init__(
        self,
        workers: int,
        waiting: int,
        seconds: float,
        do: Do = work.do,
        chores: Sequence[tuple[str, dict[str, Any]]] = (),
        done: Callable[[str, dict[str, Any], Reply], None] = lambda job, given, reply: None,
        environment: Mapping[str, str] = {},
        idle: float = 0.5,
        pinned: bool = False,
    ):
        self.size, self.waiting, self.seconds, self.idle = workers, waiting, seconds, idle
        self.chores, self.done = chores, done
        self.line: asyncio.Queue = asyncio.Queue()
        self.tasks: list[asyncio.Task] = []
        cores = range(workers) if pinned else [None] * workers
        self.hands = [Worker(do, environment, core) for core in cores]
        self.busy = 0  # workers that do more than wait

    def start(self) -> None:
        self.threads = ThreadPoolExecutor(self.size)
        self.tasks = [asyncio.create_task(self._serve(hand)) for hand in self.hands]

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        for hand in self.hands:
            hand.end()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.threads.shutdown()

    async def ask(self, job: str, **given: Any) -> Reply:
        if self.line.qsize() >= self.waiting:
            raise Busy
        answer = asyncio.get_running_loop().create_future()
        self.line.put_nowait((job, given, answer))
        return await answer

    async def _serve(self, hand: "Worker") -> None:
        chores = deque(self.chores)
        if chores:
            await self._chore(hand, *chores.popleft())
        while True:
            try:
                job = await asyncio.wait_for(self.line.get(), self.idle if chores else None)
            except TimeoutError:
                if not self.busy:
                    await self._chore(hand, *chores.popleft())
            else:
                await self._answer(hand, *job)

    async def _answer(self, hand: "Worker", job: str, given: dict, answer: asyncio.Future) -> None:
        if answer.cancelled():
            return
        try:
            reply = await self._converse(hand, job, given)
        except Exception as error:
            if not answer.done():
                answer.set_exception(error)
        else:
            if not answer.done():
                answer.set_result(reply)

    async def _chore(self, hand: "Worker", job: str, given: dict[str, Any]) -> None:
        with contextlib.suppress(Overrun, RuntimeError):  # it is only to be faster later
            self.done(job, given, await self._converse(hand, job, given))

    async def _converse(self, hand: "Worker", job: str, given: dict[str, Any]) -> Reply:
        loop = asyncio.get_running_loop()
        self.busy += 1
        try:
            return await loop.run_in_executor(self.threads, hand.converse, job, given, self.seconds)
        finally:
            self.busy -= 1


class Worker:
    """A process that is there when it is needed, and again when it was lost."""

    def __init__(self, do: Do, environment: Mapping[str, str], core: int | None = None):
        self.do, self.environment, self.core = do, environment, core
        self.process: Any = None
        self.pipe: Connection | None = None
        self.ended = False

    def converse(self, job: str, given: dict[str, Any], seconds: float) -> Reply:
        pipe = self._begin() if self.process is None else self.pipe
        assert pipe is not None
        try:
            pipe.send((job, given))
            if not pipe.poll(seconds):
                self._lose()
                raise Overrun
            reply, memory = pipe.recv()
        except (EOFError, OSError) as error:
            self._lose()
            raise RuntimeError("the worker died") from error
        if memory > MEMORY:
            self._lose()
        return reply

    def _begin(self) -> Connection:
        if self.ended:
            raise RuntimeError("the server is stopping")
        context = multiprocessing.get_context("spawn")  # JAX does not survive a fork
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(
            target=_work, args=(theirs, self.do, dict(self.environment), self.core), daemon=True
        )
        self.process.start()
        theirs.close()
        return self.pipe

    def _lose(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.join()
        if self.pipe is not None:
            self.pipe.close()

    def end(self) -> None:
        self.ended = True
        if self.process is not None:
            self.process.kill()


def _work(pipe: Connection, do: Do, environment: dict[str, str], core: int | None) -> None:
    """Jobs in, replies and the memory in use out, until the other end is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the server, which ends us
    for name, value in (environment | ONE_CORE).items():
        os.environ.setdefault(name, value)
    with contextlib.suppress(EOFError, OSError):
        for number in itertools.count():
            job, given = pipe.recv()
            if core is not None and number == FIRST_JOBS:
                _stay_on(core)
            reply = do(job, given)
            pipe.send((reply, _memory()))


def _memory() -> int:
    """Bytes in use. (The system's maximum would begin with that of the process we came from.)"""
    try:
        pages = Path("/proc/self/statm").read_text().split()[1]
    except OSError:  # not Linux
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS_UNIT
    return int(pages) * resource.getpagesize()


def _stay_on(core: int) -> None:
    with contextlib.suppress(AttributeError, OSError):  # Linux only
        cores = sorted(os.sched_getaffinity(0))
        for thread in os.listdir("/proc/self/task"):
            os.sched_setaffinity(int(thread), {cores[core % len(cores)]})
