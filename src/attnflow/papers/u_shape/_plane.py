"""The two-token flow in the plane of its logit gaps, by formulas of its own: a check of the models.

With q = 1 − p, |g|² = 2q and s̃ the pull of a row toward its right token,

    ξ0' = −4q² (s̃0 − p s̃1),   ξ1' = −4q² (s̃1 − p s̃0),   d|M|²/dt = −4q (h(ξ0) + h(ξ1)),

where h(ξ) = ξ s̃(ξ). The critical points of |M|² are the crossings of the curve h(ξ0) + h(ξ1) = 0.
"""

from typing import NamedTuple

import numpy as np

from attnflow.attention.similarities import sigmoid
from attnflow.dynamics.dop853 import Dop853
from attnflow.dynamics.roots import roots, sign_changes

FAR = 700.0  # a gap whose pull is nearly the smallest floating-point number


def expit(x) -> np.ndarray:
    return sigmoid(np.asarray(x, float))


def pull(xi, p):
    """s̃ = σ((1 − p)(2σ − 1)) σ (1 − σ) at σ = σ(ξ); with e = e^-|ξ|, |2σ − 1| = (1 − e)/(1 + e)."""
    e = np.exp(-np.abs(xi))
    tilt = (1 - p) * np.copysign((1 - e) / (1 + e), xi)
    return e / (1 + e) ** 2 / (1 + np.exp(-tilt))


def velocity(xi, p, coupling=1.0):
    """dξ/dt of both rows; the last axis of `xi` is the token."""
    s, p = pull(xi, np.asarray(p)[..., None]), np.asarray(p)[..., None]
    return -4 * (1 - p) ** 2 * (s - coupling * p * s[..., ::-1])


def active_norm2(xi, p):
    """The squared norm of the part of M that moves: ξᵀ P⁻¹ ξ / |g|², P = [[1, −p], [−p, 1]]."""
    xi0, xi1 = np.moveaxis(np.asarray(xi), -1, 0)
    return (xi0**2 + 2 * p * xi0 * xi1 + xi1**2) / (2 * (1 - p) ** 2 * (1 + p))


def push(xi, p):
    """h(ξ) = ξ s̃(ξ): what a row adds to the fall of |M|²."""
    return xi * pull(xi, p)


def push_slope(xi, p):
    """h'(ξ)."""
    s = expit(xi)
    fall, z = s * (1 - s), expit((1 - p) * (2 * s - 1))
    return pull(xi, p) + xi * (2 * (1 - p) * z * (1 - z) * fall**2 + z * fall * (1 - 2 * s))


def tangency(p) -> tuple[np.ndarray, np.ndarray]:
    """Where an orbit touches the critical curve, for each p: the start of the border between U and
    W. On the curve ξ1 is the larger solution of h(ξ1) = −h(ξ0)."""
    p = np.atleast_1d(p).astype(float)
    top = roots(lambda xi1: push_slope(xi1, p), np.full(len(p), 0.1), np.full(len(p), 5.0))

    def partner(xi0):
        high, own, low = (np.broadcast_to(x, xi0.shape).ravel() for x in (FAR, p, top))
        balance = push(xi0.ravel(), own)
        return roots(lambda xi1: push(xi1, own) + balance, low, high).reshape(xi0.shape)

    def along(xi0):
        xi1 = partner(xi0)
        s0, s1 = pull(xi0, p), pull(xi1, p)
        return push_slope(xi0, p) * (s0 - p * s1) + push_slope(xi1, p) * (s1 - p * s0)

    xi0 = roots(along, np.full(len(p), -5.0), np.full(len(p), -0.1))
    return xi0, partner(xi0)


def threshold(p, c0) -> np.ndarray:
    """The c1 > c0 beyond which |M|² has three critical points: the orbit through `tangency`,
    followed back to ξ0 = c0; for arrays of both."""
    p, c0 = np.broadcast_arrays(np.atleast_1d(p).astype(float), c0)
    xi0, xi1 = tangency(p)

    def field(s, y):
        x = pull(xi0 + s * (c0 - xi0), p)
        y = pull(y[..., 0], p)
        return ((c0 - xi0) * (y - p * x) / (x - p * y))[..., None]

    run = Dop853(field, xi1[:, None], rtol=1e-12, atol=1e-13)
    arrived(run.to(1.0))
    return run.y[-1][:, 0]


def arrived(there: bool) -> None:
    if not there:
        raise RuntimeError("an orbit in the plane of the gaps was not followed to its end")


class Orbit(NamedTuple):
    """Critical points of |M|² along an orbit, and the turns of gap 1 from rising to falling."""

    times: np.ndarray
    gaps: np.ndarray
    tops: np.ndarray


def orbits(p, c0, c1) -> list[Orbit]:
    """Follow the gaps of each start until both are below −1/2, where |M|² can only grow.

    The clock is dτ = 4q² (s̃0 + s̃1) dt: a gap of 100 waits for e^100 and then falls within a time
    of order 1, which no clock that knows only t can resolve. Two critical points within a twentieth
    of a step are missed.
    """
    p, c0, c1 = np.broadcast_arrays(*(np.atleast_1d(x).astype(float) for x in (p, c0, c1)))

    def pulls(y):
        s = pull(y[..., :2], p[:, None])
        return s, s.sum(axis=-1, keepdims=True)

    def field(_, y):
        s, total = pulls(y)
        down = (p[:, None] * s[..., ::-1] - s) / total
        return np.concatenate([down, 1 / (4 * (1 - p[:, None]) ** 2 * total)], axis=-1)

    def critical(y):
        return np.sum(y[..., :2] * pulls(y)[0], axis=-1)

    def falling(y):
        s, _ = pulls(y)
        return s[..., 1] - p * s[..., 0]

    with np.errstate(all="ignore"):  # of steps that are too long, and tried again
        run = Dop853(field, np.stack([c0, c1, 0 * c0], axis=1), rtol=1e-11, atol=1e-11)
        arrived(run.until(lambda y: y[:, :2].max(axis=1) < -0.5))
        turns = sign_changes(run, critical, samples=20)
        tops = sign_changes(run, falling, samples=20)
        found = []
        for each, rises in enumerate(falling(run.y[0]) < 0):
            at = run.at(np.append(turns[each], tops[each][0 if rises else 1 :: 2]))[:, each]
            where, highest = np.split(at, [len(turns[each])])
            found.append(Orbit(where[:, 2], where[:, :2], highest[:, 1]))
    return found


def symmetric_time(c, p):
    """Time in which equal gaps fall from c to 0: ∫ dξ / (4q³ s̃) in exponential integrals."""
    from scipy.special import expi  # half a second to import

    q = 1 - p
    near, far = 2 * expit(-c), 2 * expit(c)  # 1 − u and 1 + u at u = tanh(c/2)
    flat = (np.sinh(c) + c) / 4
    toward = (1 + q) * (expi(q) - expi(q * near)) - np.exp(q) + np.exp(q * near) / near
    away = (1 - q) * (expi(-q * far) - expi(-q)) + np.exp(-q) - np.exp(-q * far) / far
    return 2 / q**3 * (flat + (np.exp(-q) * toward + np.exp(q) * away) / 4)


def lopsided_peak(p, c0, c1):
    """Limit, for c1 far above c0 and p > 0, of the height to which gap 1 climbs before it falls."""
    swing = p * np.log(p) - (1 + p) * np.log(1 + p)
    return (c1 + p * c0 + swing) / (1 - p) - p


def lopsided_log_time(p, c0, c1):
    """Limit of the logarithm of the time at which gap 1 is gone."""
    from scipy.special import betaln

    q = 1 - p
    scale = (c1 + p * c0) / q - p - np.log(4 * q**2 * expit(q))
    return scale + betaln(1 / q, 1 / q) - np.log(q)
