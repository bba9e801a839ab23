"""What one worker does: the configs of a job, each giving a Dataset or a traceback."""

import contextlib
import dataclasses
import inspect
import io
import time
import traceback
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import xarray as xr

from attnflow.runs.checkpoint import Checkpoint
from attnflow.runs.store import Store, StoreError

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

    @property
    def keeps_state(self) -> bool:
        """It continues from checkpoints."""
        return "checkpoint" in inspect.signature(self.run).parameters


@dataclasses.dataclass(frozen=True)
class Job:
    """Configs that one worker does in one go."""

    number: int
    configs: tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Of one config: a traceback, or how long it took and, unless it is stored already, what it
    gave: `data`, or the `files` of its run. unwritten: the disk, not the run, is why it failed."""

    config: Any
    seconds: float
    failure: str | None = None
    data: xr.Dataset | None = None
    files: Mapping[str, bytes] | None = None
    log: str = ""
    unwritten: bool = False


Place = Callable[[Any], Checkpoint | None]  # where a config's run keeps its state


def split(configs: Sequence[Any], experiment: Experiment, batched: bool) -> list[Job]:
    """One job for each config, or for each group of alike ones."""
    if experiment.batch is None or experiment.alike is None or not batched:
        return [Job(number, (config,)) for number, config in enumerate(configs)]
    groups: dict[Hashable, list[Any]] = {}
    for config in configs:
        groups.setdefault(experiment.alike(config), []).append(config)
    parts = [
        tuple(group[i : i + BATCH])
        for group in groups.values()
        for i in range(0, len(group), BATCH)
    ]
    return [Job(number, part) for number, part in enumerate(parts)]


def work(job: Job, experiment: Experiment, place: Place) -> Iterator[Outcome]:
    """Do one job: a batch, or its configs one by one if there is none or it fails."""
    note = ""
    if len(job.configs) > 1 and experiment.batch is not None:
        begun = time.perf_counter()
        try:
            with captured() as log:
                found = list(experiment.batch(job.configs))
            if len(found) != len(job.configs):
                raise ValueError(f"batch gave {len(found)} results for {len(job.configs)} configs")
        except (Exception, SystemExit):  # which of them it was shows when they run alone
            note = f"not in a batch of {len(job.configs)}:\n{traceback.format_exc()}"
        else:
            share = (time.perf_counter() - begun) / len(found)
            for config, data in zip(job.configs, found, strict=True):
                yield _given(config, share, data, log.getvalue())
            return
    for config in job.configs:
        yield _alone(config, experiment, place, note)


def _alone(config: Any, experiment: Experiment, place: Place, note: str) -> Outcome:
    begun = time.perf_counter()
    try:
        with captured() as log:
            if experiment.keeps_state:
                data = experiment.run(config, checkpoint=place(config))
            else:
                data = experiment.run(config)
    except (Exception, SystemExit):
        return Outcome(config, time.perf_counter() - begun, failure=note + traceback.format_exc())
    return _given(config, time.perf_counter() - begun, data, note + log.getvalue())


def _given(config: Any, seconds: float, data: Any, log: str) -> Outcome:
    if data is None:  # it would count as stored
        why = "the experiment returned None: is its `return` missing?\n"
        return Outcome(config, seconds, failure=log + why)
    return Outcome(config, seconds, data=data, log=log)


def stored(outcome: Outcome, experiment: Experiment, store: Store) -> Outcome:
    """The outcome, with its data on disk instead of in it; a failure if they cannot be stored."""
    if outcome.failure is not None or (outcome.data is None and outcome.files is None):
        return outcome
    failure, unwritten = None, False
    config, name = outcome.config, experiment.name
    try:
        if outcome.files is not None:
            store.add_files(config, outcome.files, experiment=name)
        else:
            assert outcome.data is not None
            seconds = outcome.seconds
            store.add(config, outcome.data, experiment=name, log=outcome.log, seconds=seconds)
    except Exception as error:  # also whatever an encoder of somebody's data raises
        failure, unwritten = traceback.format_exc(), isinstance(error, StoreError)
    return dataclasses.replace(outcome, data=None, files=None, failure=failure, unwritten=unwritten)


@contextlib.contextmanager
def captured():
    """What a run prints and warns of."""
    text = io.StringIO()

    def tell(message, category, filename, lineno, file=None, line=None):
        text.write(warnings.formatwarning(message, category, filename, lineno, line))

    with contextlib.redirect_stdout(text), warnings.catch_warnings():
        warnings.showwarning = tell
        yield text
