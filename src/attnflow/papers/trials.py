"""Trainings that figures and slow rows share: each is a run of a store, and is done once."""

import dataclasses
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from attnflow.runs.store import Store
from attnflow.runs.sweeps import Experiment, sweep

FOLDER = "ATTNFLOW_RUNS"
_known: dict[str, xr.Dataset] = {}
_reused = [0.0]


@dataclasses.dataclass(frozen=True)
class Trials:
    """`grid(config)`: what a figure needs, each to be done by `experiment`."""

    experiment: Experiment
    grid: Callable[[Any], Sequence[Any]]


def collect(experiment: Experiment, configs: Iterable[Any]) -> list[xr.Dataset]:
    """What each config gives, in order. They are trained on all cores, one process each, unless
    this process did so before or they lie in the store that ATTNFLOW_RUNS names, if it is set."""
    configs = list(configs)
    with tempfile.TemporaryDirectory() as scratch:
        store = Store(os.environ.get(FOLDER, scratch))
        names = {store.name(config, experiment.name): config for config in configs}
        _train({k: v for k, v in names.items() if k not in _known}, experiment, store)
    return [_known[store.name(config, experiment.name)] for config in configs]


def _train(wanted: dict[str, Any], experiment: Experiment, store: Store) -> None:
    runs = [run for run in map(store.get, wanted) if run is not None]
    _reused[0] += sum(run.environment["seconds"] for run in runs if run.damage() is None)
    engine = "here" if len(wanted) == 1 else "local"
    report = sweep(list(wanted.values()), experiment, store, engine=engine, progress=False)
    if report.stopped:
        raise KeyboardInterrupt
    for why in report.failed.values():
        raise RuntimeError(why)
    _known.update(zip(wanted, found(experiment, wanted.values(), store), strict=True))


def reused_seconds() -> float:
    """What the trainings that this process found in a store had taken, so far."""
    return _reused[0]


def found(experiment: Experiment, configs: Iterable[Any], store: Store) -> list[xr.Dataset]:
    """The same from a store that has them all."""
    runs = [store.find(config, experiment.name) for config in configs]
    there = [run.data() for run in runs if run is not None]
    if len(there) < len(runs):
        raise RuntimeError(
            f"{len(runs) - len(there)} of {len(runs)} trainings ({experiment.name}) are missing"
        )
    return there


def table(
    axes: Mapping[str, Sequence[Any]],
    found: Sequence[xr.Dataset],
    **measures: Callable[[xr.Dataset], Any],
) -> xr.Dataset:
    """One number a training and measure, over the axes of a grid, the last varying fastest."""
    shape = [len(values) for values in axes.values()]
    columns = {
        name: (tuple(axes), np.reshape([float(measure(each)) for each in found], shape))
        for name, measure in measures.items()
    }
    return xr.Dataset(columns, {name: list(values) for name, values in axes.items()})


def reductions(mine: Any, published: Any, fields: Mapping[str, str]) -> list[str]:
    """In words (word: field), where a config is not what was published."""
    return [
        f"{word} {getattr(mine, name)} (published {getattr(published, name)})"
        for word, name in fields.items()
        if getattr(mine, name) != getattr(published, name)
    ]


def clear(differences: Any) -> float:
    """Of a difference by seed: its mean less twice its spread. Above zero it is clear."""
    return float(np.mean(differences) - 2 * np.std(differences, ddof=1))
