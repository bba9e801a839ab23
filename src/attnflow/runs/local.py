"""Processes of this machine, each with its share of the cores; one that dies is replaced."""

import contextlib
import dataclasses
import multiprocessing
import os
import pickle
import signal
from collections import deque
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from attnflow.runs.jobs import Experiment, Job, Outcome, stored, work
from attnflow.runs.processes import deaf_children, end_with_parent
from attnflow.runs.store import Store
from attnflow.runs.sweeps import place_in

DEATHS = 3  # after so many deaths of its worker a job has failed
READY = None  # the first message of a worker
GRACE = 20.0  # seconds to finish a write when the sweep is stopped


@dataclasses.dataclass
class Worker:
    process: Any
    pipe: Connection
    job: Job | None = None
    started: bool = False


class LocalEngine:
    """`workers` processes, by default one a core, and no more than the memory holds if configs say
    how much they need (`memory`, bytes). Workers write their runs themselves."""

    def __init__(self, workers: int | None = None):
        self.workers = workers

    def __call__(
        self, jobs: Sequence[Job], experiment: Experiment, store: Store
    ) -> Iterator[list[Outcome]]:
        _check_pickles(experiment, jobs[0])
        waiting, deaths = deque(jobs), dict.fromkeys((job.number for job in jobs), 0)
        count = min(self._count(jobs), len(jobs))
        crew = [self._hire(count, experiment, store) for _ in range(count)]
        left = len(jobs)
        try:
            while left:
                for worker in crew:
                    if worker.job is None and waiting:
                        self._give(worker, waiting.popleft())
                for worker in self._ready(crew):
                    try:
                        outcomes = worker.pipe.recv()
                    except (EOFError, OSError):
                        job = worker.job
                        _check_started(worker)
                        crew[crew.index(worker)] = self._hire(count, experiment, store)
                        if job is None:
                            continue
                        deaths[job.number] += 1
                        if deaths[job.number] < DEATHS:
                            waiting.appendleft(job)
                            continue
                        worker.process.join(GRACE)
                        outcomes = [_died(config, worker.process) for config in job.configs]
                    if outcomes is READY:
                        worker.started = True
                        continue
                    worker.job = None
                    left -= 1
                    yield outcomes
        finally:
            _dismiss(crew)

    def _count(self, jobs: Sequence[Job]) -> int:
        wanted = self.workers or os.cpu_count() or 1
        needs = max((getattr(x, "memory", 0) for job in jobs for x in job.configs), default=0)
        if not needs:
            return wanted
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return max(1, min(wanted, int(free // needs)))

    def _hire(self, count: int, experiment: Experiment, store: Store) -> Worker:
        context = multiprocessing.get_context("spawn")  # JAX does not survive a fork
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, experiment, store), daemon=True)
        with _threads((os.cpu_count() or 1) // count or 1), deaf_children():
            process.start()
        theirs.close()
        return Worker(process, ours)

    def _give(self, worker: Worker, job: Job) -> None:
        worker.job = job
        with contextlib.suppress(OSError):  # it is dead: the next look finds out
            worker.pipe.send(job)

    def _ready(self, crew: list[Worker]) -> list[Worker]:
        ready = wait([worker.pipe for worker in crew])
        return [worker for worker in crew if worker.pipe in ready]


def _check_pickles(experiment: Experiment, job: Job) -> None:
    try:
        pickle.dumps((experiment, job))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(
            f"experiment {experiment.name!r} cannot be sent to other processes ({error}): define "
            "its functions and its config at the top of a module, or use engine='here'"
        ) from None


def _check_started(worker: Worker) -> None:
    if not worker.started:
        worker.process.join(GRACE)
        raise RuntimeError(
            f"a worker could not start (exit status {worker.process.exitcode}; its error is "
            "above): workers import the module of the experiment, so a script must start its sweep "
            'under if __name__ == "__main__":'
        )


def _died(config: Any, process: Any) -> Outcome:
    code = process.exitcode
    how = f"signal {-code}" if code is not None and code < 0 else f"exit status {code}"
    return Outcome(config, 0.0, failure=f"its process died {DEATHS} times, last of {how}")


def _dismiss(crew: list[Worker]) -> None:
    """Idle workers leave at once; one that writes finishes that."""
    for worker in crew:
        with contextlib.suppress(OSError):
            worker.process.terminate()
    for worker in crew:
        worker.process.join(GRACE)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
        worker.pipe.close()


@contextlib.contextmanager
def _threads(count: int):
    """What a new process inherits, so that all together have as many threads as cores; a lower
    OMP_NUM_THREADS stays. Threads that wait sleep: where others are busy too, spinning ones make a
    PyTorch step several times slower."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    count = min(count, int(given)) if given.isdigit() and int(given) else count
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NPROC", "PJRT_NPROC")
    wanted: dict[str, str] = {name: str(count) for name in names}
    wanted["OMP_WAIT_POLICY"] = "passive"
    if count == 1:
        flags = os.environ.get("XLA_FLAGS", "")
        wanted["XLA_FLAGS"] = f"{flags} --xla_cpu_multi_thread_eigen=false".strip()
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value


def _serve(pipe: Connection, experiment: Experiment, store: Store) -> None:
    """A worker: jobs in, outcomes out, until the other end is gone."""
    state = {"writing": False, "leave": False}

    def stop(*_):
        state["leave"] = True
        if not state["writing"]:
            os._exit(0)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the driver, which tells us
    end_with_parent()
    place = place_in(store, experiment)
    with contextlib.suppress(EOFError, OSError):
        pipe.send(READY)
        while True:
            answer = []
            for outcome in work(pipe.recv(), experiment, place):
                state["writing"] = True
                answer.append(stored(outcome, experiment, store))
                state["writing"] = False
                if state["leave"]:
                    return
            pipe.send(answer)
