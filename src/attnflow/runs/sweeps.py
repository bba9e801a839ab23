"""Many configs through one experiment, each into its directory: what is there is not done again."""

import contextlib
import dataclasses
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from attnflow._checks import at_least, choice
from attnflow.runs.jobs import Experiment, Job, Outcome, Place, split, stored, work
from attnflow.runs.progress import Progress
from attnflow.runs.status import Announcement
from attnflow.runs.store import DamagedRun, Store, StoreError

UNWRITTEN = 3  # runs in a row that could not be written: then the sweep stops


class Engine(Protocol):
    def __call__(
        self, jobs: Sequence[Job], experiment: Experiment, store: Store
    ) -> Iterator[list[Outcome]]: ...


@dataclasses.dataclass
class Report:
    """What a sweep did. `failed`: run name to traceback; `redone`: damaged runs and what was wrong
    with them; `stopped`: it was interrupted, and `left` runs are still to do; `unwritten`: how many
    of the last runs in a row could not be written."""

    done: int = 0
    there: int = 0
    left: int = 0
    seconds: float = 0.0
    stopped: bool = False
    failed: dict[str, str] = dataclasses.field(default_factory=dict)
    redone: dict[str, str] = dataclasses.field(default_factory=dict)
    unwritten: int = 0

    def __str__(self) -> str:
        parts = [f"{self.done} runs done in {self.seconds:.1f} s", f"{self.there} were there"]
        parts += [f"{len(self.failed)} failed"] * bool(self.failed)
        parts += [f"{len(self.redone)} damaged ones redone"] * bool(self.redone)
        parts += [f"stopped, {self.left} left: start again to go on"] * self.stopped
        return ", ".join(parts)


class Stopped(BaseException):
    """SIGTERM, or Ctrl-C."""


def sweep(
    configs: Sequence[Any],
    experiment: Experiment,
    store: Store,
    *,
    engine: str = "local",
    workers: int | None = None,
    address: str | None = None,
    fresh: bool = False,
    batched: bool = True,
    progress: bool | None = None,
    each: Callable[[Any, float], None] | None = None,
) -> Report:
    """Do every config that the store does not have.

    engine: "local" (processes of this machine; `workers`, by default one a core), "here" (this
    process, one after the other) or "ray" (`address` of a cluster, or one on this machine). fresh:
    do finished runs again. batched: use the experiment's `batch` where it has one. A config that
    fails is recorded with its traceback (`store.failures()`) and the rest go on; so is one whose
    data cannot be stored. A store that cannot be written at all stops the sweep: StoreError. Ctrl-C
    and SIGTERM end the sweep after what is being written; the next call goes on where it stopped.
    each: called with a config and its seconds when its run is stored.
    """
    choice("engine", engine, ("local", "here", "ray"))
    if workers is not None:
        at_least("workers", workers, 1)
    begun = time.perf_counter()
    report = Report()
    todo = pending(configs, experiment, store, fresh, report)
    jobs = split(todo, experiment, batched)
    report.left = len(todo)
    if not jobs:
        return report
    run = _engine(engine, workers, address)
    store.sweep_up()
    _require_writable(store)
    with (
        Announcement(store.root, experiment.name, len(todo)) as announced,
        Progress(experiment.name, len(todo), progress) as tell,
        _stoppable(),
    ):
        outcomes = run(jobs, experiment, store)
        try:
            for outcome in (each for many in outcomes for each in many):
                kept = _keep(outcome, experiment, store, report)
                tell(len(report.failed))
                announced.update(report.done, len(report.failed))
                if each is not None and kept:
                    each(outcome.config, outcome.seconds)
        except (Stopped, KeyboardInterrupt):
            report.stopped = True
        finally:
            outcomes.close()  # pyright: ignore[reportAttributeAccessIssue]
    report.seconds = time.perf_counter() - begun
    return report


def pending(
    configs: Sequence[Any],
    experiment: Experiment,
    store: Store,
    fresh: bool = False,
    report: Report | None = None,
) -> list[Any]:
    """Configs still to do, once each; damaged runs are removed, and told in the report."""
    report = Report() if report is None else report
    todo: dict[str, Any] = {}
    for config in configs:
        name = store.name(config, experiment.name)
        if name in todo:
            continue
        try:
            found = store.find(config, experiment.name)
        except DamagedRun as damaged:
            report.redone[name] = damaged.wrong
            store.remove(damaged.run)
            found = None
        if found is not None and fresh:
            store.remove(found)
        if found is None or fresh:
            todo[name] = config
        else:
            report.there += 1
    return list(todo.values())


def _engine(name: str, workers: int | None, address: str | None) -> Engine:
    if name == "here":
        return here
    if name == "local":
        from attnflow.runs.local import LocalEngine

        return LocalEngine(workers)
    from attnflow.runs.cluster import RayEngine

    return RayEngine(address, workers)


def _keep(outcome: Outcome, experiment: Experiment, store: Store, report: Report) -> bool:
    """Whether its run is stored; else the failure is."""
    outcome = stored(outcome, experiment, store)
    report.left -= 1
    if outcome.failure is None:
        report.done += 1
        return True
    report.failed[store.name(outcome.config, experiment.name)] = outcome.failure
    _require_writable(store)
    try:
        store.add_failure(outcome.config, outcome.failure, experiment=experiment.name)
    except OSError as error:
        raise _stop(store, error.strerror or str(error)) from error
    report.unwritten = report.unwritten + 1 if outcome.unwritten else 0
    if report.unwritten == UNWRITTEN:
        raise _stop(store, outcome.failure.strip().splitlines()[-1])
    return False


def _require_writable(store: Store) -> None:
    problem = store.unwritable()
    if problem is not None:
        raise _stop(store, problem.strerror or str(problem)) from problem


def _stop(store: Store, why: str) -> StoreError:
    return StoreError(
        f"nothing can be stored in {store.root} ({why}): the sweep stops; finished runs are kept, "
        "and the same call goes on when there is room and permission again"
    )


def here(jobs: Sequence[Job], experiment: Experiment, store: Store) -> Iterator[list[Outcome]]:
    for job in jobs:
        for outcome in work(job, experiment, place_in(store, experiment)):
            yield [outcome]


def place_in(store: Store, experiment: Experiment) -> Place:
    return lambda config: store.checkpoint(config, experiment.name)


@contextlib.contextmanager
def _stoppable():
    """SIGTERM becomes `Stopped` in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_):
        raise Stopped

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a sweep would do: all its runs, those still to do, and the time that one took where some
    are done."""

    total: int
    left: int
    seconds_a_run: float | None

    def __str__(self) -> str:
        text = f"{self.total} runs, {self.total - self.left} done, {self.left} to do"
        if self.seconds_a_run is None or not self.left:
            return text
        whole = self.left * self.seconds_a_run
        return f"{text}; one took {self.seconds_a_run:.2g} s: {whole:.3g} s of one core in all"


def plan(configs: Sequence[Any], experiment: Experiment, store: Store) -> Plan:
    """Counts, and the median time of the runs that are done. Nothing is run or stored."""
    names = {store.name(config, experiment.name): config for config in configs}
    runs = [run for run in map(store.get, names) if run is not None and run.damage() is None]
    seconds = [run.environment["seconds"] for run in runs]
    typical = statistics.median(seconds) if seconds else None
    return Plan(len(names), len(names) - len(runs), typical)
