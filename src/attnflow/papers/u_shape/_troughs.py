"""When and how deep: heating, melting and the two troughs (section 4 and the appendix)."""

import dataclasses
import functools

import numpy as np

from attnflow.papers.ledger import Finding, corrected, identity, inequality
from attnflow.papers.u_shape import _plane as plane
from attnflow.papers.u_shape._algebra import random_states
from attnflow.papers.u_shape._flows import LEDGER, flows, full_flows, orbits, start_of
from attnflow.papers.u_shape._shape import first_trough

LOPSIDED = ((-0.5, 1, 60), (0.0, 1, 50), (0.0, 10, 50), (0.3, 2, 50), (0.5, 1, 40), (0.8, 1, 40))
"""Starts (p, c0, c1) with c1 far above c0."""


@functools.cache
def lopsided():
    """p, c0, c1 of `LOPSIDED`; the critical gaps, the last critical time, the top of gap 1."""
    p, c0, c1 = np.array(LOPSIDED, float).T
    paths = plane.orbits(p, c0, c1)
    gaps, last = np.array([x.gaps for x in paths]), np.array([x.times[2] for x in paths])
    tops = np.array([x.tops.max(initial=0.0) for x in paths])
    return p, c0, c1, gaps, last, tops


@LEDGER.claim(
    "second-trough",
    where="our own, beside Theorem 3.4",
    statement="In a W the last trough is the deeper one. For c1 far above c0, with C = c1 + p c0: "
    "|M|² falls by c0²/(2(1 − p)) to its first trough, which melts the smaller gap only, and its "
    "last trough lies (2C − 1 + p²)/(2(1 − p)) below the first.",
    hypotheses="The two limits are for c1 − c0 → ∞.",
    kind="limit",
    recorded="holds",
    broken={"shift": 0.0},
)
def second_trough(shift: float = 1.0) -> Finding:
    p, c0, c1, gaps, _, _ = lopsided()
    start = plane.active_norm2(np.stack([c0, c1], axis=1), p)
    trough = plane.active_norm2(gaps, p[:, None])
    first = (start - trough[:, 0]) / (c0**2 / (2 * (1 - p)))
    depth = (2 * (c1 + p * c0) - shift * (1 - p**2)) / (2 * (1 - p))
    second = (trough[:, 0] - trough[:, 2]) / depth
    found = identity(np.stack([first, second]), np.ones((2, len(p))))
    ws = [(run, x) for run, x in enumerate(orbits("random")) if len(x.times) == 3]
    norms = [plane.active_norm2(x.gaps, flows("random").p.values[run]) for run, x in ws]
    deeper = all(norm2[2] < norm2[0] for norm2 in norms)
    return Finding(found.verdict if deeper else "refuted", found.margin, len(ws) + len(p))


def fall_until_t1(group: str) -> np.ndarray:
    """Minus the largest rise of each gap above its start, on [0, T1]."""
    flow = flows(group)
    first = np.array([path.times[0] for path in orbits(group)])
    early = flow.time.values < first[:, None]
    xi = flow.xi.values
    return -np.where(early[..., None], xi - xi[:, :1], 0).max(axis=1)


def climbing(_) -> dict:
    path = orbits("shown")[1]
    return start_of("shown", 1) | {
        "gap1_at_start": 4.0,
        "gap1_at_T1": float(path.gaps[0, 1]),
        "gap1_highest": float(path.tops.max()),
        "T1": float(path.times[0]),
        "time_of_second_trough": float(path.times[2]),
    }


@LEDGER.claim(
    "heating",
    where="Section 4 (heating)",
    statement="During heating, up to T1, the wrong structure melts: both wrong gaps fall.",
    hypotheses="Any sharp-wrong start.",
    kind="sign",
    recorded="holds_corrected",
    broken={"coupling": -1.0},
)
def heating(coupling: float = 1.0) -> Finding:
    p, _, observed, gradients, tokens = random_states()
    g = tokens[:, 1] - tokens[:, 0]
    exact = -np.einsum("rid,rde,re->ri", tokens, gradients, g) * [1, -1]
    law = identity(plane.velocity(observed["xi"], p, coupling), exact)
    everyone = fall_until_t1("random")
    printed = inequality(everyone, tolerance=1e-9, counterexample=climbing)
    safe = np.concatenate([everyone[flows("random").p.values <= 0], fall_until_t1("equal")])
    ok = law.good and inequality(safe, tolerance=1e-9).good
    mended = Finding("holds" if ok else "refuted", law.margin, law.cases + len(safe))
    return corrected(
        printed,
        mended,
        "Gap i falls exactly while s̃_i > p s̃_j: both fall for all time if p ≤ 0 or c0 = c1. For "
        "p > 0 the larger gap can rise, and then goes on rising long after T1 (see melting-time).",
    )


@LEDGER.claim(
    "melting-time",
    where="our own, beside section 4 (heating)",
    statement="For c1 far above c0 and a = 1/(1 − p), the larger gap is gone only at "
    "T = a B(a, a) exp(a (c1 + p c0) − p) / (4(1 − p)² σ(1 − p)), B the beta function; for p > 0 "
    "it first climbs to a (c1 + p c0 + p log p − (1 + p) log(1 + p)) − p. Equal gaps melt in a "
    "time of order e^c.",
    hypotheses="Limits for c1 − c0 → ∞; the last critical time of |M|² stands for T.",
    kind="limit",
    recorded="holds",
    broken={"start": lambda p, c0, c1: (p, 0 * c0, c1)},
)
def melting_time(start=lambda p, c0, c1: (p, c0, c1)) -> Finding:
    p, c0, c1, _, last, tops = lopsided()
    claimed = start(p, c0, c1)
    up = p > 0
    slow = np.log(last) - plane.lopsided_log_time(*claimed)
    high = tops[up] - plane.lopsided_peak(*(x[up] for x in claimed))
    off = float(np.abs(np.concatenate([slow, high])).max())
    return Finding("holds" if off < 1e-8 else "refuted", off, len(p))


def symmetric_dip(c, p):
    """f(0) − f(T1) for c0 = c1 = c."""
    return (c / (1 - p)) ** 2


@LEDGER.claim(
    "trough-depth",
    where="Appendix A, last line",
    statement="The trough has |M| = c/(1 + p).",
    hypotheses="c0 = c1 = c; the appendix starts from L(0) = [[0, c], [c, 0]] and p = 0.",
    kind="identity",
    recorded="holds_corrected",
    broken={"dip": lambda c, p: (c / (1 + p)) ** 2},
)
def trough_depth(dip=symmetric_dip) -> Finding:
    p, c, _, full = full_flows()
    equal = np.flatnonzero(c[:, 0] == c[:, 1])
    norm2 = np.sum(full.matrix.values[equal] ** 2, axis=(2, 3))
    p, c = p[equal], c[equal, 0]
    trough = norm2[np.arange(len(p)), trough_index()]
    shown = {
        "p": 0.0,
        "c0": 2.0,
        "c1": 2.0,
        "start": [[1, 3], [3, 1]],
        "trough": float(np.sqrt(20 - dip(2.0, 0.0))),
        "printed": 2.0,
        "run": "python -c 'import attnflow as af, numpy as np; print(af.gradient_flow("
        "af.SelfAttention(np.eye(2), np.array([[1.,3.],[3.,1.]])), t1=1e3).norm2.min()**.5)'",
    }
    printed = dataclasses.replace(identity(np.sqrt(trough), c / (1 + p)), counterexample=shown)
    least = flows("equal")
    bottom, least_p, least_c = first_trough("equal"), least.p.values, least.c0.values
    checks = (
        identity(norm2[:, 0] - trough, dip(c, p)),
        identity(np.sqrt(bottom), least_c / (1 + least_p)),
        identity(least.norm2.values[:, 0] - bottom, dip(least_c, least_p)),
    )
    return corrected(
        printed,
        max(checks, key=lambda found: found.margin),
        "For c0 = c1 = c the squared norm dips by c²/(1 − p)² whatever else M(0) contains; its "
        "trough is c/(1 + p) only if M(0) is the least-norm matrix with L(0) = [[0, c], [c, 0]].",
    )


def trough_index() -> np.ndarray:
    """Where the full flows with c0 = c1 have their trough: `full_flows` stops there."""
    p, c, _, full = full_flows()
    equal = c[:, 0] == c[:, 1]
    times = plane.symmetric_time(c[equal, 0], p[equal])
    return np.abs(full.time.values - times[:, None]).argmin(axis=1)


@LEDGER.claim(
    "frozen-offset",
    where="Section 4, parameter side",
    statement="What the flow cannot move adds a constant to |M|², which cancels in the dip "
    "f(0) − f(T1), and in f(0) − f(t) at every t.",
    kind="identity",
    recorded="holds",
    broken={"power": 1.0},
)
def frozen_offset(power: float = 2.0) -> Finding:
    full = full_flows()[3]
    size = np.sum(full.matrix.values**2, axis=(2, 3)) ** (power / 2)
    one, other = np.split(size[:, :1] - size, 2)
    return identity(one, other)


@LEDGER.claim(
    "heating-time",
    where="our own, beside Theorem 3.4",
    statement="For c0 = c1 = c the trough is at T1 = ∫_0^c dξ / (4(1 − p)³ s̃(ξ)), closed in "
    "exponential integrals, and T1 ~ (1 + e^(p − 1)) e^c / (4(1 − p)³).",
    hypotheses="c0 = c1; checked on the flow of the whole matrix.",
    kind="identity",
    recorded="holds",
    broken={"power": 2},
)
def heating_time(power: int = 3) -> Finding:
    p, c, tokens, full = full_flows()
    equal = np.flatnonzero(c[:, 0] == c[:, 1])
    matrices, tokens = full.matrix.values[equal, trough_index()], tokens[equal]
    gaps = np.einsum("rid,rde,re->ri", tokens, matrices, tokens[:, 1] - tokens[:, 0])
    found = identity(1 + gaps, np.ones_like(gaps))
    limit = (1 + np.exp(p - 1)) * np.exp(30.0) / (4 * (1 - p) ** power)
    far = identity(plane.symmetric_time(30.0, p) / limit, np.ones_like(p), tolerance=1e-6)
    return found if far.good else far
