"""Gradient flow: dθ/dt = −∇ loss(θ), integrated adaptively on a logarithmic clock.

The clock is s = log(1 + t): a flow that slows down like 1/t moves at a steady pace in s, so
t = 1e12 costs about as many steps as t = 100.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from attnflow._checks import at_least, below, choice, fits_memory, positive
from attnflow.dynamics import events as ev
from attnflow.dynamics import host
from attnflow.dynamics.engines import followed, host_system, is_for_host
from attnflow.dynamics.errors import FlowError
from attnflow.dynamics.starts import begun
from attnflow.dynamics.trajectory import dataset, describe
from attnflow.dynamics.trees import leaves, mapped
from attnflow.models.interface import Model

SOLVERS = ("explicit", "stiff", "quick")


def gradient_flow(
    model: Model,
    t1: float | None = None,
    *,
    times: Sequence[float] | np.ndarray | None = None,
    log_t1: float | None = None,
    points: int = 200,
    events: Sequence[ev.Event] = (),
    runs: int | None = None,
    over: Mapping[str, Any] | None = None,
    key: Any = None,
    start: Any = None,
    frozen: Sequence[str] = (),
    rates: Mapping[str, float] | None = None,
    rtol: float = 1e-10,
    atol: float = 1e-12,
    max_steps: int = 200_000,
    solver: str = "auto",
    path: str = "auto",
    engine: str = "auto",
) -> xr.Dataset:
    """The gradient flow of `model` from t = 0, as a Dataset over `time`.

    Output falls on `times`, or on `points` times up to `t1` that are even in log(1 + t). An
    integrator's interpolant would lose two digits: the compiled one steps onto every output time,
    the host reaches it by one more step of its own; only the quick one interpolates. Beyond the
    range of floating point give `log_t1` = log(1 + t1) instead of `t1`; it needs a reduced path.
    The Dataset always carries `log_time` = log(1 + t).

    runs, key: `runs` random starts from `model.init(key)`, in one compiled call, dimension `run`.
    over: field name to values, one run for each: `over={"c0": c0s, "c1": c1s}`; for a field that
    is a dict or a module, a list of such.
    start: parameters to begin with, as `model.init()` has them, instead of the model's own; arrays
    with one more axis in front are as many runs. frozen: blocks of parameters that do not move.
    rates: block to a factor of its velocity; both need the full path. Another start or rate does
    not compile again.
    events: `Critical("norm2")`, `Crosses("loss", 0.1)`; located by root finding on the flow itself
    (see `attnflow.dynamics.events`).
    path: "reduced" takes the model's exact low-dimensional form, "full" differentiates its loss,
    "auto" prefers the reduced one.
    solver: "explicit" (Dormand–Prince 8), "stiff" (Kvaerno 5, implicit), "quick" (Tsitouras 5
    and its interpolant, which loses up to a digit: the cheapest where a loss costs milliseconds or
    rtol is 1e-6 or looser); "auto" starts explicit and turns to the stiff one when the step limit
    shows that the flow is stiff.

    engine: "host" follows one run of a small model (stiff: by LSODA, without events) or a few
    hundred, in NumPy, and answers at once (at most the velocity is compiled); "compiled"
    compiles a solver for seconds and then takes milliseconds a run; "auto" takes the host for the
    first few flows of a kind, where the model is small, and the compiled one otherwise.

    Raises `FlowError` with the time and state reached when the final time cannot be reached.
    A second call with the same shapes does not compile again.

        >>> import attnflow as af
        >>> flow = af.gradient_flow(af.TwoToken(p=0.0, c0=6.0, c1=6.0), t1=1e4)
        >>> bool(flow.norm2.min() < flow.norm2[0] < flow.norm2[-1])
        True
    """
    choice("path", path, ("auto", "full", "reduced"))
    choice("solver", solver, ("auto", *SOLVERS))
    choice("engine", engine, ("auto", "host", "compiled"))
    at_least("max_steps", max_steps, 1)
    positive("rtol", rtol)
    below("rtol", rtol, 0.1, "it is a relative error")
    positive("atol", atol)
    grid = clock_grid(t1, times, log_t1, points)
    beginning, starts = begun(model, key, start, frozen, rates)
    result = None
    if engine != "compiled":
        which = (over, runs, beginning, starts)
        result = _on_host(model, which, grid, events, rtol, atol, max_steps, solver, path, engine)
    if result is None:
        if engine == "host":
            raise ValueError(
                "engine: the host follows one flow, or a few, of a small model; "
                f"this one of {type(model).__name__} needs engine='compiled'"
            )
        from attnflow.dynamics import compiled

        tolerances = (np.float64(rtol), np.float64(atol))
        result = compiled.flow(
            model,
            over,
            runs,
            (beginning, starts),
            grid,
            events,
            tolerances,
            max_steps,
            solver,
            path,
        )
    solved, used, axes, located = result
    raise_on_failure(solved, grid[-1], lead="run" in axes)
    with np.errstate(over="ignore"):
        axes["time"] = np.expm1(grid)
    attrs = {
        "model": describe(model),
        "solver": used,
        "rtol": rtol,
        "atol": atol,
        "steps": int(np.max(solved["steps"])),
    }
    coords: dict[str, Any] = {"log_time": ("time", grid)}
    for name, values in (over or {}).items():
        if np.ndim(values) == 1 and np.asarray(values).dtype.kind in "fiu":
            coords[name] = ("run", np.asarray(values))
    ds = dataset(solved["observed"], model.dims, axes, attrs, coords)
    for variables in located:
        ds = ds.assign(variables)
    return ds


def clock_grid(t1, times, log_t1, points) -> np.ndarray:
    """The output times as values of s = log(1 + t)."""
    if sum(x is not None for x in (t1, times, log_t1)) != 1:
        raise ValueError("give exactly one of t1, times and log_t1")
    if times is not None:
        times = np.asarray(times, np.float64)
        if times.ndim != 1 or times.size == 0 or not np.isfinite(times).all():
            raise ValueError("times must be a non-empty list of finite numbers")
        if times[0] < 0 or (np.diff(times) <= 0).any():
            raise ValueError("times must increase from 0 or later: the flow starts at t = 0")
        if times[-1] == 0:
            raise ValueError("times must reach beyond the start t = 0")
        return np.log1p(times)
    at_least("points", points, 2, "a trajectory has a first and a last time")
    fits_memory(f"points = {points}", 4 * 8 * points)
    if t1 is not None:
        if not (np.isfinite(t1) and t1 > 0):
            raise ValueError(f"t1 must be finite and after the start t = 0 (got {t1})")
        log_t1 = float(np.log1p(t1))
    elif not (np.isfinite(log_t1) and log_t1 > 0):
        raise ValueError(f"log_t1 must be finite and positive (got {log_t1})")
    return np.linspace(0.0, log_t1, points)


def _on_host(model, which, grid, events, rtol, atol, max_steps, solver, path, engine):
    """What the host finds; None where it is not for the host."""
    over, runs, start, starts = which
    many = over is not None or runs is not None or starts is not None
    earlier = followed(model, f"{path}, many" if many else path, len(grid))
    if solver == "stiff" and events:
        return None
    if not is_for_host(model, grid, solver, engine, many, earlier):
        return None
    system = host_system(model, over, runs, start, starts, path, earlier)
    if system is None or not all(system.knows(event) for event in events):
        return None
    patient = engine == "host"
    with system.precision():
        solved = {"ok": False, "reached": -1.0}
        if solver != "stiff":
            most = host.BATCH_STEPS if many else host.AUTO_STEPS
            limit = max_steps if patient else min(max_steps, most)
            solved = host.solve(system, grid, rtol, atol, limit)
        if solver != "explicit" and not many and not events and not solved["ok"]:
            limit = max_steps if patient else min(max_steps, host.STIFF_STEPS)
            stiff = host.solve_stiff(system, grid, rtol, atol, limit)
            solved = max(stiff, solved, key=lambda each: each["reached"])
        arrived = np.all(solved["ok"])
        if not arrived and not patient:
            return None  # the compiled engine has more patience
        located = [host.locate(event, system, grid, solved["run"]) for event in events if arrived]
    axes = {"run": np.arange(len(solved["ok"]))} if many else {}
    return solved, solved["solver"], axes, located


def raise_on_failure(result, target: float, lead: bool) -> None:
    ok = np.atleast_1d(result["ok"])
    if ok.all() and all(np.isfinite(x).all() for x in leaves(result["states"])):
        return
    run = int(np.argmin(ok))
    state = mapped(lambda x: np.asarray(x)[run] if lead else np.asarray(x), result["last"])
    with np.errstate(over="ignore"):
        reached = float(np.expm1(np.atleast_1d(result["reached"])[run]))
    where = f" (run {run} of {ok.size})" if lead else ""
    raise FlowError(
        f"the flow stopped at t = {reached:.6g}{where}, before its final time "
        f"log(1 + t) = {target:.6g}, after {int(np.atleast_1d(result['steps'])[run])} steps: "
        "the solution may leave every bound in finite time; otherwise raise max_steps, loosen rtol "
        "or take solver='stiff'",
        reached,
        state,
    )
