"""The host engine: SciPy's adaptive solvers on a NumPy right-hand side. No compiler, no JAX.

A step costs about half a millisecond, a flow some hundred of them: the first answer comes at once,
and the thousandth should come from the compiled engine.
"""

from typing import Any

import numpy as np
from scipy.integrate import DOP853, RK45, Radau
from scipy.optimize import brentq

from attnflow.dynamics.engines import HostSystem
from attnflow.dynamics.events import FINEST, Event
from attnflow.dynamics.trees import Packing, packed

SOLVERS = {"auto": DOP853, "explicit": DOP853, "stiff": Radau, "quick": RK45}
AUTO_STEPS = 3000  # of the explicit solver, before the compiled engine is asked
TIGHTEST = 1e-13  # relative tolerance: SciPy takes no less
FIRST = 1e-4  # step on a path's own clock: SciPy's guess overflows where t begins at e^600
SAMPLES = 20  # of a step, where sign changes are looked for


def solve(
    system: HostSystem, grid: np.ndarray, rtol: float, atol: float, max_steps: int, solver: str
) -> dict[str, Any]:
    """States and observables at the times of the grid, each stepped onto."""
    start = system.init()
    packing = Packing(start)

    def field(s, y):
        return packed(system.velocity(s, packing.unpacked(y)))

    with np.errstate(all="ignore"):
        run = Stepper(SOLVERS[solver], field, 0.0, packed(start), rtol, atol, max_steps)
        rows = []
        for target in grid:
            if not run.to(target):
                break
            rows.append(run.y)
        states = [packing.unpacked(row) for row in rows]
        seen = [system.observe(state) for state in states]
        observed = {name: np.stack([x[name] for x in seen]) for name in sorted((seen or [{}])[0])}
    return {
        "rows": rows,
        "states": np.stack(rows) if rows else np.zeros((0, 1)),
        "observed": observed,
        "ok": len(rows) == len(grid) and bool(np.isfinite(rows).all()),
        "reached": run.s,
        "last": packing.unpacked(run.y),
        "steps": run.steps,
        "solver": SOLVERS[solver].__name__,
    }


class Stepper:
    """One integration that can be led from one time to the next."""

    def __init__(self, method: Any, field, s: float, y, rtol, atol, max_steps: int, first=None):
        tolerances = {"rtol": max(float(rtol), TIGHTEST), "atol": float(atol)}
        self.solver = method(field, s, y, np.inf, first_step=first, **tolerances)
        self.steps, self.max_steps = 0, max_steps

    @property
    def s(self) -> float:
        return self.solver.t

    @property
    def y(self) -> np.ndarray:
        return np.array(self.solver.y)

    def step(self) -> bool:
        self.solver.step()
        self.steps += 1
        return self.solver.status != "failed" and self.steps < self.max_steps

    def to(self, target: float) -> bool:
        """Whether it arrived."""
        if target == self.solver.t:
            return True
        self.solver.t_bound, self.solver.status = target, "running"
        while self.solver.status == "running":
            if not self.step() and self.solver.status != "finished":
                return False
        return True


def locate(event: Event, system: HostSystem, grid, solved, rtol: float, atol: float) -> dict:
    """Variables `{name}_time` and `{name}_value` over a dimension `{name}_event`."""
    rows, packing = solved["rows"], Packing(system.init())

    def value(row):
        return float(event.value(system, packing.unpacked(row)))

    def field(s, y):
        return packed(system.velocity(s, packing.unpacked(y)))

    first = event.value(system, packing.unpacked(rows[0]))
    if np.ndim(first):
        raise ValueError(f"event on {event.observable!r}: needs a scalar observable")
    with np.errstate(all="ignore"):
        values = np.array([value(row) for row in rows])
        times, heights = [], []
        for left in brackets(values):
            s, row = refined(field, value, grid[left], grid[left + 1], rows[left], rtol, atol)
            times.append(np.expm1(s))
            heights.append(float(system.observe(packing.unpacked(row))[event.observable]))
    dims = (f"{event.name}_event",)
    return {
        f"{event.name}_time": (dims, np.array(times, float)),
        f"{event.name}_value": (dims, np.array(heights, float)),
    }


def brackets(values: np.ndarray, first: bool = True) -> np.ndarray:
    """Where the sign changes before the next value; first: the start itself is no event."""
    sign = np.sign(values)
    left = np.flatnonzero((sign[:-1] * sign[1:] < 0) | (sign[:-1] == 0))
    return left[~((values[left] == 0) & (left == 0))] if first else left


def refined(field, value, left: float, right: float, row, rtol: float, atol: float):
    """The root of `value` between two clocks, and the state there, by integration from the left."""
    if value(row) == 0:
        return left, row

    def state(s: float) -> np.ndarray:
        tight = (min(rtol, 1e-12), min(atol, 1e-14))
        run = Stepper(DOP853, field, left, row, *tight, 4096, first=s - left)
        run.to(s)
        return run.y

    def gap(s: float) -> float:
        return value(row) if s == left else value(state(s))

    if np.sign(gap(right)) == np.sign(value(row)):  # a root at the very end, lost to rounding
        return right, state(right)
    width = FINEST * (1 + abs(right))
    s: Any = brentq(gap, left, right, xtol=width, rtol=4 * np.finfo(float).eps)
    return s, state(s)


def norm_turns(reduction: Any, points: int, rtol: float) -> tuple[np.ndarray, np.ndarray, bool]:
    """Times and values of the critical points of |M|² on the path's own clock, where t is carried
    along (dt/ds = e^-log_rate), until both gaps are negative; and whether the norm falls at first.
    """
    samples = max(2, round(SAMPLES * points / 2000))

    def field(_, y):
        state = y[:-1]
        return np.append(reduction.direction(state), np.exp(-reduction.log_rate(state)))

    def value(row):
        return reduction.host_slope("norm2", row[:-1])

    times, heights = [], []
    with np.errstate(all="ignore"):
        start = np.append(reduction.init(), 0.0)
        run = Stepper(DOP853, field, 0.0, start, rtol, 0.1 * rtol, 100_000, first=FIRST)
        before = value(start)
        falling = bool(before < 0) if before != 0 else None
        while (reduction.gaps(run.y[:-1]) >= 0).any():
            left, row = run.s, run.y
            if not run.step():
                raise RuntimeError("the path stopped before both gaps were negative")
            inner = np.linspace(left, run.s, samples + 1)
            path = run.solver.dense_output()(inner)
            path[:, 0], path[:, -1] = row, run.y
            values = np.asarray(value(path))
            if falling is None and values[1] != 0:
                falling = bool(values[1] < 0)
            for i in brackets(values, first=left == 0):
                _, found = _turn(field, value, left, row, inner[i], inner[i + 1], rtol)
                times.append(found[-1])
                heights.append(float(reduction.observe(found[:-1])["norm2"]))
    return np.array(times), np.array(heights), bool(falling)


def _turn(field, value, left, row, low, high, rtol):
    """A root in part of a step: the state at the low end comes from the step's own start."""
    if low > left:
        first = low - left
        run = Stepper(DOP853, field, left, row, min(rtol, 1e-12), 1e-14, 4096, first=first)
        run.to(low)
        row = run.y
    return refined(field, value, low, high, row, rtol, 0.1 * rtol)
