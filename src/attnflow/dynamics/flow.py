"""Gradient flow: dθ/dt = −∇ loss(θ), integrated adaptively on a logarithmic clock.

The clock is s = log(1 + t): a flow that slows down like 1/t moves at a steady pace in s, so
t = 1e12 costs about as many steps as t = 100.
"""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from attnflow._checks import at_least, below, choice, fits_memory, positive
from attnflow.dynamics import events as ev
from attnflow.dynamics.records import dataset, describe, for_each_run, prepare, take_runs
from attnflow.dynamics.system import system_of
from attnflow.models.interface import Model

SOLVERS = {"explicit": dfx.Dopri8(), "stiff": dfx.Kvaerno5(), "quick": dfx.Tsit5()}
INTERPOLATED = dfx.Tsit5
AUTO_EXPLICIT_STEPS = 20_000
BLOCK = 512
MANY_POINTS = 100_000


class FlowError(RuntimeError):
    """A solve that did not reach its final time. `time` and `state` are where it stopped."""

    def __init__(self, message: str, time: float, state: Any):
        super().__init__(message)
        self.time = time
        self.state = state


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
    rtol: float = 1e-10,
    atol: float = 1e-12,
    max_steps: int = 200_000,
    solver: str = "auto",
    path: str = "auto",
) -> xr.Dataset:
    """The gradient flow of `model` from t = 0, as a Dataset over `time`.

    Output falls on `times`, or on `points` times up to `t1` that are even in log(1 + t). The
    integrator steps onto every output time (its interpolant would lose two digits), but for the
    quick one. Beyond the range of floating point give `log_t1` = log(1 + t1) instead of `t1`; it
    needs a reduced path. The Dataset always carries `log_time` = log(1 + t).

    runs, key: `runs` random starts from `model.init(key)`, in one compiled call, dimension `run`.
    over: field name to values, one run for each: `over={"c0": c0s, "c1": c1s}`; for a field that
    is a dict or a module, a list of such.
    events: `Critical("norm2")`, `Crosses("loss", 0.1)`; located by root finding on the flow itself
    (see `attnflow.dynamics.events`).
    path: "reduced" takes the model's exact low-dimensional form, "full" differentiates its loss,
    "auto" prefers the reduced one.
    solver: "explicit" (Dormand–Prince 8), "stiff" (Kvaerno 5, implicit), "quick" (Tsitouras 5
    and its interpolant, which loses up to a digit: the cheapest where a loss costs milliseconds or
    rtol is 1e-6 or looser); "auto" starts explicit and turns to the stiff one when the step limit
    shows that the flow is stiff.

    Raises `FlowError` with the time and state reached when the final time cannot be reached.
    A second call with the same shapes does not compile again.

        >>> import attnflow as af
        >>> flow = af.gradient_flow(af.TwoToken(p=0.0, c0=6.0, c1=6.0), t1=1e4)
        >>> bool(flow.norm2.min() < flow.norm2[0] < flow.norm2[-1])
        True
    """
    choice("path", path, ("auto", "full", "reduced"))
    choice("solver", solver, ("auto", *SOLVERS))
    at_least("max_steps", max_steps, 1)
    positive("rtol", rtol)
    below("rtol", rtol, 0.1, "it is a relative error")
    positive("atol", atol)
    grid = clock_grid(t1, times, log_t1, points)
    with jax.enable_x64(True):
        batch = prepare(model, over, runs, key)
        lifted, keys, count, lead = batch
        axes = batch.axes
        tolerances = (np.float64(rtol), np.float64(atol))
        _check_memory(lifted, keys, grid, path, lead)

        def attempt(kind: str, limit: int):
            options = (grid, tolerances, SOLVERS[kind], limit, path)
            return (
                _in_blocks(lifted, keys, count, *options)
                if lead
                else _solve(lifted, keys, *options, lead=False)
            )

        if solver == "auto":
            result, used = attempt("explicit", min(AUTO_EXPLICIT_STEPS, max_steps)), "explicit"
            if not np.all(result["ok"]):
                second = attempt("stiff", max_steps)
                if np.all(second["ok"]) or np.min(second["reached"]) > np.min(result["reached"]):
                    result, used = second, "stiff"
        else:
            result, used = attempt(solver, max_steps), solver
        _raise_on_failure(result, grid[-1], lead)
        located = [
            ev.locate(event, lifted, keys, grid, result["states"], tolerances, path, lead)
            for event in events
        ]
    with np.errstate(over="ignore"):
        axes["time"] = np.expm1(grid)
    attrs = {
        "model": describe(model),
        "solver": type(SOLVERS[used]).__name__,
        "rtol": rtol,
        "atol": atol,
        "steps": int(np.max(result["steps"])),
    }
    coords: dict[str, Any] = {"log_time": ("time", grid)}
    for name, values in (over or {}).items():
        if np.ndim(values) == 1 and np.asarray(values).dtype.kind in "fiu":
            coords[name] = ("run", np.asarray(values))
    ds = dataset(result["observed"], model.dims, axes, attrs, coords)
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


def _check_memory(model, keys, grid, path, lead: bool) -> None:
    """States and observables at every point; asked only where there are many."""
    if len(grid) < MANY_POINTS:
        return

    def one(model, key):
        system = system_of(model, key, path)
        return system.init(), system.observe(system.init())

    shapes = eqx.filter_eval_shape(for_each_run(one) if lead else one, model, keys)
    row = 8 * sum(x.size for x in jax.tree.leaves(shapes))
    fits_memory(f"a flow with {len(grid)} points", 3 * len(grid) * row)


def _in_blocks(model, keys, count: int, *options):
    """`_solve` on blocks of runs that fit the cache, on every core.

    A batch of more than one block is padded to whole blocks, so its size does not matter to the
    compiler.
    """
    size = min(count, BLOCK)
    starts = range(0, count, size)

    def block(start: int):
        rows = np.minimum(np.arange(start, start + size), count - 1)
        take = take_runs(model, rows)
        with jax.enable_x64(True):  # the setting belongs to a thread
            return _solve(take, None if keys is None else keys[rows], *options, lead=True)

    first = block(0)  # compiles once, before the threads start
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        rest = list(pool.map(block, starts[1:]))
    return jax.tree.map(lambda *parts: np.concatenate(parts)[:count], first, *rest)


def _solve(model, keys, grid, tolerances, solver, max_steps, path, *, lead):
    solved = _compiled_solve(model, keys, grid, tolerances, solver, max_steps, path, lead)
    return jax.tree.map(np.asarray, solved)


@eqx.filter_jit
def _compiled_solve(model, keys, grid, tolerances, solver, max_steps, path, lead):
    def one(model, key):
        system = system_of(model, key, path)
        controller = dfx.PIDController(rtol=tolerances[0], atol=tolerances[1])
        if not isinstance(solver, INTERPOLATED):
            controller = dfx.ClipStepSizeController(controller, step_ts=grid)
        solution = dfx.diffeqsolve(
            dfx.ODETerm(system.clock_field),
            solver,
            t0=jnp.zeros(()),
            t1=grid[-1],
            dt0=None,
            y0=system.init(),
            saveat=dfx.SaveAt(subs=[dfx.SubSaveAt(ts=grid), dfx.SubSaveAt(t1=True)]),
            stepsize_controller=controller,
            max_steps=max_steps,
            throw=False,
            adjoint=dfx.ForwardMode(),
        )
        assert solution.ys is not None
        assert solution.ts is not None
        states, last = solution.ys
        return {
            "states": states,
            "observed": jax.vmap(system.observe)(states),
            "ok": solution.result == dfx.RESULTS.successful,
            "reached": solution.ts[1][0],
            "last": jax.tree.map(lambda x: x[0], last),
            "steps": solution.stats["num_steps"],
        }

    if not lead:
        return one(model, keys)
    return for_each_run(one)(model, keys)


def _raise_on_failure(result, target: float, lead: bool) -> None:
    ok = np.atleast_1d(result["ok"])
    finite = all(np.isfinite(x).all() for x in jax.tree.leaves(result["states"]))
    if ok.all() and finite:
        return
    run = int(np.argmin(ok))
    state = jax.tree.map(lambda x: np.asarray(x)[run] if lead else np.asarray(x), result["last"])
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
