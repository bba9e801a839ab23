"""Flows shared by the rows: each kind is compiled once, whatever the number of tokens."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from attnflow.dynamics.flow import gradient_flow
from attnflow.models.value_softmax import ValueSoftmax

RUNS, TOKENS, POINTS = 40, 10, 300
ABSENT = -1e4  # a score whose softmax weight is exactly 0: the token takes no part in the flow
EARLY, LATE = 30.0, 1e4  # horizons in log(1 + t)
SHOWN = (0.3, 0.1, -0.2)  # u(0) of the last run of `ensemble`, for counterexamples


class Start(NamedTuple):
    """u(0), |β*| and a(0) of one flow."""

    u: np.ndarray
    norm: float = 1.0
    a: np.ndarray | None = None


class Run(NamedTuple):
    """One flow over `log_t` = log(1 + t), its own tokens only; `tau` = ∫γ dt."""

    u: np.ndarray
    s: np.ndarray
    a: np.ndarray
    tau: np.ndarray
    loss: np.ndarray
    entropy: np.ndarray
    log_t: np.ndarray
    norm2: float

    @property
    def p(self) -> int:
        return self.u.shape[1]

    @property
    def ratios(self):
        """q_j = s_j/s_0 for j = 1, 2, …"""
        return np.exp(self.a[:, 1:] - self.a[:, :1])

    @property
    def leads(self):
        """u_0 − u_j for j = 1, 2, …"""
        return self.u[:, :1] - self.u[:, 1:]


def softmax_flows(starts: Sequence[Start], log_t1: float, objective: str = "logistic") -> list[Run]:
    """Flows of at most `RUNS` starts with at most `TOKENS` tokens each."""
    u, a, norms = np.zeros((RUNS, TOKENS)), np.full((RUNS, TOKENS), ABSENT), np.ones(RUNS)
    a[len(starts) :] = 0.0
    for row, start in enumerate(starts):
        p = len(start.u)
        u[row, :p], norms[row] = start.u, start.norm
        a[row, :p] = 0.0 if start.a is None else start.a
    model = ValueSoftmax(projections=tuple(u[0]), scores=tuple(a[0]), objective=objective)
    flow = gradient_flow(
        model,
        log_t1=log_t1,
        points=POINTS,
        over={"projections": u, "scores": a, "target_norm": norms},
    )
    log_t = flow.log_time.values
    runs = []
    for row, start in enumerate(starts):
        one, p = flow.isel(run=row), len(start.u)
        runs.append(
            Run(
                u=one.projections.values[:, :p],
                s=one.weights.values[:, :p],
                a=one.scores.values[:, :p],
                tau=one.gamma_integral.values,
                loss=one.loss.values,
                entropy=one.entropy.values,
                log_t=log_t,
                norm2=start.norm**2,
            )
        )
    return runs


@functools.cache
def ensemble(log_t1: float, first_score: float = 0.0) -> list[Run]:
    """Logistic flows of 2 to 6 tokens with |β*|² = 1/4, 1, 4 from ordered random u(0), a(0) = 0
    (but `first_score` for token 0); last the one of `SHOWN`."""
    rng = np.random.default_rng(7)
    starts = []
    for row in range(36):
        p = 2 + row % 5
        u = np.sort(rng.normal(size=p))[::-1]
        a = np.zeros(p)
        a[0] = first_score
        starts.append(Start(u, (0.5, 1.0, 2.0)[row % 3], a))
    return softmax_flows([*starts, Start(np.array(SHOWN))], log_t1)
