"""A Ray cluster: results travel back to this process, which writes them."""

import importlib
import logging
import os
import signal
import socket
import threading
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from attnflow.runs.store import Store
from attnflow.runs.sweep import Experiment, Job, Outcome, work

RETRIES = 5  # of a task whose node or process is lost
AHEAD = 4  # tasks in flight for each core


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
            yield from self._run(ray, jobs, experiment)
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

    def _run(
        self, ray: Any, jobs: Sequence[Job], experiment: Experiment
    ) -> Iterator[list[Outcome]]:
        task = ray.remote(max_retries=RETRIES, num_cpus=1)(work)
        waiting, flying = deque(jobs), {}
        most = AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))
        while waiting or flying:
            while waiting and len(flying) < most:
                job = waiting.popleft()
                flying[task.remote(job, experiment, None)] = job
            ready, _ = ray.wait(list(flying), num_returns=1)
            for reference in ready:
                job = flying.pop(reference)
                try:
                    yield ray.get(reference)
                except ray.exceptions.RayError:
                    why = traceback.format_exc()
                    yield [Outcome(config, 0.0, failure=why) for config in job.configs]


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
