"""Runs to read."""

import dataclasses

import numpy as np
import xarray as xr


@dataclasses.dataclass(frozen=True)
class Task:
    width: int = 4
    kind: str = "small"


@dataclasses.dataclass(frozen=True)
class Nested:
    task: Task = Task()
    seed: int = 0
    rate: float = 0.1
    flag: bool = False
    sizes: tuple[int, ...] = (1, 2)
    name: str | None = None
    loss: str = "square"  # also the name of a scalar
    run: int = 7
    step: float = 0.5


def add(store, config, experiment="", length=3, **more):
    ticks = np.arange(length)
    data = xr.Dataset({"loss": ("step", 1.0 / (1 + ticks))}, {"step": ticks}).assign(more)
    return store.add(config, data, experiment=experiment)


def names(entries):
    return {entry.name for entry in entries}
