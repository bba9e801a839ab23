"""The compiled engine: Diffrax on the device, one program for one run or thousands."""

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from attnflow._checks import fits_memory
from attnflow.dynamics import compiled_events
from attnflow.dynamics.batching import for_each_run, prepare, split, take_runs, take_starts
from attnflow.dynamics.system import system_of

SOLVERS = {"explicit": dfx.Dopri8(), "stiff": dfx.Kvaerno5(), "quick": dfx.Tsit5()}
INTERPOLATED = dfx.Tsit5
AUTO_EXPLICIT_STEPS = 20_000
BLOCK = 512
MANY_POINTS = 100_000


def flow(model, over, runs, start, grid, events, tolerances, max_steps, solver, path):
    """The result of `solve`, the name of the solver that was used, the axes, the events found;
    `start`: as `starts.begun` gives it."""
    with jax.enable_x64(True):
        batch = prepare(model, over, runs, *start)
        lifted, starts, count, lead = batch
        check_memory(lifted, starts, grid, path, lead)

        def attempt(kind: str, limit: int) -> dict[str, Any]:
            options = (grid, tolerances, SOLVERS[kind], limit, path)
            return (
                in_blocks(lifted, starts, count, *options)
                if lead
                else solve(lifted, starts, *options, lead=False)
            )

        if solver == "auto":
            result, used = attempt("explicit", min(AUTO_EXPLICIT_STEPS, max_steps)), "explicit"
            if not np.all(result["ok"]):
                result, used = _second_attempt(result, attempt, max_steps)
        else:
            result, used = attempt(solver, max_steps), solver
        if not _arrived(result):
            return result, type(SOLVERS[used]).__name__, batch.axes, []
        located = [
            compiled_events.locate(
                event, lifted, starts, grid, result["states"], tolerances, path, lead
            )
            for event in events
        ]
    return result, type(SOLVERS[used]).__name__, batch.axes, located


def _second_attempt(first, attempt, max_steps: int):
    """The stiff solver; then the explicit one with the whole budget, which may arrive where the
    stiff one does not."""
    tried = [(first, "explicit")]
    for kind in ("stiff", "explicit"):
        if kind == "explicit" and max_steps <= AUTO_EXPLICIT_STEPS:
            break
        tried.append((attempt(kind, max_steps), kind))
        if _arrived(tried[-1][0]):
            return tried[-1]
    return max(tried, key=lambda each: np.min(each[0]["reached"]))


def _arrived(result) -> bool:
    finite = all(np.isfinite(x).all() for x in jax.tree.leaves(result["states"]))
    return bool(np.all(result["ok"])) and finite


def check_memory(model, starts, grid, path, lead: bool) -> None:
    """States and observables at every point; asked only where there are many."""
    if len(grid) < MANY_POINTS:
        return

    def one(model, start):
        system = system_of(model, start, path)
        return system.init(), system.observe(system.init())

    shapes = eqx.filter_eval_shape(for_each_run(one) if lead else one, model, starts)
    row = 8 * sum(x.size for x in jax.tree.leaves(shapes))
    fits_memory(f"a flow with {len(grid)} points", 3 * len(grid) * row)


def in_blocks(model, starts, count: int, *options):
    """`solve` on blocks of runs that fit the cache, on every core.

    A batch of more than one block is padded to whole blocks, so its size does not matter to the
    compiler; runs with similar numbers are put into one block, as all wait for the one with the
    most steps.
    """
    size = min(count, BLOCK)
    blocks = range(0, count, size)
    numbers = [x for x in jax.tree.leaves(split(model)[0]) if x.ndim == 1]
    order = np.lexsort(numbers) if numbers and count > size else np.arange(count)

    def block(first: int):
        rows = order[np.minimum(np.arange(first, first + size), count - 1)]
        take = take_runs(model, rows)
        with jax.enable_x64(True):  # the setting belongs to a thread
            return solve(take, take_starts(starts, rows), *options, lead=True)

    first = block(0)  # compiles once, before the threads start
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        rest = list(pool.map(block, blocks[1:]))
    back = np.argsort(order)
    return jax.tree.map(lambda *parts: np.concatenate(parts)[back], first, *rest)


def solve(model, starts, grid, tolerances, solver, max_steps, path, *, lead):
    solved = _compiled_solve(model, starts, grid, tolerances, solver, max_steps, path, lead)
    return jax.tree.map(np.asarray, solved)


@eqx.filter_jit
def _compiled_solve(model, starts, grid, tolerances, solver, max_steps, path, lead):
    def one(model, start):
        system = system_of(model, start, path)
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
        return one(model, starts)
    return for_each_run(one)(model, starts)
