"""Gradient descent on many student–teacher problems of one shape, in one compiled loop."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import numpy as np

from attnflow.dynamics.batching import traced
from attnflow.dynamics.flow import gradient_flow
from attnflow.models.prompt import Prompt, StudentTeacher


class Training(NamedTuple):
    """Arrays (run, record); `params[run]` is where a run ended."""

    loss: np.ndarray
    log10_ratio: np.ndarray
    params: list[dict[str, np.ndarray]]


@eqx.filter_jit
@eqx.filter_vmap(in_axes=(eqx.if_array(0), eqx.if_array(0), 0, None))
def _advance(model, params, step, count):
    def descend(_, params):
        return jax.tree.map(lambda x, g: x - step * g, params, jax.grad(model.loss)(params))

    params = jax.lax.fori_loop(0, count, descend, params)
    seen = model.observe(params)
    return params, seen["loss"], seen["log10_ratio"]


def _stacked(trees: Sequence):
    """One tree with a leading axis on every array; strings must agree."""
    return jax.tree.map(lambda *x: np.stack(x) if isinstance(x[0], np.ndarray) else x[0], *trees)


def train(models: Sequence[Prompt], step: float | Sequence[float], records: Sequence[int]):
    """Full-batch GD, seen at the increasing step counts `records`."""
    with jax.enable_x64(True):
        model = _stacked([traced(each) for each in models])
        starts = [jax.tree.map(np.asarray, each.init()) for each in map(traced, models)]
        params, steps = _stacked(starts), np.broadcast_to(np.asarray(step, float), len(models))
        loss, ratio, done = [], [], 0
        for record in records:
            params, *seen = _advance(model, params, steps, np.int64(record - done))
            loss.append(np.asarray(seen[0]))
            ratio.append(np.asarray(seen[1]))
            done = record
        params = jax.tree.map(np.asarray, params)
    ends = [{name: value[run] for name, value in params.items()} for run in range(len(models))]
    return Training(np.stack(loss, axis=1), np.stack(ratio, axis=1), ends)


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
