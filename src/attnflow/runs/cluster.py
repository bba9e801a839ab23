"""A Ray cluster: results and checkpoints travel back to this process, which writes them.

Small jobs travel in batches of about BATCH_SECONDS of work. A run that keeps checkpoints sends each
of them to a mailbox beside the driver (every 30 s, `Checkpoint.every`), and the driver moves them
to its store every COLLECT_SECONDS: a lost node costs a run at most that much, and so does a killed
driver.
"""

import contextlib
import dataclasses
import importlib
import logging
import os
import signal
import socket
import tempfile
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from attnflow.runs.checkpoint import EVERY, packed, unpacked
from attnflow.runs.jobs import Experiment, Job, Outcome, stored, work
from attnflow.runs.packing import pack, write_arrays
from attnflow.runs.store import Store

LOSSES = 5  # after so many losses of its node or process a job has failed
AHEAD = 2  # batches in flight for each core
BATCH_SECONDS = 0.5  # of work that travels together
LARGEST_BATCH = 200
COLLECT_SECONDS = 10.0
WRITERS = 4


class RayEngine:
    """`address`: of a running cluster ("auto": the one of this machine); None starts one of
    `workers` cores here, for this sweep. No telemetry and no dashboard."""

    def __init__(self, address: str | None = None, workers: int | None = None):
        self.address, self.workers = address, workers

    def __call__(
        self, jobs: Sequence[Job], experiment: Experiment, store: Store
    ) -> Iterator[list[Outcome]]:
        ray = _ray()
        begun = not ray.is_initialized()
        if begun:
            self._connect(ray)
        try:
            with ThreadPoolExecutor(WRITERS) as writers:  # they wait for the disk, mostly
                for outcomes in Sweep(ray, experiment, store).run(jobs):
                    yield list(writers.map(lambda x: stored(x, experiment, store), outcomes))
        finally:
            if begun:
                ray.shutdown()

    def _connect(self, ray: Any) -> None:
        quiet = {"logging_level": logging.ERROR, "log_to_driver": False}
        on_sigterm = signal.getsignal(signal.SIGTERM)
        try:
            if self.address is None:
                ray.init(num_cpus=self.workers, include_dashboard=False, **quiet)
            else:
                _knock(self.address)
                ray.init(address=self.address, **quiet)
        except ConnectionError as error:
            raise ValueError(f"address: no Ray cluster answers at {self.address!r}") from error
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, on_sigterm)  # Ray sets its own, which leaves at once


class Sweep:
    """The driver's side: which jobs wait, which are under way, and what they left behind."""

    def __init__(self, ray: Any, experiment: Experiment, store: Store):
        self.ray, self.store = ray, store
        self.task = ray.remote(max_retries=0, num_cpus=1)(perform)
        self.experiment = ray.put(experiment)
        self.name, self.keeps_state = experiment.name, experiment.keeps_state
        self.mailbox = self._mailbox() if self.keeps_state else None
        self.pace = Pace()

    def _mailbox(self) -> Any:
        """On the driver's own node if it can be: the one that is not lost before the driver."""
        node = self.ray.get_runtime_context().get_node_id()
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        beside = strategies.NodeAffinitySchedulingStrategy(node, soft=True)
        actor = self.ray.remote(num_cpus=0, max_restarts=-1)(Mailbox)
        return actor.options(scheduling_strategy=beside).remote()

    def run(self, jobs: Sequence[Job]) -> Iterator[list[Outcome]]:
        ray, waiting, flying = self.ray, deque(jobs), {}
        losses = dict.fromkeys((job.number for job in jobs), 0)
        most = AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))
        while waiting or flying:
            while waiting and len(flying) < most:
                batch = self._next_batch(waiting, losses)
                flying[self._send(batch)] = batch
            ready, _ = ray.wait(list(flying), num_returns=1, timeout=COLLECT_SECONDS)
            self._collect()
            for reference in ready:
                batch = flying.pop(reference)
                try:
                    outcomes = ray.get(reference)
                except ray.exceptions.RayError:
                    yield from self._lost(batch, waiting, losses, traceback.format_exc())
                    continue
                self.pace.add(len(batch), sum(each.seconds for each in outcomes))
                yield outcomes

    def _next_batch(self, waiting: deque[Job], losses: Mapping[int, int]) -> list[Job]:
        """A job that was lost goes alone: it may be what kills its process."""
        batch = [waiting.popleft()]
        while waiting and len(batch) < self.pace.batch():
            if losses[batch[0].number] or losses[waiting[0].number]:
                break
            batch.append(waiting.popleft())
        return batch

    def _send(self, batch: list[Job]) -> Any:
        states = {}
        if self.keeps_state:
            for config in (config for job in batch for config in job.configs):
                name = self.store.name(config, self.name)
                states[name] = self.store.checkpoint(config, self.name).read()
        names = [[self.store.name(x, self.name) for x in job.configs] for job in batch]
        return self.task.remote(batch, names, self.experiment, states, self.mailbox)

    def _collect(self) -> None:
        """Checkpoints from the mailbox into the store."""
        if self.mailbox is None:
            return
        try:
            states = self.ray.get(self.mailbox.take.remote(), timeout=COLLECT_SECONDS)
        except self.ray.exceptions.RayError:
            return  # it is being restarted: the next checkpoints come
        for name, state in states.items():
            with contextlib.suppress(OSError):  # a full disk is told when a run is to be stored
                self.store.checkpoint_of(name).write(state)

    def _lost(
        self, batch: list[Job], waiting: deque[Job], losses: dict[int, int], why: str
    ) -> Iterator[list[Outcome]]:
        for job in reversed(batch):
            losses[job.number] += 1
            if losses[job.number] < LOSSES:
                waiting.appendleft(job)
            else:
                yield [Outcome(config, 0.0, failure=why) for config in job.configs]


class Pace:
    """How many jobs make a batch: as many as took BATCH_SECONDS of late."""

    def __init__(self):
        self.seconds_a_job: float | None = None

    def add(self, jobs: int, seconds: float) -> None:
        new = seconds / jobs
        old = self.seconds_a_job
        self.seconds_a_job = new if old is None else 0.7 * old + 0.3 * new

    def batch(self) -> int:
        if self.seconds_a_job is None:
            return 1
        return int(min(LARGEST_BATCH, max(1, BATCH_SECONDS / max(self.seconds_a_job, 1e-9))))


class Mailbox:
    """An actor: the newest checkpoint of every run that the driver has not taken yet."""

    def __init__(self):
        self.states: dict[str, bytes] = {}

    def put(self, name: str, state: bytes) -> None:
        self.states[name] = state

    def take(self) -> dict[str, bytes]:
        taken, self.states = self.states, {}
        return taken


@dataclasses.dataclass
class MailedCheckpoint:
    """The checkpoint of a run on another machine: `save` returns when the mailbox has it."""

    name: str
    state: bytes
    mailbox: Any
    every: float = EVERY
    saved: float = dataclasses.field(default_factory=time.monotonic)

    def due(self) -> bool:
        return time.monotonic() - self.saved >= self.every

    def save(self, state: Mapping[str, np.ndarray]) -> None:
        self.state = packed(state)
        _ray().get(self.mailbox.put.remote(self.name, self.state))
        self.saved = time.monotonic()

    def load(self) -> dict[str, np.ndarray] | None:
        return unpacked(self.state)


def perform(
    batch: list[Job],
    names: list[list[str]],
    experiment: Experiment,
    states: Mapping[str, bytes],
    mailbox: Any,
) -> list[Outcome]:
    """On the cluster: the jobs of a batch, each run as the files that the driver will write."""
    done = []
    for job, called in zip(batch, names, strict=True):
        by_config = {id(config): name for config, name in zip(job.configs, called, strict=True)}

        def place(config: Any, by_config: dict[int, str] = by_config) -> MailedCheckpoint:
            name = by_config[id(config)]
            return MailedCheckpoint(name, states.get(name, b""), mailbox)

        done += [as_files(each, experiment) for each in work(job, experiment, place)]
    return done


def as_files(outcome: Outcome, experiment: Experiment) -> Outcome:
    """The outcome with the files of its run instead of its data; a failure if there can be none."""
    if outcome.failure is not None:
        return outcome
    try:
        config, data, log, seconds = outcome.config, outcome.data, outcome.log, outcome.seconds
        files = pack(config, data, experiment.name, log, seconds)
        if "arrays.nc" not in files:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "arrays.nc"
                write_arrays(data, path)
                files |= {path.name: path.read_bytes()}
    except Exception:  # whatever an encoder of somebody's data raises
        return dataclasses.replace(outcome, data=None, failure=traceback.format_exc())
    return dataclasses.replace(
        outcome, data=None, files={name: bytes(content) for name, content in files.items()}
    )


def _knock(address: str) -> None:
    """Ray itself would wait for minutes at a closed door."""
    host, _, port = address.rpartition(":")
    if not port.isdigit():  # auto, local, ray://…
        return
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError as error:
        raise ConnectionError(str(error)) from error


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise ValueError("engine ray needs Ray: pip install 'attnflow[ray]'") from error
