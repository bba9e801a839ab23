"""Schedules on the sticky chain: rates and schedules in one compiled descent, seeds on threads.

The document says: T = 2,000, 8 symbols, self-transition 0.3, causal, values at ten times the rate.
It leaves open, and we take: other transitions even, no positions, one-hot tokens, d_k = d_v = 16,
weights of variance 1/rows, the loss averaged over positions, full-batch descent on one chain.
Factors are for weights: biases, which start at zero, keep the rate.
"""

import dataclasses
import functools
import itertools
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
import xarray as xr

from attnflow._checks import choice
from attnflow.dynamics.descent import descend
from attnflow.dynamics.schedules import scale_blocks
from attnflow.models.head import ChainTask, SymbolHead

OPTIMIZERS = ("sgd", "adam")
TOGETHER = (6, 2)  # runs of a compiled call: studies of one shape then share two programs
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


def sgd_or_adam(adam: jax.Array) -> optax.GradientTransformation:
    """The gradient as it is, or Adam's of it where `adam` is 1: both in one compiled program."""
    moments = optax.scale_by_adam()

    def update(updates, state, params=None):
        scaled, state = moments.update(updates, state, params)
        return jax.tree.map(lambda g, a: jnp.where(adam == 1, a, g), updates, scaled), state

    return optax.GradientTransformation(moments.init, update)


def make(rate, adam, **scales) -> optax.GradientTransformation:
    return optax.chain(sgd_or_adam(adam), optax.scale_by_learning_rate(rate), scale_blocks(scales))


def _numbers(study: Study, pairs: Sequence[tuple[float, str]]) -> dict[str, list[float]]:
    scales = [factors(name, study.factor) for _, name in pairs]
    adam = float(OPTIMIZERS.index(study.optimizer))
    numbers = {"rate": [rate for rate, _ in pairs], "adam": [adam] * len(pairs)}
    return numbers | {block: [each[block] for each in scales] for block in BLOCKS}


@functools.cache
def run(study: Study) -> xr.Dataset:
    """Observables over (seed, rate, schedule, step), records even in steps; NaN where a run has
    diverged."""
    choice("optimizer", study.optimizer, OPTIMIZERS)
    pairs = list(itertools.product(study.rates, study.schedules))
    size = next((size for size in TOGETHER if len(pairs) % size == 0), TOGETHER[-1])
    parts = [pairs[i : i + size] for i in range(0, len(pairs), size)]
    steps = np.unique(np.linspace(0, study.steps, study.records).round().astype(int))
    models = [dataclasses.replace(study.task, seed=seed).model() for seed in range(study.seeds)]

    def descended(job: tuple[SymbolHead, list]) -> xr.Dataset:
        model, part = job
        filled = (part * size)[:size]  # the same number of runs: the same program
        found = descend(
            model,
            study.steps,
            make,
            tuned=_numbers(study, filled),
            record=steps,
            progress=False,
            keep_diverged=True,
        )
        return found.isel(run=slice(len(part)))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(descended, itertools.product(models, parts)))
    grid = pd.MultiIndex.from_tuples(pairs, names=["rate", "schedule"])
    index = xr.Coordinates.from_pandas_multiindex(grid, "run")
    seeds = [
        xr.concat(found[i : i + len(parts)], "run").assign_coords(index).unstack("run")
        for i in range(0, len(found), len(parts))
    ]
    data = xr.concat(seeds, "seed").sel(rate=list(study.rates), schedule=list(study.schedules))
    return data.transpose("seed", "rate", "schedule", "step", ...)


def joined(*studies: Study) -> xr.Dataset:
    """Studies of other schedules on the same tasks, rates and steps as one, with the seeds that all
    of them have."""
    seeds = min(study.seeds for study in studies)
    return xr.concat([run(study).isel(seed=slice(seeds)) for study in studies], "schedule")


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


def when_reached(
    data: xr.Dataset, observable: str, schedule: str, against: str = "uniform"
) -> np.ndarray:
    """`observable` of `schedule` where it has the final loss of `against`, (seed, rate); NaN if it
    does not get there."""
    steps = reached(data, schedule, against)
    paths = data[observable].sel(schedule=schedule).values
    found = np.full(steps.shape, np.nan)
    for index in zip(*np.nonzero(np.isfinite(steps)), strict=True):
        found[index] = np.interp(steps[index], data.step.values, paths[index])
    return found
