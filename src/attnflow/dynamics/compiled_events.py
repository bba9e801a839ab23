"""Locating events in the compiled engine.

A sign change between two output times brackets a root; it is then refined on the flow itself, by
integrating again from the start of the bracket, so its precision is the integrator's and not that
of an interpolant.
"""

import math

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from attnflow.dynamics.batching import for_each_run, take_runs, take_starts
from attnflow.dynamics.events import FINEST, Event
from attnflow.dynamics.system import system_of

REFINEMENTS = 120  # enough for halving in every second step


def locate(event: Event, model, starts, grid, states, tolerances, path, lead: bool) -> dict:
    """Variables `{name}_time` and `{name}_value` over a dimension `{name}_event`.

    Rows of runs with fewer events than the most are filled with NaN.
    """
    values = np.asarray(_event_values(event, model, starts, states, path, lead))
    values = values if lead else values[None]
    if values.ndim != 2:
        raise ValueError(f"event on {event.observable!r}: needs a scalar observable")
    sign = np.sign(values)
    run, left = np.nonzero((sign[:, :-1] * sign[:, 1:] < 0) | (sign[:, :-1] == 0))
    keep = ~((values[run, left] == 0) & (left == 0))  # the start itself is not an event
    run, left = run[keep], left[keep]
    count = values.shape[0]
    per_run = np.bincount(run, minlength=count)
    width = int(per_run.max(initial=0))
    times, heights = np.full((count, width), np.nan), np.full((count, width), np.nan)
    if run.size:
        padding = _padded(run.size) - run.size
        rows, cells = (np.pad(index, (0, padding), mode="edge") for index in (run, left))
        pick = jax.tree.map(lambda x: x[rows, cells] if lead else x[cells], states)
        models = take_runs(model, rows) if lead else model
        picked = take_starts(starts, rows) if lead else starts
        bracket = (grid[cells], grid[cells + 1], values[rows, cells], values[rows, cells + 1])
        time, height = jax.tree.map(
            np.asarray, _refine(event, models, picked, bracket, pick, tolerances, path, lead)
        )
        slot = np.arange(run.size) - np.concatenate([[0], np.cumsum(per_run)])[run]
        times[run, slot] = time[: run.size]
        heights[run, slot] = height[: run.size]
    dims = ("run", f"{event.name}_event") if lead else (f"{event.name}_event",)
    shape = times.shape if lead else times.shape[1:]
    return {
        f"{event.name}_time": (dims, times.reshape(shape)),
        f"{event.name}_value": (dims, heights.reshape(shape)),
    }


def _padded(count: int) -> int:
    """The next power of two, at least 4: another number of events seldom compiles again."""
    return 2 ** max(2, math.ceil(math.log2(count)))


@eqx.filter_jit
def _event_values(event, model, starts, states, path, lead):
    def one(model, start, states):
        system = system_of(model, start, path)
        return jax.vmap(lambda y: event.value(system, y))(states)

    if not lead:
        return one(model, starts, states)
    return for_each_run(one)(model, starts, states)


@eqx.filter_jit
def _refine(event, models, starts, bracket, states, tolerances, path, lead):
    """Regula falsi (Illinois) for g(s) = event at clock s, each g by integration from the left end
    of what is left of the bracket. After twelve, every second step halves it: a secant may hardly
    move."""

    def one(model, start, bracket, state):
        system = system_of(model, start, path)

        def at(s, left, state):
            solution = dfx.diffeqsolve(
                dfx.ODETerm(system.clock_field),
                dfx.Dopri8(),
                t0=left,
                t1=s,
                dt0=s - left,  # mostly one step does
                y0=state,
                stepsize_controller=dfx.PIDController(
                    rtol=jnp.minimum(tolerances[0], 1e-12), atol=jnp.minimum(tolerances[1], 1e-14)
                ),
                max_steps=4096,
                adjoint=dfx.ForwardMode(),
                throw=False,
            )
            assert solution.ys is not None
            return jax.tree.map(lambda x: x[0], solution.ys)

        def step(carry):
            left, right, g_left, g_right, y_left, moved, _, _, count = carry
            secant = (left * g_right - right * g_left) / (g_right - g_left)
            inside = (secant > left) & (secant < right) & ((count < 12) | (count % 2 == 0))
            s = jnp.where(inside, secant, 0.5 * (left + right))
            y = at(s, left, y_left)
            g = event.value(system, y)
            side = jnp.where(jnp.sign(g) == jnp.sign(g_left), -1, 1)  # the end that s replaces
            kept = jnp.where(side == moved, 0.5, 1.0)  # twice the same: the other end weighs less
            return (
                jnp.where(side < 0, s, left),
                jnp.where(side < 0, right, s),
                jnp.where(side < 0, g, kept * g_left),
                jnp.where(side < 0, kept * g_right, g),
                jax.tree.map(lambda new, old: jnp.where(side < 0, new, old), y, y_left),
                side,
                s,
                y,
                count + 1,
            )

        def unfinished(carry):
            left, right, g_left, g_right, *_, count = carry
            wide = right - left > FINEST * (1 + jnp.abs(right))
            return wide & (g_left != 0) & (g_right != 0) & (count < REFINEMENTS)

        none = jnp.zeros((), int)
        start = (*bracket, state, none, bracket[0], state, none)
        *_, s, y, _ = jax.lax.while_loop(unfinished, step, start)
        return system.time(s, y), system.observe(y)[event.observable]

    if lead:
        return for_each_run(one)(models, starts, bracket, states)
    return jax.vmap(lambda bracket, state: one(models, starts, bracket, state))(bracket, states)
