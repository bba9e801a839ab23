"""Descent in discrete steps: any Optax optimizer, one compiled loop."""

import functools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np
import optax
from rich.console import Console
from rich.progress import Progress

from attnflow._checks import at_least
from attnflow.dynamics.records import dataset, describe, for_each_run, prepare
from attnflow.models.interface import Model

PROGRESS_AFTER = 2.0  # seconds of work before a bar appears


class DescentError(RuntimeError):
    """A descent whose parameters or observables stopped being finite. `step` is where."""

    def __init__(self, message: str, step: int):
        super().__init__(message)
        self.step = step


def descend(
    model: Model,
    steps: int,
    optimizer: optax.GradientTransformation,
    *,
    record: int | Sequence[int] | np.ndarray = 200,
    runs: int | None = None,
    over: Mapping[str, Any] | None = None,
    key: Any = None,
    progress: bool | None = None,
    return_params: bool = False,
) -> Any:
    """`steps` steps of `optimizer` on `model.loss`, as a Dataset over `step`.

    record: how many log-spaced steps to keep (0 and the last among them), or the steps themselves;
    nothing else is stored. runs, over, key: as in `gradient_flow`. Deterministic: the only random
    draw is the start, from `key`. progress: a bar on long work; by default one appears after two
    seconds if a terminal is there. return_params: give (Dataset, final parameters) instead.

    Raises `DescentError` at the first record that is not finite.

        >>> import attnflow as af, optax
        >>> run = af.descend(af.ValueSoftmax(projections=(0.3, 0.1)), 1000, optax.sgd(0.1))
        >>> bool(run.loss[-1] < run.loss[0])
        True
    """
    at_least("steps", steps, 1)
    grid = step_grid(steps, record)
    with jax.enable_x64(True):
        batch = prepare(model, over, runs, key)
        lifted, keys, _, lead = batch
        begin, advance = _programs(optimizer, lead)
        state, observed = begin(lifted, keys)
        kept, done = [], 0
        with _bar(progress, grid[-1]) as tick:
            for step in grid:
                state, observed = advance(lifted, state, step - done)
                observed = jax.tree.map(np.asarray, observed)
                done = int(step)
                if not all(np.isfinite(x).all() for x in observed.values()):
                    raise DescentError(
                        f"the descent is not finite at step {done}: take a smaller step size", done
                    )
                kept.append(observed)
                tick(done)
        params = jax.tree.map(np.asarray, state[0])
    stacked = {name: np.stack([row[name] for row in kept], axis=int(lead)) for name in kept[0]}
    result = dataset(stacked, model.dims, batch.axes | {"step": grid}, {"model": describe(model)})
    return (result, params) if return_params else result


def step_grid(steps: int, record: int | Sequence[int] | np.ndarray) -> np.ndarray:
    """The recorded steps, increasing; an integer spreads that many over log(1 + step)."""
    if isinstance(record, int):
        at_least("record", record, 2, "the first and the last step are always kept")
        return np.unique(np.rint(np.expm1(np.linspace(0, np.log1p(steps), record))).astype(int))
    grid = np.asarray(record)
    if grid.size == 0 or (np.diff(grid) <= 0).any() or grid[0] < 0 or grid[-1] > steps:
        raise ValueError(f"record must increase between 0 and the {steps} steps")
    return grid.astype(int)


@functools.lru_cache(maxsize=32)
def _programs(optimizer: optax.GradientTransformation, lead: bool):
    """The compiled start and the compiled loop of a number of steps known only when it runs."""

    def begin(model, key):
        params = model.init(key)
        return (params, optimizer.init(params)), model.observe(params)

    def advance(model, state, count):
        def step(_, state):
            params, memory = state
            gradient = jax.grad(model.loss)(params)
            updates, memory = optimizer.update(gradient, memory, params)
            return optax.apply_updates(params, updates), memory

        state = jax.lax.fori_loop(0, count, step, state)
        return state, model.observe(state[0])

    if not lead:
        return eqx.filter_jit(begin), eqx.filter_jit(advance)

    def advance_all(model, state, count):
        return for_each_run(lambda model, state: advance(model, state, count))(model, state)

    return eqx.filter_jit(for_each_run(begin)), eqx.filter_jit(advance_all)


class _bar:
    """A progress bar that appears only when the work turns out to be long."""

    def __init__(self, wanted: bool | None, total: int):
        console = Console(stderr=True)
        self.bar = Progress(console=console, transient=True, disable=not console.is_terminal)
        self.total, self.wanted, self.started = int(total), wanted, time.monotonic()
        self.task = None

    def __enter__(self):
        return self._tick

    def _tick(self, done: int):
        if self.task is None:
            patient = self.wanted is None and time.monotonic() - self.started < PROGRESS_AFTER
            if patient or self.wanted is False:
                return
            self.bar.start()
            self.task = self.bar.add_task("descending", total=self.total)
        self.bar.update(self.task, completed=done)

    def __exit__(self, *_):
        if self.task is not None:
            self.bar.stop()
