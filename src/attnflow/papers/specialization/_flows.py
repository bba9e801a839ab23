"""Flows of the order parameters from given starts, all in one compiled call."""

import dataclasses
import functools

import numpy as np
import xarray as xr

from attnflow.dynamics.flow import gradient_flow
from attnflow.dynamics.sgd.wishart import wishart_factor
from attnflow.models.single_location import SingleLocation, flipping_spike, growth, plateau

TOKENS, HEADS = 10, 2  # figure 1, with ν₁ = ν₂ = 2
STARTS = 12
LARGE = (10**4, 10**8, 10**12)
SMALL_ETA = 0.05
TIMES = np.concatenate([[1.0, 3.0], np.arange(6.0, 180.0, 6.0)])


def start(features: int, heads: int, dimension: int, eta: float, seed: int):
    """m and r of random heads and orthonormal features in D dimensions, in law; one seed is one
    direction whatever D is."""
    rng = np.random.default_rng(seed)
    size = features + heads
    factor = eta * wishart_factor(rng, (), size, dimension) / np.sqrt(dimension)
    return factor[features:, :features], factor[features:, features:]


@functools.cache
def figure_1_model() -> SingleLocation:
    """Points with all signs and both orders of the heads: only the start tells heads apart."""
    model = SingleLocation(flipping_spike(2.0, 2.0), tokens=TOKENS, heads=HEADS, samples=2048)
    points = model.fresh_points(model.samples, model.seed, swap_heads=True)
    return dataclasses.replace(model, points=points)


@functools.cache
def figure_1_growth() -> float:
    """λ*: how fast heads drift apart on the plateau."""
    model = figure_1_model()
    return float(growth(model, plateau(model)).rates[0])


@functools.cache
def flows() -> xr.Dataset:
    """`STARTS` random starts of figure 1 (D = 10⁴, η = 1), then the same small start (η = 0.05) in
    the dimensions `LARGE`."""
    starts = [start(2, HEADS, 10**4, 1.0, seed) for seed in range(STARTS)]
    starts += [start(2, HEADS, d, SMALL_ETA, 0) for d in LARGE]
    params = [{"m": m, "r": r} for m, r in starts]
    model = dataclasses.replace(figure_1_model(), start=params[0])
    return gradient_flow(
        model, times=TIMES, over={"start": params}, solver="quick", rtol=1e-5, atol=1e-10
    )


def first_time(times, path, threshold: float) -> float:
    """When a growing path first reaches the threshold, its logarithm linear between records."""
    above = np.flatnonzero(path >= threshold)
    if above.size == 0:
        return np.inf
    right = int(above[0])
    if right == 0:
        return float(times[0])
    logs = np.log(path[right - 1 : right + 1])
    return float(np.interp(np.log(threshold), logs, times[right - 1 : right + 1]))
