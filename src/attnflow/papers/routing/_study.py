"""Schedules on the sticky chain: rates and schedules in one compiled descent, seeds on threads.

The document says: T = 2,000, 8 symbols, self-transition 0.3, causal, values at ten times the rate.
It leaves open, and we take: other transitions even, no positions, one-hot tokens, d_k = d_v = 16,
weights of variance 1/rows, the loss averaged over positions, full-batch descent on one chain.
"""

import dataclasses
import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import optax
import xarray as xr

from attnflow.dynamics.descent import descend
from attnflow.dynamics.schedules import scale_blocks
from attnflow.models.head import ChainTask

BLOCKS = ("W_Q", "W_K", "W_V", "W_O")
# Blocks that move faster; `mean`: all, by the geometric mean of the factors of `values`.
FASTER: dict[str, tuple[str, ...]] = {
    "uniform": (),
    "values": ("W_V",),
    "values and output": ("W_V", "W_O"),
    "routing": ("W_Q", "W_K"),
    "all": BLOCKS,
    "mean": BLOCKS,
}


def factors(schedule: str, factor: float) -> dict[str, float]:
    chosen = factor ** (1 / len(BLOCKS)) if schedule == "mean" else factor
    return {name: chosen if name in FASTER[schedule] else 1.0 for name in BLOCKS}


@dataclasses.dataclass(frozen=True)
class Study:
    """`tasks` with every seed, every rate and every schedule, from the same starts."""

    task: ChainTask = dataclasses.field(default_factory=ChainTask)
    rates: tuple[float, ...] = (0.1, 0.3, 1.0)
    schedules: tuple[str, ...] = ("uniform", "values")
    factor: float = 10.0
    seeds: int = 8
    steps: int = 1000
    records: int = 101
    optimizer: str = "sgd"


@functools.lru_cache(maxsize=8)
def maker(name: str) -> Callable[..., optax.GradientTransformation]:
    """One function an optimizer, so that its compiled descent is found again."""

    def make(rate, **scales):
        return optax.chain(getattr(optax, name)(rate), scale_blocks(scales))

    return make


@functools.cache
def run(study: Study) -> xr.Dataset:
    """Observables over (seed, rate, schedule, step), records even in steps; NaN where a run has
    diverged."""
    pairs = [(rate, name) for rate in study.rates for name in study.schedules]
    scales = [factors(name, study.factor) for _, name in pairs]
    tuned = {"rate": [rate for rate, _ in pairs]}
    tuned |= {block: [each[block] for each in scales] for block in BLOCKS}
    steps = np.linspace(0, study.steps, study.records).round().astype(int)

    def one(seed: int) -> xr.Dataset:
        model = dataclasses.replace(study.task, seed=seed).model()
        make = maker(study.optimizer)
        found = descend(
            model, study.steps, make, tuned=tuned, record=steps, progress=False, keep_diverged=True
        )
        grid = {"rate": list(study.rates), "schedule": list(study.schedules)}
        shaped = found.assign_coords(
            rate=("run", [rate for rate, _ in pairs]), schedule=("run", [name for _, name in pairs])
        )
        shaped = shaped.set_index(run=["rate", "schedule"]).unstack("run")
        return shaped.sel(**grid)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(one, range(study.seeds)))
    return xr.concat(found, "seed").transpose("seed", "rate", "schedule", "step", ...)


def reached(data: xr.Dataset, schedule: str, against: str = "uniform") -> np.ndarray:
    """Steps that `schedule` takes to the final loss of `against`, (seed, rate), linear between
    records; infinite if it does not get there, or if `against` has diverged."""
    target = data.loss.sel(schedule=against).isel(step=-1).values
    path, steps = data.loss.sel(schedule=schedule).values, data.step.values
    found = np.full(target.shape, np.inf)
    for index in np.ndindex(target.shape):
        below = np.flatnonzero(path[index] <= target[index])
        if below.size and below[0] == 0:
            found[index] = steps[0]
        elif below.size:
            i = below[0]
            high, low = path[index][i - 1], path[index][i]
            share = (high - target[index]) / (high - low)
            found[index] = steps[i - 1] + share * (steps[i] - steps[i - 1])
    return found


def speedup(data: xr.Dataset, schedule: str) -> np.ndarray:
    """How many times fewer steps than the uniform schedule, (seed, rate)."""
    with np.errstate(divide="ignore"):
        return float(data.step[-1]) / reached(data, schedule)
