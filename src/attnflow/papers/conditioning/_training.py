"""Gradient descent on many student–teacher problems of one shape, by one compiled program."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import optax

from attnflow.dynamics.descent import descend
from attnflow.dynamics.flow import gradient_flow
from attnflow.models.prompt import Prompt, StudentTeacher


class Training(NamedTuple):
    """Arrays (run, record); `params[run]` is where a run ended."""

    loss: np.ndarray
    log10_ratio: np.ndarray
    params: list[dict[str, np.ndarray]]


def train(models: Sequence[Prompt], step: float | Sequence[float], records: Sequence[int]):
    """Full-batch GD, seen at the increasing step counts `records`."""
    runs, ends = [], []
    for model, rate in zip(models, np.broadcast_to(step, len(models)), strict=True):
        tuned = {"learning_rate": rate}
        options = {"tuned": tuned, "record": records, "progress": False, "return_params": True}
        run, end = descend(model, records[-1], optax.sgd, **options)
        runs.append(run)
        ends.append(end)
    loss, ratio = (np.stack([run[x] for run in runs]) for x in ("loss", "log10_ratio"))
    return Training(loss, ratio, ends)


def teacher_ratio(model: Prompt) -> float:
    """log10 R of the teacher: the mean over samples of the spread of its scores."""
    return float(np.mean(np.ptp(model.inputs @ model.teacher["p"], axis=1)) / np.log(10))


STEP = 0.05  # below 2/λ_max of every problem here
SEEDS = (0, 1, 2, 3)
RECORDS = (0, 30, 100, 300, 1000, 3000)


def narrow(sigma_p: float, seed: int, near: float | None = None, **options) -> Prompt:
    """The underparameterized setting of figures 1 and 7: d = n = 20, N = 100."""
    return StudentTeacher(
        d=20, n=20, samples=100, sigma_p=sigma_p, seed=seed, near=near, **options
    ).model()


@functools.cache
def narrow_runs() -> dict[str, tuple[list[Prompt], Training]]:
    """p and v trained: sparse and spread teachers, from the paper's start and from near them."""
    kinds = {
        "sparse": [narrow(1.0, seed) for seed in SEEDS],
        "spread": [narrow(0.1, seed) for seed in SEEDS[:2]],
        "near sparse": [narrow(1.0, seed, 0.03) for seed in SEEDS[:3]],
        "near spread": [narrow(0.1, seed, 0.03) for seed in SEEDS[:3]],
    }
    models = [model for group in kinds.values() for model in group]
    runs = train(models, STEP, RECORDS)
    found, at = {}, 0
    for kind, group in kinds.items():
        own = slice(at, at + len(group))
        part = Training(runs.loss[own], runs.log10_ratio[own], runs.params[own])
        found[kind], at = (group, part), own.stop
    return found


def flow_on(model: Prompt, params: dict[str, np.ndarray], t1: float) -> float:
    """The loss that gradient flow from `params` reaches at time t1; implicit, on the clock
    log(1 + t). Unlike Newton's method it cannot leap into another basin."""
    flow = gradient_flow(
        model, times=[t1], start=params, solver="stiff", engine="host", rtol=1e-4, atol=1e-6
    )
    return float(flow.loss[-1])
