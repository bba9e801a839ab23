"""The host engine: NumPy alone, or SciPy where a flow is stiff. No compiled solver.

A step costs a quarter of a millisecond, a flow some hundred of them: the first answer comes at
once, and the thousandth should come from the compiled engine.
"""

from typing import Any

import numpy as np

from attnflow.dynamics.dop853 import Dop853
from attnflow.dynamics.engines import HostSystem
from attnflow.dynamics.events import Event
from attnflow.dynamics.roots import crossings, sign_changes

AUTO_STEPS = 1500  # before a flow is taken for stiff
BATCH_STEPS = (
    6000  # of a batch, which has the compiled engine to turn to: about as long as compiling
)
STIFF_STEPS = 20_000
SHARE = 0.1  # of the tolerance asked for, in each step: errors add up on the way
STIFF_SHARE = 0.01  # the same for steps of lower order, of which there are more
SAMPLES = 20  # of a step, where sign changes are looked for


def solve(
    system: HostSystem, grid: np.ndarray, rtol: float, atol: float, max_steps: int
) -> dict[str, Any]:
    """States and observables at the times of the grid; of a system of many runs, those first."""
    with np.errstate(all="ignore"):
        start = system.init()
        many = start.ndim == 2
        begin = start if many else start[None]
        run = Dop853(system.velocity, begin, SHARE * rtol, SHARE * atol, system.stepped)
        run.to(grid[-1], max_steps)
        reached = run.s[-1]
        states = run.at(grid[grid <= reached.min()])
        observed = observables(system, states if many else states[:, 0])
    if many:
        states = np.swapaxes(states, 0, 1)
        observed = {name: np.swapaxes(x, 0, 1) for name, x in observed.items()}
    one = slice(None) if many else 0
    return {
        "run": run,
        "states": states if many else states[:, 0],
        "observed": observed,
        "ok": (reached >= grid[-1])[one] & bool(np.isfinite(states).all()),
        "reached": reached[one],
        "last": system.tree(run.y[-1][one]),
        "steps": np.full(len(reached), run.steps)[one],
        "solver": "DOP853",
    }


def solve_stiff(
    system: HostSystem, grid: np.ndarray, rtol: float, atol: float, max_steps: int
) -> dict[str, Any]:
    """The same of one run, by SciPy's LSODA, whose interpolant is as exact as its steps."""
    from scipy.integrate import LSODA

    with np.errstate(all="ignore"):
        tolerances: dict[str, Any] = {
            "rtol": max(STIFF_SHARE * rtol, 1e-13),
            "atol": STIFF_SHARE * atol,
        }
        slopes = {"fun": system.velocity, "jac": system.jacobian}
        run = LSODA(t0=0.0, y0=system.init(), t_bound=grid[-1], **slopes, **tolerances)
        states, steps, done = [], 0, np.searchsorted(grid, 0.0, side="right")
        states += [run.y] * done
        while run.status == "running" and steps < max_steps:
            run.step()
            steps += 1
            passed = np.searchsorted(grid, run.t, side="right")
            if run.status != "failed" and passed > done:
                states += list(run.dense_output()(grid[done:passed]).T)
                done = passed
        found = np.reshape(states, (-1, run.n))
        observed = observables(system, found)
    return {
        "states": found,
        "observed": observed,
        "ok": run.status == "finished" and bool(np.isfinite(found).all()),
        "reached": run.t,
        "last": system.tree(run.y),
        "steps": steps,
        "solver": "LSODA",
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
    """Variables `{name}_time` and `{name}_value` over a dimension `{name}_event`; of many runs,
    over `run` before it, NaN where one has fewer than another."""
    start = system.init()
    many = start.ndim == 2
    if np.ndim(event.value(system, start)) != int(many):
        raise ValueError(f"event on {event.observable!r}: needs a scalar observable")

    def states(s):
        y = run.at(s)
        return y if many else y[:, 0]

    def value(s):
        return event.value(system, states(s)).reshape(s.shape)

    with np.errstate(all="ignore"):
        runs = len(run.y[0])
        found = crossings(value, np.repeat(grid[:, None], runs, axis=1))
        s = np.full((max(map(len, found)), runs), np.nan)
        for each, times in enumerate(found):
            s[: len(times), each] = times
        there = np.isfinite(s)
        heights = np.full(s.shape, np.nan)
        if s.size:
            seen = observables(system, states(np.where(there, s, 0.0)))[event.observable]
            heights[there] = seen.reshape(s.shape)[there]
    name = f"{event.name}_event"
    if many:
        dims, s, heights = ("run", name), s.T, heights.T
    else:
        dims, s, heights = (name,), s[:, 0], heights[:, 0]
    return {f"{event.name}_time": (dims, np.expm1(s)), f"{event.name}_value": (dims, heights)}


def norm_turns(reduction: Any, points: int, rtol: float) -> tuple[np.ndarray, np.ndarray, bool]:
    """Times and values of the critical points of |M|² on the path's own clock, where t is carried
    along (dt/ds = e^-log_rate), until both gaps are negative; and whether the norm falls at first.
    """

    def field(_, y):
        log_rate, direction = reduction.rates(y[..., :-1])
        return np.concatenate([direction, np.exp(-log_rate)[..., None]], axis=-1)

    def slope(y):
        return reduction.host_slope("norm2", y[..., :-1])

    def committed(y):
        return (reduction.gaps(y[..., :-1]) < 0).all(axis=-1)

    with np.errstate(all="ignore"):
        start = np.append(reduction.init(), 0.0)[None]
        run = Dop853(field, start, SHARE * rtol, SHARE * 0.1 * rtol)
        if not run.until(committed, 100_000):
            raise RuntimeError("the path stopped before both gaps were negative")
        (turns,) = sign_changes(run, slope, max(2, round(SAMPLES * points / 2000)))
        found = run.at(turns)[:, 0]
        moving = slope(np.stack(run.y)[:, 0])
    heights = reduction.observe(found[:, :-1])["norm2"]
    return found[:, -1], heights, bool(turns.size and moving[np.argmax(moving != 0)] < 0)
