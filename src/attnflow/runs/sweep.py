"""Many configs through one experiment, each into its directory: what is there is not done again."""

import contextlib
import dataclasses
import inspect
import io
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Protocol

import xarray as xr

from attnflow._checks import at_least, choice
from attnflow.runs.progress import Progress
from attnflow.runs.store import DamagedRun, Store

BATCH = 64  # configs of one compiled program


@dataclasses.dataclass(frozen=True)
class Experiment:
    """`run(config)` gives a Dataset; with a parameter `checkpoint` it also gets a place for its
    state. `batch(configs)` gives one each, for configs of which `alike` says the same: those that
    differ in a seed, a rate or a scale, and train in one program. All are functions of a module, so
    that other processes find them."""

    name: str
    run: Callable[..., xr.Dataset]
    batch: Callable[[Sequence[Any]], Sequence[xr.Dataset]] | None = None
    alike: Callable[[Any], Hashable] | None = None

    def __post_init__(self):
        if (self.batch is None) != (self.alike is None):
            raise ValueError("an experiment in batches needs both `batch` and `alike`")


@dataclasses.dataclass(frozen=True)
class Job:
    """Configs that one worker does in one go."""

    number: int
    configs: tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Of one config: a traceback, or how long it took and, unless it is stored already, what it
    gave."""

    config: Any
    seconds: float
    failure: str | None = None
    data: xr.Dataset | None = None
    log: str = ""


class Engine(Protocol):
    def __call__(
        self, jobs: Sequence[Job], experiment: Experiment, store: Store
    ) -> Iterator[list[Outcome]]: ...


@dataclasses.dataclass
class Report:
    """What a sweep did. `failed`: run name to traceback; `redone`: damaged runs and what was wrong
    with them; `stopped`: it was interrupted, and `left` runs are still to do."""

    done: int = 0
    there: int = 0
    left: int = 0
    seconds: float = 0.0
    stopped: bool = False
    failed: dict[str, str] = dataclasses.field(default_factory=dict)
    redone: dict[str, str] = dataclasses.field(default_factory=dict)

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
    fails is recorded with its traceback (`store.failures()`) and the rest go on. Ctrl-C and SIGTERM
    end the sweep after what is being written; the next call goes on where it stopped. each: called
    with a config and its seconds when its run is stored.
    """
    choice("engine", engine, ("local", "here", "ray"))
    if workers is not None:
        at_least("workers", workers, 1)
    begun = time.perf_counter()
    report = Report()
    todo = pending(configs, experiment, store, fresh, report)
    jobs = list(_jobs(todo, experiment, batched))
    report.left = len(todo)
    if not jobs:
        return report
    run = _engine(engine, workers, address)
    with Progress(experiment.name, len(todo), progress) as tell, _stoppable():
        outcomes = run(jobs, experiment, store)
        try:
            for outcome in (each for many in outcomes for each in many):
                _keep(outcome, experiment, store, report)
                tell(len(report.failed))
                name = store.name(outcome.config, experiment.name)
                if each is not None and name not in report.failed:
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


def _jobs(configs: Sequence[Any], experiment: Experiment, batched: bool) -> Iterator[Job]:
    if experiment.batch is None or experiment.alike is None or not batched:
        yield from (Job(number, (config,)) for number, config in enumerate(configs))
        return
    groups: dict[Hashable, list[Any]] = {}
    for config in configs:
        groups.setdefault(experiment.alike(config), []).append(config)
    parts = [
        tuple(group[i : i + BATCH])
        for group in groups.values()
        for i in range(0, len(group), BATCH)
    ]
    yield from (Job(number, part) for number, part in enumerate(parts))


def _engine(name: str, workers: int | None, address: str | None) -> Engine:
    if name == "here":
        return here
    if name == "local":
        from attnflow.runs.local import LocalEngine

        return LocalEngine(workers)
    from attnflow.runs.cluster import RayEngine

    return RayEngine(address, workers)


def _keep(outcome: Outcome, experiment: Experiment, store: Store, report: Report) -> None:
    outcome = stored(outcome, experiment, store)
    report.left -= 1
    if outcome.failure is None:
        report.done += 1
    else:
        name = store.name(outcome.config, experiment.name)
        report.failed[name] = outcome.failure
        store.add_failure(outcome.config, outcome.failure, experiment=experiment.name)


def stored(outcome: Outcome, experiment: Experiment, store: Store) -> Outcome:
    """The outcome, with its data on disk instead of in it; a failure if they are no such data."""
    if outcome.data is None:
        return outcome
    failure = None
    try:
        store.add(
            outcome.config,
            outcome.data,
            experiment=experiment.name,
            log=outcome.log,
            seconds=outcome.seconds,
        )
    except (ValueError, AttributeError):
        failure = traceback.format_exc()
    return dataclasses.replace(outcome, data=None, failure=failure)


def here(jobs: Sequence[Job], experiment: Experiment, store: Store) -> Iterator[list[Outcome]]:
    for job in jobs:
        yield work(job, experiment, store)


def work(job: Job, experiment: Experiment, store: Store | None) -> list[Outcome]:
    """Do one job: a batch, or its configs one by one if there is none or it fails."""
    note = ""
    if len(job.configs) > 1 and experiment.batch is not None:
        begun = time.perf_counter()
        try:
            with captured() as log:
                found = list(experiment.batch(job.configs))
            if len(found) != len(job.configs):
                raise ValueError(f"batch gave {len(found)} results for {len(job.configs)} configs")
            share = (time.perf_counter() - begun) / len(found)
            pairs = zip(job.configs, found, strict=True)
            return [Outcome(config, share, data=data, log=log.getvalue()) for config, data in pairs]
        except Exception:  # which of them it was shows when they run alone
            note = f"not in a batch of {len(job.configs)}:\n{traceback.format_exc()}"
    return [_alone(config, experiment, store, note) for config in job.configs]


def _alone(config: Any, experiment: Experiment, store: Store | None, note: str) -> Outcome:
    begun = time.perf_counter()
    try:
        with captured() as log:
            if store is not None and "checkpoint" in inspect.signature(experiment.run).parameters:
                place = store.checkpoint(config, experiment.name)
                data = experiment.run(config, checkpoint=place)
            else:
                data = experiment.run(config)
        return Outcome(config, time.perf_counter() - begun, data=data, log=note + log.getvalue())
    except Exception:
        return Outcome(config, time.perf_counter() - begun, failure=note + traceback.format_exc())


@contextlib.contextmanager
def captured():
    """What a run prints and warns of."""
    text = io.StringIO()

    def tell(message, category, filename, lineno, file=None, line=None):
        text.write(warnings.formatwarning(message, category, filename, lineno, line))

    with contextlib.redirect_stdout(text), warnings.catch_warnings():
        warnings.showwarning = tell
        yield text


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
    """What a sweep would do: all its runs, those still to do, and the time of one of them."""

    total: int
    left: int
    seconds_a_run: float | None

    def __str__(self) -> str:
        text = f"{self.total} runs, {self.total - self.left} done, {self.left} to do"
        if self.seconds_a_run is None:
            return text
        whole = self.left * self.seconds_a_run
        return f"{text}; one took {self.seconds_a_run:.2g} s: {whole:.3g} s of one core in all"


def plan(configs: Sequence[Any], experiment: Experiment, store: Store) -> Plan:
    """Counts, and the time of the first run that is to do; nothing is stored."""
    names = {store.name(config, experiment.name): config for config in configs}
    left = [
        config
        for name, config in names.items()
        if (run := store.get(name)) is None or run.damage() is not None
    ]
    if not left:
        return Plan(len(names), 0, None)
    begun = time.perf_counter()
    experiment.run(left[0])
    return Plan(len(names), len(left), time.perf_counter() - begun)
