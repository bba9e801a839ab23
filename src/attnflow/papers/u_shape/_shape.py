"""The norm along the flow: its fall, its turns and its growth (Theorem 3.4)."""

import dataclasses

import numpy as np

from attnflow.papers.ledger import Finding, identity, inequality
from attnflow.papers.u_shape import _plane as plane
from attnflow.papers.u_shape._algebra import random_states
from attnflow.papers.u_shape._flows import LATE, LEDGER, NEAR, flows, orbits, start_of
from attnflow.papers.u_shape._plane import expit


def printed_slope(xi, p):
    """d|M|²/dt at the start: −4(1 − p)(c0 s̃0 + c1 s̃1)."""
    return -4 * (1 - p) * plane.push(xi, p[:, None]).sum(axis=1)


@LEDGER.claim(
    "theorem-3.4",
    where="Theorem 3.4",
    statement="From a sharp-wrong start |M|² falls at first, with slope −4(1 − p)(c0 s̃0 + c1 s̃1), "
    "falls strictly up to a finite T1 > 0, and tends to infinity.",
    hypotheses="Both gaps positive at the start. T1 is the first critical point, nothing more.",
    kind="existence",
    recorded="holds",
    broken={"slope": lambda xi, p: printed_slope(xi, p) / 2},
)
def theorem_3_4(slope=printed_slope) -> Finding:
    p, matrices, observed, gradients, _ = random_states()
    exact = -2 * np.sum(matrices * gradients, axis=(1, 2))
    found = identity(slope(observed["xi"], p), exact)
    wrong = (observed["xi"] > 0).all(axis=1)
    flow = flows("random")
    norm2, first = flow.norm2.values, np.array([path.times[0] for path in orbits("random")])
    heating = flow.time.values[1:] < first[:, None]
    late = norm2[:, -len(LATE) :]
    ok = (
        (exact[wrong] < 0).all()
        and (np.diff(norm2, axis=1)[heating] < 0).all()
        and (np.diff(late, axis=1) > 0).all()
        and (late[:, -1] > norm2[:, 0]).all()
    )
    cases = int(wrong.sum()) + len(first)
    return Finding(found.verdict if ok else "refuted", found.margin, cases)


@LEDGER.claim(
    "norm-growth",
    where="our own, beside Theorem 3.4 (divergence)",
    statement="From every start |M|² = |M_frozen|² + (log t + log(4(1 − p)³ σ(p − 1)))² / (1 − p)² "
    "+ o(1).",
    hypotheses="Read at log t = 300; the difference of the gaps dies like t^(−(1 + p)/(1 − p)).",
    kind="limit",
    recorded="holds",
    broken={"power": 1},
)
def norm_growth(power: int = 2) -> Finding:
    flow = flows("random")
    q = 1 - flow.p.values
    claimed = (LATE[-1] + np.log(4 * q**3 * expit(-q))) ** 2 / q**power
    measured = (flow.norm2 - flow.frozen_norm2).values[:, -1]
    return identity(measured / claimed, np.ones_like(claimed), tolerance=1e-8)


@LEDGER.claim(
    "cooling",
    where="Section 4 (cooling)",
    statement="Attention settles on the right token: σ_i → 0 in both rows, and sharply "
    "t σ_i → 1 / (4(1 − p)³ σ(p − 1)).",
    hypotheses="The rate is ours; the paper claims the limit. Read at log t = 300.",
    kind="limit",
    recorded="holds",
    broken={"power": 2},
)
def cooling(power: int = 3) -> Finding:
    flow = flows("random")
    q = 1 - flow.p.values[:, None]
    t_sigma = np.exp(flow.xi.values[:, -1] + LATE[-1])
    ratio = t_sigma * 4 * q**power * expit(-q)
    return identity(ratio, np.ones_like(ratio), tolerance=1e-6)


@LEDGER.claim(
    "loss-infimum",
    where="our own, beside section 2.1",
    statement="The loss cannot be trained to 0: its infimum is 2 log(1 + e^(p − 1)), reached only "
    "as t → ∞, and in the end the excess is 1/((1 − p)² t).",
    hypotheses="The rate is read near log t = 18, on starts with c0 = c1.",
    kind="limit",
    recorded="holds",
    broken={"infimum": lambda p: np.log1p(np.exp(p - 1))},
)
def loss_infimum(infimum=lambda p: 2 * np.log1p(np.exp(p - 1))) -> Finding:
    p, _, observed, _, _ = random_states()
    above = (observed["loss"] > infimum(p)).all()
    flow = flows("equal")
    p = flow.p.values
    end = identity(flow.loss.values[:, -1], infimum(p))
    at = int(np.searchsorted(flow.log_time.values, 18.0))
    excess = (flow.loss.values[:, at] - infimum(p)) * (1 - p) ** 2 * flow.time.values[at]
    rate = identity(excess, np.ones_like(p), tolerance=1e-3)
    return end if above and rate.good else dataclasses.replace(end, verdict="refuted")


def first_trough(group: str) -> np.ndarray:
    """|M(T1)|² of every run of a group."""
    flow = flows(group)
    gaps = np.array([path.gaps[0] for path in orbits(group)])
    return plane.active_norm2(gaps, flow.p.values) + flow.frozen_norm2.values[:, 0]


def w_shape(_) -> dict:
    """The smallest whole numbers at p = 0 whose norm makes a W."""
    path, frozen = orbits("shown")[0], float(flows("shown").frozen_norm2[0, 0])
    return start_of("shown", 0) | {
        "critical_times": path.times.tolist(),
        "norm2_there": (plane.active_norm2(path.gaps, 0.0) + frozen).tolist(),
        "share_of_random_starts": float(np.mean([len(x.times) == 3 for x in orbits("random")])),
    }


@LEDGER.claim(
    "unique-trough",
    where="Proof of Theorem 3.4 (c), figure 1, section 4 (forging)",
    statement="The norm makes a U: T1 is its minimum, and it grows for all t > T1.",
    hypotheses="Any sharp-wrong start.",
    kind="inequality",
    recorded="refuted",
    broken={"group": "equal"},
)
def unique_trough(group: str = "random") -> Finding:
    slack = flows(group).norm2.values.min(axis=1) - first_trough(group)
    return dataclasses.replace(
        inequality(slack, tolerance=1e-9, counterexample=w_shape),
        correction="T1 is the first critical point. There are one (a U, always when c0 = c1) or "
        "three (a W, see w-threshold); of a W, T1 is the shallower trough.",
    )


def turns(flow) -> np.ndarray:
    """How often d|M|²/dt = −4(1 − p) Σ ξ_i s̃_i changes sign along simulated gaps."""
    slope = plane.push(flow.xi.values, flow.p.values[:, None, None]).sum(axis=2)
    return np.sum(slope[:, 1:] * slope[:, :-1] < 0, axis=1)


@LEDGER.claim(
    "w-threshold",
    where="our own, beside Theorem 3.4",
    statement="For each p one orbit touches the curve ξ0 s̃0 + ξ1 s̃1 = 0. Followed back to ξ0 = c0 "
    "it ends at c1*(c0, p) > c0, and |M|² makes a W if the larger gap exceeds c1* of the smaller, "
    "else a U. At p = 0 that reads G(c1) − G(c0) > 16.0813, G(c) the time in which a pair of equal "
    "gaps melts (c1* = 3.739 for c0 = 1). c1* − c0 shrinks like exp(−c0 (1 + p)/(1 − p)).",
    hypotheses="c0, c1 > 0 and c0 ≠ c1. Starts at 1% on both sides of the border, and random ones.",
    kind="existence",
    recorded="holds",
    broken={"excess": 1 + 2 * NEAR},
)
def w_threshold(excess: float = 1.0) -> Finding:
    agree, distance = [], []
    for group in ("border", "random"):
        flow = flows(group)
        gaps = np.sort(np.stack([flow.c0.values, flow.c1.values], axis=1), axis=1)
        (low, high), count = gaps.T, turns(flow)
        room = excess * (plane.threshold(flow.p.values, low) - low)
        agree += (count == np.where(high - low > room, 3, 1)).tolist()
        distance += np.abs((high - low) / room - 1).tolist()
    return Finding("holds" if all(agree) else "refuted", min(distance), len(agree))
