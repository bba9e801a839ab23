"""Experiments that test processes import."""

import dataclasses
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import xarray as xr

from attnflow.runs import Experiment


@dataclasses.dataclass(frozen=True)
class Walk:
    """A random walk of `seed`; `how` makes it misbehave."""

    seed: int = 0
    rate: float = 0.1
    length: int = 20
    seconds: float = 0.0
    how: str = ""


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


WALK = Experiment("walk", walk)
WALKS = Experiment("walk", walk, batch=walks, alike=lambda config: config.length)
