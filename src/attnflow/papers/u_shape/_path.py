"""The two-token flow by the distance that its logit gaps travel, instead of by time.

A saturated token waits for a time of order e^c and then turns within a time of order one. On the
clock log(1 + t) that turn is e^-c wide: two critical points of the norm fall between neighbouring
output times and are lost. By distance r, with |dξ/dr| = 1, both phases have a length of order c.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attnflow.models.two_token import TwoToken, TwoTokenReduction

U, W_FIRST, W_SECOND = 1, 2, 3  # one trough; two, of which the first or the second is lower


class Walk(NamedTuple):
    """Arrays (run, step + 1): time, the squared norm of the part of M that moves, and the sign of
    its slope; (run, 2): the last gaps."""

    time: np.ndarray
    norm2: np.ndarray
    slope_sign: np.ndarray
    last_gaps: np.ndarray

    def shapes(self) -> np.ndarray:
        """U, W_FIRST or W_SECOND of each run; 0 for any other number of critical points.

        The critical points are all there: once both gaps are negative the norm only grows.
        """
        if (self.last_gaps >= 0).any():
            raise RuntimeError("the walk is too short: a logit gap is still positive at its end")
        turns = np.cumsum(self.slope_sign[:, 1:] != self.slope_sign[:, :-1], axis=1)
        count, norm2 = turns[:, -1], self.norm2[:, 1:]
        first_trough = np.where(turns < 2, norm2, np.inf).min(axis=1)
        second_trough = np.where(turns < 2, np.inf, norm2).min(axis=1)
        two = np.where(second_trough < first_trough, W_SECOND, W_FIRST)
        return np.where(count == 1, U, np.where(count == 3, two, 0))


def walk(p, c0, c1, *, length: float, steps: int) -> Walk:
    """Flows from gaps (c0, c1), one run for each entry, over the distance `length`.

    Runge–Kutta 4 with `steps` equal steps; O(runs · steps).
    """
    with jax.enable_x64(True):
        fields = (np.asarray(x, np.float64) for x in np.broadcast_arrays(p, c0, c1))
        return Walk(*map(np.asarray, _walk(*fields, np.float64(length), steps)))


@functools.partial(jax.jit, static_argnames="steps")
def _walk(p, c0, c1, length, steps):
    def one(p, c0, c1):
        model = TwoToken(p=p, c0=c0, c1=c1)
        # The gaps of M(0) are c0 and c1 only up to rounding, and for p > 0 the flow amplifies that
        # exponentially: an exact start keeps c0 = c1 symmetric.
        start = model.observe(model.init()) | {"xi": jnp.stack([c0, c1])}
        reduction = TwoTokenReduction(model, start)

        def velocity(state):
            ab, _ = state
            direction = reduction.direction(ab)
            gaps = jax.jvp(reduction.gaps, (ab,), (direction,))[1]
            pace = 1 / jnp.linalg.norm(gaps)
            return pace * direction, pace * jnp.exp(-reduction.log_rate(ab))

        def observe(state):
            ab, time = state
            norm2, slope = jax.jvp(
                lambda y: reduction.observe(y)["norm2"], (ab,), (reduction.direction(ab),)
            )
            return time, norm2 - start["frozen_norm2"], jnp.sign(slope)

        def step(state, _):
            def moved(h, k):
                return jax.tree.map(lambda y, v: y + h * v, state, k)

            h = length / steps
            k1 = velocity(state)
            k2 = velocity(moved(h / 2, k1))
            k3 = velocity(moved(h / 2, k2))
            k4 = velocity(moved(h, k3))
            mean = jax.tree.map(lambda a, b, c, d: (a + 2 * b + 2 * c + d) / 6, k1, k2, k3, k4)
            state = moved(h, mean)
            return state, observe(state)

        begin = (reduction.init(), jnp.zeros(()))
        (ab, _), seen = jax.lax.scan(step, begin, None, length=steps)
        seen = jax.tree.map(lambda x, y: jnp.concatenate([x[None], y]), observe(begin), seen)
        return *seen, reduction.gaps(ab)

    return jax.vmap(one)(p, c0, c1)
