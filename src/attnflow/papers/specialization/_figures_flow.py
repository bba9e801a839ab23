"""Trained heads for the figures: the flow of the order parameters from a given start.

`gradient_flow` draws its own start and compiles a whole solver, seconds for every number of heads
and activation; here only the gradient is compiled (a figure visits up to a dozen such shapes for
one or two seconds each), the steps are SciPy's, and the start may be that of a simulation.
"""

import dataclasses
import functools
import math
from typing import Any

import equinox as eqx
import jax
import numpy as np
import xarray as xr
from scipy.integrate import solve_ivp

from attnflow.models.single_location import (
    Signal,
    SingleLocation,
    flipping_spike,
    gaussian,
    spikes,
)
from attnflow.papers.specialization._flows import start as drawn_overlaps

SIGNALS = {"flipping": flipping_spike, "spikes": spikes, "gaussian": gaussian}
ACTIVATIONS = {"softmax": "softmax", "softmax_1": "softmax-1", "bayes_softmax": "B-softmax"}
FEW_PARAMETERS = 40  # up to here the Jacobian of an implicit method costs less than small steps


@dataclasses.dataclass(frozen=True)
class Training:
    """One training: signal by name and its arguments, the start drawn by `seed`, τ up to `last`.

    `records` times even in log(1 + τ). Averages over `samples` points, the same at every time.
    """

    signal: tuple = ("flipping", 2.0, 2.0)
    tokens: int = 4
    heads: int = 2
    activation: str = "softmax"
    last: float = 300.0
    seed: int = 0
    samples: int = 4096
    dimension: float = 1e4
    records: int = 120
    rtol: float = 1e-3

    def model(self) -> SingleLocation:
        return SingleLocation(
            signal_of(self.signal),
            tokens=self.tokens,
            heads=self.heads,
            activation=self.activation,
            dimension=self.dimension,
            samples=self.samples,
        )

    def times(self) -> np.ndarray:
        return np.expm1(np.linspace(0, np.log1p(self.last), self.records))


def signal_of(named: tuple) -> Signal:
    name, *arguments = named
    return SIGNALS[name](*arguments)


@functools.cache
def trained(training: Training) -> xr.Dataset:
    model = training.model()
    return flow_from(model, start(model, training.seed), training.times(), rtol=training.rtol)


def start(model: SingleLocation, seed: int) -> dict[str, np.ndarray]:
    """Overlaps of k ~ N(0, η²/D) with orthonormal features, drawn in law; b = 0, v = 1."""
    m, r = drawn_overlaps(model.signal.features, model.heads, int(model.dimension), model.eta, seed)
    return {"m": m, "r": r} | {
        name: value
        for name, value in (("b", np.zeros(model.heads)), ("v", np.ones(())))
        if name in shapes(model)
    }


def flow_from(
    model: SingleLocation, start: dict[str, np.ndarray], times: np.ndarray, rtol: float = 1e-3
) -> xr.Dataset:
    """Parameters of the gradient flow at `times` ≥ 0, on the clock s = log(1 + τ)."""

    def velocity(s, y):
        return -np.exp(s) * np.asarray(_slope(model, y))

    clock, y = np.log1p(times), packed(start)
    method = "LSODA" if y.size <= FEW_PARAMETERS else "RK23"
    with jax.enable_x64(True):
        done = solve_ivp(
            velocity, (0, clock[-1]), y, method, t_eval=clock, rtol=rtol, atol=rtol / 100
        )
    if not done.success:
        raise RuntimeError(f"the flow stopped: {done.message}")
    along = [unpacked(model, y) for y in done.y.T]
    dims = {"m": ("head", "feature"), "r": ("head", "noise"), "b": ("head",), "v": ()}
    data = {x: (("time", *dims[x]), np.stack([p[x] for p in along])) for x in start}
    return xr.Dataset(data, {"time": times}, {"evaluations": done.nfev})


def shapes(model: SingleLocation) -> dict[str, tuple[int, ...]]:
    sizes: dict[str, tuple[int, ...]] = {
        "m": (model.heads, model.signal.features),
        "r": (model.heads, model.heads),
    }
    if model.law.takes_bias:
        sizes["b"] = (model.heads,)
    if model.law.has_sink:
        sizes["v"] = ()
    return sizes


def packed(params: dict[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([np.ravel(params[x]) for x in ("m", "r", "b", "v") if x in params])


def unpacked(model: SingleLocation, y) -> dict[str, Any]:
    params, done = {}, 0
    for name, shape in shapes(model).items():
        size = math.prod(shape)
        params[name] = y[done : done + size].reshape(shape)
        done += size
    return params


@eqx.filter_jit
def _slope(model, y):
    return jax.grad(lambda y: model.loss(unpacked(model, y)))(y)


@eqx.filter_jit
def _risk(model, y):
    return model.loss(unpacked(model, y))


def params_at(flow: xr.Dataset, time: int = -1) -> dict[str, np.ndarray]:
    here = flow.isel(time=time)
    return {x: here[x].values for x in ("m", "r", "b", "v") if x in here}


def risk(model: SingleLocation, params: dict[str, np.ndarray]) -> float:
    with jax.enable_x64(True):
        return float(_risk(model, packed(params)))


def elsewhere(model: SingleLocation, number: int = 0) -> SingleLocation:
    """The same model over points that no training has seen."""
    return dataclasses.replace(model, points=model.fresh_points(model.samples, 1000 + number))


def fresh_risk(model: SingleLocation, params: dict[str, np.ndarray], sets: int = 4) -> float:
    return float(np.mean([risk(elsewhere(model, number), params) for number in range(sets)]))
