"""Descent in discrete steps: any Optax optimizer, one compiled loop."""

import functools
import inspect
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from attnflow.dynamics.batching import Batch, for_each_run, prepare
from attnflow.dynamics.errors import DescentError
from attnflow.dynamics.starts import begun, paced
from attnflow.dynamics.trajectory import dataset, describe
from attnflow.models.interface import Model

PROGRESS_AFTER = 2.0  # seconds of work before a bar appears
AT_ONCE = 64  # records of one compiled call, at most
LARGE = 2**18  # bytes of a record from which on it is one at a time
SHORT = 0.5  # seconds that a call may take, so that bars, checkpoints and Ctrl-C are served


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
    `optimizer` is a function that makes it of them, and other numbers need no new compilation; if
    its first argument is called `model` it is given that too.
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
        row = sum(x.nbytes for x in jax.tree.leaves(observed))
        fits_memory(f"{len(grid)} records of this model", 2 * len(grid) * row)
        records = _Records(model, batch, grid, keep_diverged and lead)
        if checkpoint is not None:
            state = _resumed(checkpoint, state, observed, records)
        most = AT_ONCE if row < LARGE else 1
        with _bar(progress, grid[-1]) as tick:
            for part in _parts(grid, records.count, most):
                counts = np.zeros(most, int)
                counts[: len(part)] = np.diff(part, prepend=records.last_step)
                size = np.int64(len(part))
                state, seen = advance(lifted, numbers, state, first.rates, counts, size)
                seen = jax.tree.map(np.asarray, seen)
                if lead:
                    seen = {name: x.swapaxes(0, 1) for name, x in seen.items()}
                records.add({name: x[:size].copy() for name, x in seen.items()}, part)
                tick(records.last_step)
                if checkpoint is not None and checkpoint.due():
                    checkpoint.save(_frozen(state, records))
        params = jax.tree.map(np.asarray, state[0])
    return (records.dataset(), params) if return_params else records.dataset()


class _Records:
    """The observables at the recorded steps so far, in blocks whose first axis is the record."""

    def __init__(self, model: Model, batch: Batch, grid: np.ndarray, keep_diverged: bool):
        self.model, self.batch, self.grid, self.keep_diverged = model, batch, grid, keep_diverged
        self.blocks: list[dict[str, np.ndarray]] = []
        self.diverged = np.full(batch.count, np.inf)

    @property
    def count(self) -> int:
        return sum(len(next(iter(block.values()))) for block in self.blocks)

    @property
    def last_step(self) -> int:
        return int(self.grid[self.count - 1]) if self.blocks else 0

    def rows(self) -> dict[str, np.ndarray]:
        names = self.blocks[0]
        return {name: np.concatenate([block[name] for block in self.blocks]) for name in names}

    def dataset(self) -> xr.Dataset:
        rows = self.rows()
        if self.batch.lead:
            rows = {name: x.swapaxes(0, 1) for name, x in rows.items()}
        axes = self.batch.axes | {"step": self.grid[: self.count]}
        coords = {"diverged": ("run", self.diverged)} if self.keep_diverged else {}
        return dataset(rows, self.model.dims, axes, {"model": describe(self.model)}, coords)

    def add(self, block: dict[str, np.ndarray], steps: np.ndarray) -> None:
        """Raises at the first step that is not finite, unless such runs are kept as NaN."""
        if not all(np.isfinite(x).all() for x in block.values()):
            finite = {name: _finite(x, self.batch.count) for name, x in block.items()}
            alive = np.all(list(finite.values()), axis=0)  # (record, run)
            if not self.keep_diverged:
                raise self._error(block, steps, finite, int(np.argmin(alive.all(axis=1))))
            lost = np.where(alive, np.inf, steps[:, None]).min(axis=0)
            self.diverged = np.minimum(self.diverged, lost)
            block = {name: _lost(x, alive) for name, x in block.items()}
        self.blocks.append(block)

    def _error(self, block, steps, finite, at: int) -> DescentError:
        if at:
            self.blocks.append({name: x[:at] for name, x in block.items()})
        what = next(name for name, ok in finite.items() if not ok[at].all())
        runs = np.flatnonzero(~finite[what][at]).tolist() if self.batch.lead else []
        before = self.blocks[-1].get("loss") if self.blocks else None
        message = _diverged(int(steps[at]), what, runs, before)
        kept = self.dataset() if self.blocks else xr.Dataset()
        return DescentError(message, int(steps[at]), what, runs, kept)


def _parts(grid: np.ndarray, done: int, most: int) -> Iterator[np.ndarray]:
    """The recorded steps that are left, those of a short call at a time."""
    reach = 8  # steps
    while done < len(grid):
        last = grid[done - 1] if done else 0
        within = np.searchsorted(grid[done : done + most], last + reach, side="right")
        count, begun = max(int(within), 1), time.monotonic()
        yield grid[done : done + count]
        done += count
        quick = time.monotonic() - begun < SHORT
        reach = min(32 * reach, 2 * int(grid[-1]) + 8) if quick else max(reach // 2, 1)


def _frozen(state: Any, records: _Records) -> dict[str, Any]:
    leaves = {f"state{i}": np.asarray(x) for i, x in enumerate(jax.tree.leaves(state))}
    rows = {f"record_{name}": x for name, x in records.rows().items()}
    return leaves | rows | {"grid": records.grid}


def _resumed(checkpoint: Any, state: Any, observed: Mapping[str, Any], records: _Records) -> Any:
    """The state of a checkpoint of the same steps, whose records are taken over; else `state`."""
    saved = checkpoint.load()
    if saved is None or not np.array_equal(saved["grid"], records.grid):
        return state
    leaves, shape = jax.tree.flatten(state)
    rows = {name: saved[f"record_{name}"] for name in observed}
    records.add(rows, records.grid[: len(next(iter(rows.values())))])
    old = [jnp.asarray(saved[f"state{i}"]) for i in range(len(leaves))]
    return jax.tree.unflatten(shape, old)


def _count(numbers: Mapping[str, np.ndarray], runs: int | None) -> int:
    counts = {x.shape[0] if x.ndim else 0 for x in numbers.values()} | ({runs} if runs else set())
    if len(counts) != 1 or 0 in counts:
        raise ValueError(f"tuned: every number needs one value a run (got {sorted(counts)})")
    return counts.pop()


def _finite(x: np.ndarray, count: int) -> np.ndarray:
    """(record, run)"""
    return np.all(np.isfinite(np.reshape(x, (len(x), count, -1))), axis=2)


def _lost(x: np.ndarray, alive: np.ndarray) -> np.ndarray:
    return np.where(alive.reshape(*alive.shape, *[1] * (x.ndim - 2)), x, np.nan)


def _diverged(step: int, what: str, runs: list[int], losses: np.ndarray | None) -> str:
    where = f" in run {', '.join(map(str, runs[:5]))}{' …' * (len(runs) > 5)}" if runs else ""
    before = "" if losses is None else f" (loss before it: {np.max(losses[-1]):.4g})"
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


def made_of(make: Callable[..., Any], model: Any, numbers: Mapping[str, Any]) -> Any:
    """The optimizer of these numbers, and of the model where `make` asks for it."""
    wants_model = next(iter(inspect.signature(make).parameters), "") == "model"
    return make(model, **numbers) if wants_model else make(**numbers)


def stepped(model: Any, method: optax.GradientTransformation, state: Any, rates: Any = None) -> Any:
    """(params, memory of the optimizer) after one step."""
    params, memory = state
    updates, memory = method.update(jax.grad(model.loss)(params), memory, params)
    return optax.apply_updates(params, paced(updates, rates)), memory


@functools.lru_cache(maxsize=32)
def _programs(optimizer: Any, made: bool, lead: bool):
    """The compiled start, and the compiled loop over records, whose number and steps are known only
    when it runs; `made`: `optimizer` makes one of the runs' own numbers."""

    def tuned(model, numbers) -> optax.GradientTransformation:
        return made_of(optimizer, model, numbers) if made else optimizer

    def begin(model, numbers, start):
        params = model.init(start.key) if start.params is None else start.params
        return (params, tuned(model, numbers).init(params)), model.observe(params)

    def advance(model, numbers, state, rates, counts, records):
        method = tuned(model, numbers)

        def step(_, state):
            return stepped(model, method, state, rates)

        def record(i, carry):
            state, seen = carry
            state = jax.lax.fori_loop(0, counts[i], step, state)
            now = model.observe(state[0])
            return state, jax.tree.map(lambda all_, x: all_.at[i].set(x), seen, now)

        shapes = jax.eval_shape(model.observe, state[0])
        seen = jax.tree.map(lambda x: jnp.zeros((len(counts), *x.shape), x.dtype), shapes)
        return jax.lax.fori_loop(0, records, record, (state, seen))

    if not lead:
        return eqx.filter_jit(begin), eqx.filter_jit(advance)

    def advance_all(model, numbers, state, rates, counts, records):
        def one(model, numbers, state, rates):
            return advance(model, numbers, state, rates, counts, records)

        return for_each_run(one)(model, numbers, state, rates)

    return eqx.filter_jit(for_each_run(begin)), eqx.filter_jit(advance_all)


class _bar:
    """A progress bar that appears only when the work turns out to be long."""

    def __init__(self, wanted: bool | None, total: int):
        self.total, self.wanted, self.started = int(total), wanted, time.monotonic()
        self.bar: Any = None

    def __enter__(self):
        return self._tick

    def _tick(self, done: int):
        if self.bar is None:
            patient = self.wanted is None and time.monotonic() - self.started < PROGRESS_AFTER
            if patient or self.wanted is False:
                return
            console = Console(stderr=True)
            self.bar = Progress(console=console, transient=True, disable=not console.is_terminal)
            self.bar.start()
            self.task = self.bar.add_task("descending", total=self.total)
        self.bar.update(self.task, completed=done)

    def __exit__(self, *_):
        if self.bar is not None:
            self.bar.stop()
