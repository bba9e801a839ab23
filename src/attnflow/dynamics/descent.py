"""Descent in discrete steps: any Optax optimizer, one compiled loop."""

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import xarray as xr
from rich.console import Console
from rich.progress import Progress

from attnflow._checks import at_least, below, fits_memory
from attnflow.dynamics.batching import for_each_run, prepare
from attnflow.dynamics.errors import DescentError
from attnflow.dynamics.starts import begun, paced
from attnflow.dynamics.trajectory import dataset, describe
from attnflow.models.interface import Model

PROGRESS_AFTER = 2.0  # seconds of work before a bar appears


def descend(
    model: Model,
    steps: int,
    optimizer: optax.GradientTransformation | Callable[..., optax.GradientTransformation],
    *,
    tuned: Mapping[str, Any] | None = None,
    record: int | Sequence[int] | np.ndarray = 200,
    runs: int | None = None,
    over: Mapping[str, Any] | None = None,
    key: Any = None,
    start: Any = None,
    frozen: Sequence[str] = (),
    rates: Mapping[str, float] | None = None,
    keep_diverged: bool = False,
    checkpoint: Any = None,
    progress: bool | None = None,
    return_params: bool = False,
) -> Any:
    """`steps` steps of `optimizer` on `model.loss`, as a Dataset over `step`.

    record: how many log-spaced steps to keep (0 and the last among them), or the steps themselves;
    nothing else is stored. tuned: numbers of the optimizer, or a list each for as many runs: then
    `optimizer` is a function that makes it of them, and other numbers need no new compilation.
    runs, over, key, start: as in `gradient_flow`; so are frozen and rates, here of the steps.
    Deterministic: the only random draw is the start, from `key`. progress: a bar on long work; by
    default one appears after two seconds if a terminal is there. return_params: give (Dataset,
    final parameters) instead.

    Raises `DescentError` at the first record that is not finite; it holds the records before. With
    `keep_diverged` the other runs of a batch go on: what is lost is NaN, and the coordinate
    `diverged` of a run is the step at which it was (infinite: never). checkpoint: where to keep the
    state (`attnflow.runs.Checkpoint`); a call that finds one goes on from there, to the same bits.

        >>> import attnflow as af, optax
        >>> run = af.descend(af.ValueSoftmax(projections=(0.3, 0.1)), 1000, optax.sgd(0.1))
        >>> bool(run.loss[-1] < run.loss[0])
        True
    """
    at_least("steps", steps, 1)
    below("steps", steps, 2**53, "beyond, floating point cannot count them")
    grid = step_grid(steps, record)
    beginning, starts = begun(model, key, start, frozen, rates)
    with jax.enable_x64(True):
        numbers = {name: np.asarray(x, np.float64) for name, x in (tuned or {}).items()}
        if any(x.ndim for x in numbers.values()):
            over, runs = over or {}, _count(numbers, runs)
        batch = prepare(model, over, runs, beginning, starts)
        lifted, first, count, lead = batch
        if lead:
            numbers = {name: np.broadcast_to(x, count) for name, x in numbers.items()}
        begin, advance = _programs(optimizer, bool(numbers), lead)
        state, observed = begin(lifted, numbers, first)
        kept, done = [], 0
        row = sum(x.nbytes for x in jax.tree.leaves(observed))
        fits_memory(f"{len(grid)} records of this model", 2 * len(grid) * row)
        diverged = np.full(batch.count, np.inf)

        def records() -> xr.Dataset:
            rows = {name: np.stack([row[name] for row in kept], int(lead)) for name in kept[0]}
            axes = batch.axes | {"step": grid[: len(kept)]}
            coords = {"diverged": ("run", diverged)} if keep_diverged and lead else {}
            return dataset(rows, model.dims, axes, {"model": describe(model)}, coords)

        if checkpoint is not None:
            state, kept, done = _resumed(checkpoint, state, observed, grid)
        with _bar(progress, grid[-1]) as tick:
            for step in grid[len(kept) :]:
                state, observed = advance(lifted, numbers, state, first.rates, step - done)
                observed = jax.tree.map(np.asarray, observed)
                done = int(step)
                finite = {name: _finite_runs(x, batch.count) for name, x in observed.items()}
                lost = [name for name, ok in finite.items() if not ok.all()]
                if lost and keep_diverged and lead:
                    alive = np.all(list(finite.values()), axis=0)
                    diverged = np.minimum(diverged, np.where(alive, np.inf, done))
                    observed = {name: _lost(x, alive) for name, x in observed.items()}
                elif lost:
                    which = np.flatnonzero(~finite[lost[0]]).tolist() if lead else []
                    kept_so_far = records() if kept else xr.Dataset()
                    message = _diverged(done, lost[0], which, kept)
                    raise DescentError(message, done, lost[0], which, kept_so_far)
                kept.append(observed)
                tick(done)
                if checkpoint is not None and checkpoint.due():
                    checkpoint.save(_frozen(state, kept, grid))
        params = jax.tree.map(np.asarray, state[0])
        result = records()
    return (result, params) if return_params else result


def _frozen(state: Any, kept: list[dict[str, np.ndarray]], grid: np.ndarray) -> dict[str, Any]:
    leaves = {f"state{i}": np.asarray(x) for i, x in enumerate(jax.tree.leaves(state))}
    rows = {f"record_{name}": np.stack([row[name] for row in kept]) for name in kept[0]}
    return leaves | rows | {"grid": grid}


def _resumed(checkpoint: Any, state: Any, observed: Mapping[str, Any], grid: np.ndarray):
    """The state, records and step of a checkpoint of the same steps; else those of the start."""
    saved = checkpoint.load()
    if saved is None or not np.array_equal(saved["grid"], grid):
        return state, [], 0
    leaves, shape = jax.tree.flatten(state)
    rows = {name: saved[f"record_{name}"] for name in observed}
    count = len(next(iter(rows.values())))
    kept = [{name: rows[name][i] for name in rows} for i in range(count)]
    old = [jnp.asarray(saved[f"state{i}"]) for i in range(len(leaves))]
    return jax.tree.unflatten(shape, old), kept, int(grid[count - 1])


def _count(numbers: Mapping[str, np.ndarray], runs: int | None) -> int:
    counts = {x.shape[0] if x.ndim else 0 for x in numbers.values()} | ({runs} if runs else set())
    if len(counts) != 1 or 0 in counts:
        raise ValueError(f"tuned: every number needs one value a run (got {sorted(counts)})")
    return counts.pop()


def _finite_runs(x: np.ndarray, count: int) -> np.ndarray:
    return np.all(np.isfinite(np.reshape(x, (count, -1))), axis=1)


def _lost(x: np.ndarray, alive: np.ndarray) -> np.ndarray:
    return np.where(alive.reshape(-1, *[1] * (x.ndim - 1)), x, np.nan)


def _diverged(step: int, what: str, runs: list[int], kept: list) -> str:
    where = f" in run {', '.join(map(str, runs[:5]))}{' …' * (len(runs) > 5)}" if runs else ""
    before = ""
    if kept and "loss" in kept[-1]:
        before = f" (loss before it: {np.max(kept[-1]['loss']):.4g})"
    mend = "take a smaller step size" if step else "begin with smaller numbers"
    return f"{what} is not finite at step {step}{where}{before}: {mend}"


def step_grid(steps: int, record: int | Sequence[int] | np.ndarray) -> np.ndarray:
    """The recorded steps, increasing; an integer spreads that many over log(1 + step)."""
    if isinstance(record, int):
        at_least("record", record, 2, "the first and the last step are always kept")
        fits_memory(f"record = {record}", 4 * 8 * record)
        return np.unique(np.rint(np.expm1(np.linspace(0, np.log1p(steps), record))).astype(int))
    grid = np.asarray(record)
    if grid.size == 0 or (np.diff(grid) <= 0).any() or grid[0] < 0 or grid[-1] > steps:
        raise ValueError(f"record must increase between 0 and the {steps} steps")
    return grid.astype(int)


@functools.lru_cache(maxsize=32)
def _programs(optimizer: Any, made: bool, lead: bool):
    """The compiled start and the compiled loop of a number of steps known only when it runs;
    `made`: `optimizer` makes one of the runs' own numbers."""

    def tuned(numbers) -> optax.GradientTransformation:
        return optimizer(**numbers) if made else optimizer

    def begin(model, numbers, start):
        params = model.init(start.key) if start.params is None else start.params
        return (params, tuned(numbers).init(params)), model.observe(params)

    def advance(model, numbers, state, rates, count):
        def step(_, state):
            params, memory = state
            gradient = jax.grad(model.loss)(params)
            updates, memory = tuned(numbers).update(gradient, memory, params)
            return optax.apply_updates(params, paced(updates, rates)), memory

        state = jax.lax.fori_loop(0, count, step, state)
        return state, model.observe(state[0])

    if not lead:
        return eqx.filter_jit(begin), eqx.filter_jit(advance)

    def advance_all(model, numbers, state, rates, count):
        def one(model, numbers, state, rates):
            return advance(model, numbers, state, rates, count)

        return for_each_run(one)(model, numbers, state, rates)

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
