"""Worker processes for an asynchronous server: bounded in number, in waiting and in time.

A job that overruns loses its process, and another takes its place; nobody else waits for it. So
does one whose client has left. While nobody asks, workers do chores: they import and compile what
will be asked.
"""

import asyncio
import contextlib
import itertools
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from attnflow.web import work
from attnflow.web.line import SHORT, Job, Line
from attnflow.web.work import Reply

Do = Callable[[str, dict[str, Any]], Reply]
MEMORY = 3 << 30  # bytes of a worker beyond which it is replaced, when it has answered
ONE_CORE = {"OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu", "NPROC": "1"}
FIRST_JOBS = 8
RSS_UNIT = 1 if sys.platform == "darwin" else 1024


class Overrun(Exception):
    """The job took longer than it may."""


class Crew:
    """`workers` processes, each doing one job at a time, and a line that is bounded by `waiting`.

    `do(job, given)` is a function of a module. Every worker does all of `chores`, jobs too: the
    first at once, each other when nobody had asked for `idle` seconds; `done(job, given, reply)`
    hears of each. `timed(job, given, seconds)` hears what each job took, or took at least.
    `pinned`: each worker stays on a core of its own, where its threads find each other sooner.
    `grace`: seconds that a job may run whose client has left, as a process that is stopped forgets
    what it has compiled. `displaced`: seconds after which a job that was expected to be short makes
    room for others, and begins anew when there is room for long ones. Used from one event loop,
    between `start` and `stop`."""

    def __init__(
        self,
        workers: int,
        waiting: int,
        seconds: float,
        do: Do = work.do,
        chores: Sequence[tuple[str, dict[str, Any]]] = (),
        done: Callable[[str, dict[str, Any], Reply], None] = lambda job, given, reply: None,
        timed: Callable[[str, dict[str, Any], float], None] = lambda job, given, seconds: None,
        environment: Mapping[str, str] = {},
        idle: float = 0.5,
        pinned: bool = False,
        grace: float = 2.0,
        displaced: float = 10.0,
    ):
        self.size, self.seconds, self.idle = workers, seconds, idle
        self.grace, self.displaced = grace, displaced
        self.chores, self.done, self.timed = chores, done, timed
        self.line = Line(waiting)
        cores = range(workers) if pinned else [None] * workers
        self.hands = [Worker(do, environment, core) for core in cores]
        self.free: list[Worker] = []
        self.running: dict[Job, Worker] = {}
        self.tasks: set[asyncio.Task] = set()
        self.quiet: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self.threads = ThreadPoolExecutor(self.size)
        for hand in self.hands:
            self._renew(hand)

    async def stop(self) -> None:
        if self.quiet is not None:
            self.quiet.cancel()
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        for hand in self.hands:
            hand.end()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.threads.shutdown()

    async def ask(
        self,
        job: str,
        given: dict[str, Any],
        client: Hashable = None,
        slot: Hashable | None = None,
        expected: float = 0.0,
    ) -> Reply:
        """Cancelled, it is as if it had never been asked."""
        answer = asyncio.get_running_loop().create_future()
        asked = Job(job, given, client, slot, expected, answer)
        self.line.add(asked)
        self._dispatch()
        try:
            return await answer
        finally:
            if answer.cancelled() and not self.line.remove(asked):
                self._abandon(asked)

    def _abandon(self, job: Job) -> None:
        """Nobody wants its reply any more; one that is nearly there is let be."""
        if job in self.running:
            loop = asyncio.get_running_loop()
            loop.call_later(max(0.0, self.grace - job.elapsed), self._halt, job)

    def _halt(self, job: Job) -> None:
        if job in self.running:
            job.stopped = True
            self.running[job].kill()
            asyncio.get_running_loop().call_later(0.2, self._halt, job)  # it may not have begun

    def _dispatch(self) -> None:
        """Whoever is next begins, for as long as hands are free."""
        while self.free:
            job = self.line.next(self.running, self.size)
            if job is None:
                break
            hand = self.free.pop()  # the last one used: what it did is warm
            self.running[job] = hand
            self._begin(self._answer(hand, job))
        if self.quiet is not None:
            self.quiet.cancel()
        self.quiet = asyncio.get_running_loop().call_later(self.idle, self._pause)

    def _begin(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def _renew(self, hand: "Worker") -> None:
        """A process that is new has its chores before it, the first at once."""
        hand.chores = deque(self.chores)
        self._begin(self._chore(hand)) if hand.chores else self._release(hand)

    def _release(self, hand: "Worker") -> None:
        self.free.append(hand)
        self._dispatch()

    def _pause(self) -> None:
        """Nobody asked for a while."""
        for hand in self.free if len(self.free) == self.size else ():
            if hand.chores:
                self.free.remove(hand)
                return self._begin(self._chore(hand))
        return None

    async def _chore(self, hand: "Worker") -> None:
        job, given = hand.chores.popleft()
        with contextlib.suppress(Overrun, RuntimeError):  # it is only to be faster later
            self.done(job, given, await self._converse(hand, job, given))
        self._release(hand)

    async def _answer(self, hand: "Worker", job: Job) -> None:
        relief = None
        if not job.is_long and self.size > 1:
            loop = asyncio.get_running_loop()
            relief = loop.call_later(self.displaced, self._displace, job)
        try:
            reply = await self._converse(hand, job.name, job.given)
        except Exception as error:
            self._fail(job, error)
        else:
            if not job.answer.done():
                job.answer.set_result(reply)
        finally:
            if relief is not None:
                relief.cancel()
            self.running.pop(job)
        if hand.process is None:
            self._renew(hand)
        else:
            self._release(hand)

    def _fail(self, job: Job, error: Exception) -> None:
        if job.answer.done():
            return
        if job.stopped:  # displaced: it is known to be long now
            job.expected, job.begun, job.stopped = max(job.elapsed, 2 * SHORT), None, False
            self.line.jobs.append(job)
        else:
            job.answer.set_exception(error)

    def _displace(self, job: Job) -> None:
        """It was taken for a short one and is not: it yields, unless nobody short waits."""
        if job not in self.running:
            return
        if any(not each.is_long for each in self.line.jobs):
            self._halt(job)
        else:
            asyncio.get_running_loop().call_later(self.displaced / 10, self._displace, job)

    async def _converse(self, hand: "Worker", job: str, given: dict[str, Any]) -> Reply:
        loop, begun = asyncio.get_running_loop(), time.monotonic()
        try:
            reply = await loop.run_in_executor(
                self.threads, hand.converse, job, given, self.seconds
            )
        except Exception:
            if time.monotonic() - begun > SHORT:
                self.timed(job, given, time.monotonic() - begun)
            raise
        self.timed(job, given, time.monotonic() - begun)
        return reply


class Worker:
    """A process that is there when it is needed, and again when it was lost."""

    def __init__(self, do: Do, environment: Mapping[str, str], core: int | None = None):
        self.do, self.environment, self.core = do, environment, core
        self.process: Any = None
        self.pipe: Connection | None = None
        self.ended = self.doomed = False
        self.chores: deque[tuple[str, dict[str, Any]]] = deque()

    def converse(self, job: str, given: dict[str, Any], seconds: float) -> Reply:
        if self.doomed:
            self._lose()
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
        process = context.Process(
            target=_work, args=(theirs, self.do, dict(self.environment), self.core), daemon=True
        )
        process.start()
        self.process = process
        theirs.close()
        if self.ended or self.doomed:  # meanwhile
            self.kill()
        return self.pipe

    def _lose(self) -> None:
        if self.process is not None:
            self.kill()
            self.process.join()
        if self.pipe is not None:
            self.pipe.close()
        self.process, self.doomed = None, False

    def kill(self) -> None:
        """From another thread, too: what it does is not wanted."""
        self.doomed, process = True, self.process
        if process is not None:
            with contextlib.suppress(OSError):  # it has no group yet, or has gone
                os.killpg(process.pid, signal.SIGKILL)  # and what it has started
            process.kill()

    def end(self) -> None:
        self.ended = True
        self.kill()


def _work(pipe: Connection, do: Do, environment: dict[str, str], core: int | None) -> None:
    """Jobs in, replies and the memory in use out, until the other end is gone."""
    from attnflow.runs.processes import end_with_parent  # with libraries the server does not need

    end_with_parent()
    os.setsid()  # a group of our own, so that what we start ends with us
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
