"""Experiments that test processes import."""

import dataclasses
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optax
import xarray as xr

import attnflow as af
from attnflow.runs import Checkpoint, Experiment


@dataclasses.dataclass(frozen=True)
class Walk:
    """A random walk of `seed`; `how` makes it misbehave."""

    seed: int = 0
    rate: float = 0.1
    length: int = 20
    seconds: float = 0.0
    how: str = ""


ODD: dict[str, Callable[[], Any]] = {
    "complex": lambda: xr.Dataset({"z": 1j}),
    "nothing": lambda: None,
    "a number": lambda: 5.0,
    "attribute None": lambda: xr.Dataset({"x": 1.0}, attrs={"why": None}),
    "attribute dict": lambda: xr.Dataset({"x": 1.0}, attrs={"why": {"a": 1}}),
    "name 3": lambda: xr.Dataset({3: ("step", [1.0])}),
    "exit": lambda: sys.exit(3),
}


def walk(config: Walk) -> xr.Dataset:
    if config.how == "raise":
        raise ArithmeticError(f"seed {config.seed} cannot be done")
    if config.how == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if config.how.startswith("die once in "):
        mark = Path(config.how.removeprefix("die once in ")) / f"{config.seed}"
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    if config.how in ODD:
        return ODD[config.how]()
    time.sleep(config.seconds)
    rng = np.random.default_rng(config.seed)
    path = config.rate * rng.normal(size=(config.length, 3)).cumsum(axis=0)
    print(f"walked {config.length} steps")
    return xr.Dataset(
        {"loss": ("step", np.sum(path**2, axis=1)), "path": (("step", "axis"), path)},
        {"step": np.arange(config.length)},
    )


def walks(configs: Sequence[Walk]) -> list[xr.Dataset]:
    if any(config.how for config in configs):
        raise ArithmeticError("not in a batch")
    return [walk(config).assign_attrs(batch=len(configs)) for config in configs]


@dataclasses.dataclass(frozen=True)
class Training:
    rate: float = 0.05
    steps: int = 400
    stop_after: int = 0


def train(config: Training, checkpoint=None) -> xr.Dataset:
    """Adam on a small model; its process is gone after `stop_after` saves, if there was none."""
    model = af.ValueSoftmax(projections=(0.3, 0.1, -0.2))
    if checkpoint is not None:
        checkpoint.every = 0.0
        if config.stop_after and checkpoint.load() is None:
            checkpoint = Deadly(checkpoint, config.stop_after)
    optimizer = optax.adam(config.rate)
    return af.descend(model, config.steps, optimizer, record=41, checkpoint=checkpoint)


@dataclasses.dataclass
class Deadly:
    inner: Checkpoint
    left: int

    def due(self) -> bool:
        return True

    def load(self):
        return self.inner.load()

    def save(self, state) -> None:
        self.inner.save(state)
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def train_many(configs: Sequence[Training]) -> list[xr.Dataset]:
    """Every rate in one compiled program."""
    model = af.ValueSoftmax(projections=(0.3, 0.1, -0.2))
    rates = {"learning_rate": [config.rate for config in configs]}
    many = af.descend(model, configs[0].steps, optax.adam, tuned=rates, record=41)
    return [many.isel(run=i, drop=True) for i in range(len(configs))]


@dataclasses.dataclass(frozen=True)
class Long:
    """`steps` of `pause` seconds; its process writes its number into the folder `mark`."""

    mark: str = ""
    steps: int = 60
    pause: float = 0.1


def long_run(config: Long, checkpoint=None) -> xr.Dataset:
    """Says at which step it began: 0, or where a checkpoint was."""
    (Path(config.mark) / str(os.getpid())).touch()
    assert checkpoint is not None
    checkpoint.every = 0.2
    state = checkpoint.load()
    began = 0 if state is None else int(state["step"])
    for step in range(began, config.steps):
        time.sleep(config.pause)
        if checkpoint.due():
            checkpoint.save({"step": np.array(step + 1)})
    return xr.Dataset({"began": began})


LONG = Experiment("long", long_run)
TRAIN = Experiment("train", train)
TRAIN_MANY = Experiment("train", train, batch=train_many, alike=lambda config: config.steps)
WALK = Experiment("walk", walk)
WALKS = Experiment("walk", walk, batch=walks, alike=lambda config: config.length)
