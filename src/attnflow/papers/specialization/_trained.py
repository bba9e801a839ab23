"""Heads after training, without the compiler: the risk and its gradient written out in arrays.

Rows here train dozens of models of many shapes; a compiled gradient costs seconds for each shape,
this one milliseconds. It is the gradient of `SingleLocation.loss` on points of its own.
"""

from typing import NamedTuple

import numpy as np
from scipy.integrate import solve_ivp
from scipy.special import ndtri, softmax
from scipy.stats import qmc

from attnflow.models.single_location import Discrete, Gaussian, Signal

ACTIVATIONS = ("softmax", "softmax_1", "bayes_softmax")
WIDTH = 0.01  # D^(−1/2) at D = 10⁴: the size of m at the start


class Draws(NamedTuple):
    """Sequences: coordinates of the tokens (feature and head, token, draw), token 0 relevant."""

    coordinates: np.ndarray
    features: int

    @property
    def projections(self):
        """On the features only, (draw, token, feature)."""
        return np.moveaxis(self.coordinates[: self.features], 0, 2).swapaxes(0, 1)


def theta(signal: Signal, uniforms) -> np.ndarray:
    """θ (feature, draw) as the signal itself makes it, in NumPy."""
    if isinstance(signal, Gaussian):
        return np.asarray(signal.strength)[:, None] * ndtri(uniforms)
    assert isinstance(signal, Discrete)
    which = np.searchsorted(np.cumsum(signal.probabilities)[:-1], uniforms[0], side="right")
    return np.asarray(signal.points())[which].T


def draw(signal: Signal, tokens: int, heads: int, bits: int, seed: int) -> Draws:
    """2^bits scrambled Sobol sequences."""
    columns = signal.features + heads
    engine = qmc.Sobol(signal.inputs + columns * tokens, bits=30, rng=np.random.default_rng(seed))
    numbers = np.clip(engine.random(2**bits).T, 2.0**-31, 1 - 2.0**-31)
    coordinates = ndtri(numbers[signal.inputs :]).reshape(columns, tokens, -1)
    coordinates[: signal.features, 0] += theta(signal, numbers[: signal.inputs])
    return Draws(coordinates, signal.features)


class Heads(NamedTuple):
    """[m, r] side by side (head, feature and head), biases and gain."""

    rows: np.ndarray
    bias: np.ndarray
    gain: float

    def flat(self):
        return np.concatenate([self.rows.ravel(), self.bias, [self.gain]])

    @classmethod
    def shaped(cls, flat, heads: int):
        return cls(flat[: -heads - 1].reshape(heads, -1), flat[-heads - 1 : -1], flat[-1])

    @property
    def m(self):
        return self.rows[:, : -len(self.rows)]


def start(features: int, heads: int, seed: int) -> Heads:
    """k ~ N(0, 1/D) to leading order: m of size D^(−1/2), r = 1."""
    m = WIDTH * np.random.default_rng(seed).standard_normal((heads, features))
    return Heads(np.hstack([m, np.eye(heads)]), np.zeros(heads), 1.0)


def weights(activation: str, heads: Heads, draws: Draws) -> np.ndarray:
    """Each head's share of the output, (head, token, draw): σ/H of the model."""
    count = len(heads.rows)
    scores = np.tensordot(heads.rows, draws.coordinates, 1)
    if activation == "bayes_softmax":
        return softmax(scores + heads.bias[:, None, None], axis=(0, 1))
    if activation == "softmax":
        return softmax(scores, axis=1) / count
    sink = np.broadcast_to(heads.bias[:, None, None], (count, 1, scores.shape[2]))
    return heads.gain / count * softmax(np.concatenate([scores, sink], axis=1), axis=1)[:, :-1]


def errors(activation: str, heads: Heads, draws: Draws) -> np.ndarray:
    """Squared error of each draw."""
    output = weights(activation, heads, draws).sum(axis=0)
    output[0] -= 1
    return np.sum(output**2, axis=0)


def risk(activation: str, heads: Heads, draws: Draws) -> float:
    return float(errors(activation, heads, draws).mean())


def risk_and_slope(activation: str, heads: Heads, draws: Draws) -> tuple[float, Heads]:
    a = weights(activation, heads, draws)
    miss = a.sum(axis=0)
    miss[0] -= 1
    count, size = len(a), a.shape[2]
    pull = np.sum(a * miss, axis=1)  # (head, draw)
    if activation == "bayes_softmax":
        slope = 2 * a * (miss - pull.sum(axis=0))
        bias, gain = slope.sum(axis=(1, 2)) / size, 0.0
    else:
        scale = 1 / count if activation == "softmax" else heads.gain / count
        slope = 2 * a * (miss - pull[:, None] / scale)
        bias, gain = np.zeros(count), 0.0
        if activation == "softmax_1":
            silent = 1 - a.sum(axis=1) / scale  # what the sink takes
            bias = -2 * np.sum(silent * pull, axis=1) / size
            gain = 2 * float(pull.sum()) / heads.gain / size
    rows = slope.reshape(count, -1) @ draws.coordinates.reshape(len(draws.coordinates), -1).T
    return float(np.sum(miss**2) / size), Heads(rows / size, bias, gain)


def train(activation: str, begin: Heads, draws: Draws, time: float = 1000.0) -> Heads:
    """Gradient flow until `time`, by LSODA on the clock log(1 + τ)."""
    count = len(begin.rows)

    def speed(clock, flat):
        slope = risk_and_slope(activation, Heads.shaped(flat, count), draws)[1]
        return -np.exp(clock) * slope.flat()

    span = (0.0, np.log1p(time))
    flow = solve_ivp(speed, span, begin.flat(), method="LSODA", rtol=1e-3, atol=1e-4)
    if not flow.success:
        raise RuntimeError(f"the flow stopped at log(1 + τ) = {flow.t[-1]:.3g}: {flow.message}")
    return Heads.shaped(flow.y[:, -1], count)
