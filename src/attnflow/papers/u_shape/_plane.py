"""The two-token flow in the plane of its logit gaps, in plain NumPy.

With q = 1 − p, |g|² = 2q and s̃ the pull of a row toward its right token,

    ξ0' = −4q² (s̃0 − p s̃1),   ξ1' = −4q² (s̃1 − p s̃0),   d|M|²/dt = −4q (h(ξ0) + h(ξ1)),

where h(ξ) = ξ s̃(ξ). The critical points of |M|² are the crossings of the curve h(ξ0) + h(ξ1) = 0.
"""

import functools
from typing import NamedTuple

import numpy as np
import scipy  # its parts load when they are used
from scipy.special import betaln, expi, expit


def pull(xi, p):
    """s̃ = σ((1 − p)(2σ − 1)) σ (1 − σ) at σ = σ(ξ)."""
    return expit((1 - p) * np.tanh(np.asarray(xi) / 2)) * expit(xi) * expit(-np.asarray(xi))


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


def outer_partner(xi0: float, p: float) -> float:
    """The larger ξ1 > 0 with h(ξ1) = −h(ξ0), for ξ0 < 0."""
    top = scipy.optimize.brentq(push_slope, 0.1, 5.0, args=(p,))
    root = scipy.optimize.brentq(lambda xi1: push(xi1, p) + push(xi0, p), top, 700.0)
    return float(root)  # pyright: ignore[reportArgumentType]


@functools.cache
def tangency(p: float) -> tuple[float, float]:
    """Where an orbit touches the critical curve: the start of the border between U and W."""

    def along(xi0):
        xi1 = outer_partner(xi0, p)
        s0, s1 = pull(xi0, p), pull(xi1, p)
        return push_slope(xi0, p) * (s0 - p * s1) + push_slope(xi1, p) * (s1 - p * s0)

    xi0 = float(scipy.optimize.brentq(along, -5.0, -0.1))  # pyright: ignore[reportArgumentType]
    return xi0, outer_partner(xi0, p)


def threshold(p: float, c0: float) -> float:
    """The c1 > c0 beyond which |M|² has three critical points: the orbit through `tangency`,
    followed back to ξ0 = c0."""
    xi0, xi1 = tangency(p)

    def field(x, y):
        return (pull(y, p) - p * pull(x, p)) / (pull(x, p) - p * pull(y, p))

    path = scipy.integrate.solve_ivp(
        field, (xi0, c0), [xi1], method="DOP853", rtol=1e-12, atol=1e-13
    )
    return float(path.y[0, -1])


class Orbit(NamedTuple):
    """Critical points of |M|² along an orbit, and the turns of gap 1 from rising to falling."""

    times: np.ndarray
    gaps: np.ndarray
    tops: np.ndarray


def orbit(p: float, c0: float, c1: float, max_step: float = 0.1) -> Orbit:
    """Follow the gaps until both are below −1/2, where |M|² can only grow.

    The clock is dτ = 4q² (s̃0 + s̃1) dt: a gap of 100 waits for e^100 and then falls within a time
    of order 1, which no clock that knows only t can resolve. Two critical points within one step
    are missed: with the default, those of starts within 0.1% of `threshold`.
    """

    def pulls(y):
        s = pull(y[:2], p)
        return s, s[0] + s[1]

    def field(_, y):
        s, total = pulls(y)
        down = (p * s[::-1] - s) / total
        return [*down, 1 / (4 * (1 - p) ** 2 * total)]

    def critical(_, y):
        s, total = pulls(y)
        return y[:2] @ s / total

    def top(_, y):
        s, total = pulls(y)
        return (s[1] - p * s[0]) / total

    def done(_, y):
        return max(y[:2]) + 0.5

    # SciPy reads these options from attributes of the functions
    vars(done)["terminal"], vars(top)["direction"] = True, 1
    path = scipy.integrate.solve_ivp(
        field,
        (0, 1e5),
        [c0, c1, 0.0],
        method="DOP853",
        events=(critical, top, done),
        max_step=max_step,
        rtol=1e-11,
        atol=1e-11,
    )
    turns, tops, _ = (np.reshape(found, (-1, 3)) for found in path.y_events)
    return Orbit(turns[:, 2], turns[:, :2], tops[:, 1])


def symmetric_time(c, p):
    """Time in which equal gaps fall from c to 0: ∫ dξ / (4q³ s̃) in exponential integrals."""
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
    q = 1 - p
    scale = (c1 + p * c0) / q - p - np.log(4 * q**2 * expit(q))
    return scale + betaln(1 / q, 1 / q) - np.log(q)
