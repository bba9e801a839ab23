"""The risk and its gradient with error bars, on every core."""

import dataclasses
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

from attnflow._checks import at_least
from attnflow.models.single_location.model import SingleLocation
from attnflow.models.single_location.points import Points


class Estimate(NamedTuple):
    """`risk` and `gradient` (a dict like the parameters), with their standard errors."""

    risk: float
    risk_error: float
    gradient: dict[str, np.ndarray]
    gradient_error: dict[str, np.ndarray]


def estimate(model: SingleLocation, params: Any, replicates: int = 8, seed: int = 0) -> Estimate:
    """Means over `replicates` independent scramblings of the model's points, and the standard
    errors that their spread gives; the model's own points are not among them.

    >>> from attnflow.models.single_location.signals import flipping_spike
    >>> model = SingleLocation(flipping_spike(), tokens=4)
    >>> found = estimate(model, {"m": np.zeros((2, 2)), "r": np.zeros((2, 2))})
    >>> round(found.risk, 6)  # heads that see nothing: 1 − 1/L
    0.75
    """
    at_least("replicates", replicates, 2, "a standard error needs two")
    at_least("seed", seed, 0)
    sets = [
        model.points.anew(model.samples, 10**6 + seed * replicates + i) for i in range(replicates)
    ]

    def one(points: Points):
        with jax.enable_x64(True):  # the setting belongs to a thread
            return jax.tree.map(np.asarray, _value_and_slope(model, points, params))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(one, sets))
    mean = jax.tree.map(lambda *x: np.mean(x, axis=0), *found)
    error = jax.tree.map(lambda *x: np.std(x, axis=0, ddof=1) / np.sqrt(replicates), *found)
    return Estimate(float(mean[0]), float(error[0]), mean[1], error[1])


@eqx.filter_jit
def _value_and_slope(model, points, params):
    return dataclasses.replace(model, points=points).value_and_slope(params)
