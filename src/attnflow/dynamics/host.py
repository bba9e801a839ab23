"""The host engine: NumPy alone. No compiler, no JAX, no SciPy.

A step costs a quarter of a millisecond, a flow some hundred of them: the first answer comes at
once, and the thousandth should come from the compiled engine.
"""

from typing import Any

import numpy as np

from attnflow.dynamics.dop853 import Dop853
from attnflow.dynamics.engines import HostSystem
from attnflow.dynamics.events import FINEST, Event

AUTO_STEPS = 3000  # before the compiled engine is asked
SHARE = 0.1  # of the tolerance asked for, in each step: errors add up on the way
SAMPLES = 20  # of a step, where sign changes are looked for
SECTIONS = 32  # of an interval that holds a root, again and again


def solve(
    system: HostSystem, grid: np.ndarray, rtol: float, atol: float, max_steps: int, runs: int = 1
) -> dict[str, Any]:
    """States and observables at the times of the grid."""
    with np.errstate(all="ignore"):
        run = Dop853(system.velocity, 0.0, system.init(), SHARE * rtol, SHARE * atol, runs)
        arrived = run.to(grid[-1], max_steps)
        states = run.at(grid[grid <= run.s[-1]])
        observed = observables(system, states)
    return {
        "run": run,
        "states": states,
        "observed": observed,
        "ok": arrived and bool(np.isfinite(states).all()),
        "reached": run.s[-1],
        "last": system.tree(run.y[-1]),
        "steps": run.steps,
        "solver": "DOP853",
    }


def observables(system: HostSystem, states: np.ndarray) -> dict[str, np.ndarray]:
    """Of every row of states; what does not change is repeated."""
    shapes = {name: np.shape(x) for name, x in system.observe(system.init()).items()}
    found = system.observe(states)
    return {
        name: np.broadcast_to(found[name], (len(states), *shapes[name])).copy()
        for name in sorted(shapes)
    }


def locate(event: Event, system: HostSystem, grid: np.ndarray, run: Dop853) -> dict[str, Any]:
    """Variables `{name}_time` and `{name}_value` over a dimension `{name}_event`."""
    if np.ndim(event.value(system, system.init())):
        raise ValueError(f"event on {event.observable!r}: needs a scalar observable")

    def value(s):
        return event.value(system, run.at(s))

    with np.errstate(all="ignore"):
        found = np.array([root(value, *grid[i : i + 2]) for i in brackets(value(grid))])
        seen = observables(system, run.at(found)) if found.size else {}
    dims = (f"{event.name}_event",)
    return {
        f"{event.name}_time": (dims, np.expm1(found)),
        f"{event.name}_value": (dims, seen.get(event.observable, np.zeros(0))),
    }


def brackets(values: np.ndarray) -> np.ndarray:
    """Where the sign changes before the next value; the start itself is no event."""
    sign = np.sign(values)
    left = np.flatnonzero((sign[:-1] * sign[1:] < 0) | (sign[:-1] == 0))
    return left[~((values[left] == 0) & (left == 0))]


def root(value, low: Any, high: Any) -> Any:
    """Of a function of many times at once that changes its sign between these two."""
    while True:
        s = np.linspace(low, high, SECTIONS + 1)
        sign = np.sign(value(s))
        change = np.flatnonzero(sign != sign[0])
        if sign[0] == 0 or not change.size:  # at the very end, lost to rounding
            return low if sign[0] == 0 else high
        first = change[0]
        if sign[first] == 0:
            return s[first]
        low, high = s[first - 1], s[first]
        if high - low <= FINEST * (1 + abs(high)):
            return low


def norm_turns(reduction: Any, points: int, rtol: float) -> tuple[np.ndarray, np.ndarray, bool]:
    """Times and values of the critical points of |M|² on the path's own clock, where t is carried
    along (dt/ds = e^-log_rate), until both gaps are negative; and whether the norm falls at first.
    """
    samples = max(2, round(SAMPLES * points / 2000))

    def field(_, y):
        log_rate, direction = reduction.rates(y[..., :-1])
        return np.concatenate([direction, np.exp(-log_rate)[..., None]], axis=-1)

    with np.errstate(all="ignore"):
        start = np.append(reduction.init(), 0.0)
        run = Dop853(field, 0.0, start, SHARE * rtol, SHARE * 0.1 * rtol)
        while (reduction.gaps(run.y[-1][:-1]) >= 0).any():
            if run.steps > 100_000 or not run.step():
                raise RuntimeError("the path stopped before both gaps were negative")

        def value(s):
            return reduction.host_slope("norm2", run.at(s)[..., :-1])

        if len(run.s) == 1:
            return np.zeros(0), np.zeros(0), False
        between = np.linspace(run.s[:-1], run.s[1:], samples, endpoint=False, axis=1).ravel()
        s = np.append(between, run.s[-1])
        values = value(s)
        turns = [root(value, s[i], s[i + 1]) for i in brackets(values)]
        found = run.at(np.array(turns))
    moving = values[values != 0]
    heights = reduction.observe(found[:, :-1])["norm2"]
    return found[:, -1], heights, bool(moving[0] < 0)
