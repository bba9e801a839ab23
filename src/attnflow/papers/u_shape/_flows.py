"""The ledger and the trajectories that several of its rows share."""

import functools
from typing import ClassVar

import numpy as np
import xarray as xr

from attnflow.dynamics.flow import gradient_flow
from attnflow.models.interface import Model, namespace
from attnflow.models.self_attention import SelfAttention
from attnflow.models.two_token import TwoToken
from attnflow.papers.ledger import Ledger
from attnflow.papers.u_shape import _plane as plane
from attnflow.papers.u_shape._plane import Orbit, symmetric_time, threshold

LEDGER = Ledger("u_shape")

NEAR = 0.01
"""Starts on both sides of the border between U and W, at this relative distance."""

LATE = (50.0, 100.0, 200.0, 300.0)
"""Logarithms of the times at which limits are read."""


class ShownMatrix(Model):
    """Self-attention whose observable is M itself; it has no reduced form, so nothing is assumed
    about which part of M moves."""

    tokens: np.ndarray
    start: np.ndarray

    dims: ClassVar = {"matrix": ("row", "column")}

    def init(self, key=None):
        del key
        return namespace(self.start).asarray(self.start)

    def loss(self, params):
        return SelfAttention(self.tokens, self.start).loss(params)

    def observe(self, params):
        return {"matrix": params, "loss": self.loss(params)}


def active_part(tokens, matrix):
    """Coordinates of the projection of `matrix` on x0 gᵀ and x1 gᵀ; leading axes broadcast."""
    g = tokens[..., 1, :] - tokens[..., 0, :]
    image = np.einsum("...id,...de,...e->...i", tokens, matrix, g)
    gram = tokens @ np.swapaxes(tokens, -1, -2)
    return np.linalg.solve(gram, image[..., None])[..., 0] / np.sum(g * g, axis=-1)[..., None]


def lifted(tokens, coordinates):
    """a x0 gᵀ + b x1 gᵀ from (a, b)."""
    g = tokens[..., 1, :] - tokens[..., 0, :]
    return np.einsum("...i,...id,...e->...de", coordinates, tokens, g)


def with_gaps(tokens, matrices, gaps):
    """`matrices`, moved along x0 gᵀ and x1 gᵀ only, so that their logit gaps are `gaps`."""
    g = tokens[:, 1] - tokens[:, 0]
    gram = tokens @ np.swapaxes(tokens, 1, 2)
    image = gaps * [1, -1] / np.sum(g * g, axis=1, keepdims=True)
    wanted = np.linalg.solve(gram, image[..., None])[..., 0]
    return matrices + lifted(tokens, wanted - active_part(tokens, matrices))


@functools.cache
def full_flows(pairs: int = 8, seed: int = 1):
    """Full matrix flows in width 3 from sharp-wrong starts: p, gaps (c0, c1), tokens, M(t).

    Run k and run k + `pairs` share their tokens and gaps and differ only in what the paper calls
    frozen. The first half of the pairs has c0 = c1, and output falls on its troughs.
    """
    rng = np.random.default_rng(seed)
    tokens = rng.normal(size=(pairs, 2, 3))
    tokens /= np.linalg.norm(tokens, axis=-1, keepdims=True)
    p = np.sum(tokens[:, 0] * tokens[:, 1], axis=-1)
    c = rng.uniform(0.5, 4.0, size=(pairs, 2))
    c[: pairs // 2, 1] = c[: pairs // 2, 0]
    p, c, tokens = np.tile(p, 2), np.tile(c, (2, 1)), np.tile(tokens, (2, 1, 1))
    start = with_gaps(tokens, rng.normal(scale=2.0, size=(2 * pairs, 3, 3)), c)
    troughs = symmetric_time(c[: pairs // 2, 0], p[: pairs // 2])
    times = np.unique(np.concatenate([[0.0], np.expm1(np.linspace(0.1, 8, 40)), troughs]))
    flow = gradient_flow(
        ShownMatrix(tokens[0], start[0]), times=times, over={"tokens": tokens, "start": start}
    )
    return p, c, tokens, flow


@functools.cache
def named_starts() -> dict[str, np.ndarray]:
    """Groups of starts (p, c0, c1) in rows.

    random: sharp-wrong, kept where the last gap has melted by e^16; equal: c0 = c1; border: on both
    sides of the threshold; correct: both gaps negative, or 0; shown: the counterexamples.
    """
    rng = np.random.default_rng(2)
    p, c0, c1 = rng.uniform([-0.8, 0.05, 0.05], [0.8, 7, 7], size=(200, 3)).T
    commitment = (np.maximum(c0, c1) + p * np.minimum(c0, c1)) / (1 - p)
    random = np.stack([p, c0, c1], axis=1)[commitment < 14][:40]
    equal = np.stack([np.linspace(-0.8, 0.8, 9), *[np.linspace(0.1, 6, 9)[::-1]] * 2], axis=1)
    border = []
    pairs = np.array([(p, c0) for p in (-0.5, 0.0, 0.5) for c0 in (0.5, 2.0)])
    for (p, c0), c1 in zip(pairs, threshold(*pairs.T), strict=True):
        border += [(p, c0, c0 + (c1 - c0) * (1 + side)) for side in (-NEAR, NEAR)]
    correct = rng.uniform([-0.8, -4, -4], [0.8, 0, 0], size=(10, 3))
    groups = {
        "random": random,
        "equal": equal,
        "border": border,
        "correct": [*correct, (-0.5, 0, 0), (0, 0, 0), (0.5, 0, 0)],
        "shown": [(0.0, 1.0, 4.0), (0.5, 1.0, 4.0)],
    }
    return {name: np.asarray(rows, float) for name, rows in groups.items()}


@functools.cache
def all_flows() -> xr.Dataset:
    starts = named_starts()
    p, c0, c1 = np.concatenate(list(starts.values())).T
    times = np.concatenate([np.expm1(np.linspace(0, 20, 250)), np.exp(LATE)])
    flow = gradient_flow(TwoToken(), times=times, over={"p": p, "c0": c0, "c1": c1})
    group = np.repeat(list(starts), [len(rows) for rows in starts.values()])
    return flow.assign_coords(group=("run", group))


def flows(group: str) -> xr.Dataset:
    """The flows of one group of `named_starts`."""
    flow = all_flows()
    return flow.isel(run=np.flatnonzero(flow.group.values == group))


@functools.cache
def orbits(group: str) -> list[Orbit]:
    """The critical points of the same starts, found in the plane of the gaps."""
    return plane.orbits(*named_starts()[group].T)


def start_of(group: str, run: int) -> dict:
    """A start as plain numbers, and the command that runs it."""
    p, c0, c1 = map(float, named_starts()[group][run])
    command = f"attnflow simulate two_token --p {p:g} --c0 {c0:g} --c1 {c1:g}"
    return {"p": p, "c0": c0, "c1": c1, "run": command}
