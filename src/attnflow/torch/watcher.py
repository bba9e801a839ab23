"""Watch a model while it trains, without touching its training.

with watch(model, every=100, out="runs/mine") as watcher:
    for batch in batches:
        ...  # as always
watcher.history["first_mass"]  # (step, layer, head)
"""

import datetime
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from attnflow._checks import at_least
from attnflow.torch.measure import Budget, measure
from attnflow.torch.modules import attention_modules, unsupported_attention
from attnflow.torch.probe import Inputs, probe, some_sequences, unwrapped
from attnflow.torch.records import Records, Watched, as_scalars
from attnflow.torch.weights import Snapshot, update_ratios, weights_of

Log = Callable[[int, Mapping[str, float]], None]


class Watcher:
    """Looks at the model every so many steps, just before the forward pass of that step, on a few
    sequences of the step's own batch (or always on `batch`). Made by `watch`."""

    def __init__(
        self,
        model: nn.Module,
        every: int,
        out: str | Path | None,
        optimizer: torch.optim.Optimizer | None,
        loss: Callable[[Any], Tensor] | None,
        batch: Inputs | None,
        budget: Budget,
        gradients: bool,
        log: Log | None,
        label: str,
        seed: int,
    ):
        at_least("every", every, 1)
        self.model, self.every, self.budget, self.log = model, every, budget, log
        self.optimizer, self.loss, self.batch, self.gradients = optimizer, loss, batch, gradients
        self.modules = attention_modules(unwrapped(model))
        if not self.modules:
            looks = unsupported_attention(unwrapped(model))
            more = f"; these look like attention but are not supported: {', '.join(looks)}"
            raise ValueError(
                f"{type(unwrapped(model)).__name__} has no attention that can be watched: neither "
                "transformers' attention interface, nor torch.nn.MultiheadAttention, nor a module "
                "of your own that is a ReadableAttention" + (more if looks else "")
            )
        self.skipped = dict.fromkeys(unsupported_attention(unwrapped(model)), "not supported")
        self.generator = torch.Generator().manual_seed(seed)
        started = datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds")
        name = type(unwrapped(model)).__name__
        sizes = (budget.sequences, budget.rows, budget.exact, budget.skip)
        self.config = Watched(name, label, started, every, *sizes)
        self.out = None if out is None else Path(out)
        self.records = Records(self.config, None)
        self.step = 0
        self.run = None
        self.failed: str | None = None
        self._external = optimizer is not None
        self._seen: int | None = None
        self._pending: tuple[xr.Dataset, Snapshot] | None = None
        self._handles: list[Any] = []

    def __enter__(self) -> "Watcher":
        if self._handles:
            raise RuntimeError("this watcher is at work already: make another")
        self.records = Records(self.config, self.out if _leads() else None)
        if self.skipped:
            names = ", ".join(self.skipped)
            warnings.warn(f"watch skips what it cannot read: {names}", RuntimeWarning, stacklevel=2)
        self._listen()
        if self.optimizer is not None:
            self._handles += [
                self.optimizer.register_step_pre_hook(self._before_step),
                self.optimizer.register_step_post_hook(self._after_step),
            ]
        return self

    def __exit__(self, *error: object) -> None:
        if not self._handles:
            return  # it has ended before
        for handle in self._handles:
            handle.remove()
        self._handles = []
        broken, self.failed = self.failed, None  # what was recorded becomes a run all the same
        self._guarded(self._finish)
        self.failed = self.failed or broken

    def at(self, step: int) -> None:
        """Tell which step comes next; from then on only this counts steps."""
        self._external = True
        if step != self.step:
            self._guarded(self._settle)
        self.step = step

    @property
    def history(self) -> xr.Dataset:
        """What was recorded: the quantities of `attnflow.torch.QUANTITIES` by (step, layer, head),
        the loss on what was looked at, and ‖change‖/‖weight‖ of one step by layer."""
        return self.records.history

    def look(self, inputs: Inputs) -> xr.Dataset:
        """Measure now, whatever the step: positional and named arguments of the model."""
        inputs = some_sequences(inputs, self.budget.sequences)
        if not self.gradients:
            inputs = inputs[0], {k: v for k, v in inputs[1].items() if k != "labels"}
        loss = self.loss if self.gradients else None
        found = probe(self.model, inputs, self.modules, loss)
        self._tell(found.problems)
        data = measure(self.modules, found, self.budget, self.generator)
        return data.assign(loss=np.nan if found.loss is None else found.loss).assign_coords(
            step=self.step
        )

    def _listen(self) -> None:
        hook = self.model.register_forward_pre_hook(self._before_forward, with_kwargs=True)
        self._handles.append(hook)
        compiled = self.model._compiled_call_impl
        if compiled is None:
            return

        def call(*arguments: Any, **named: Any) -> Any:
            self._before_forward(self.model, arguments, named)
            return compiled(*arguments, **named)

        # model.compile() runs hooks inside compiled code, where ours does nothing
        self.model._compiled_call_impl = call
        self._handles.append(_Restored(self.model, compiled))

    def _before_forward(self, module: nn.Module, arguments: Any, named: Any) -> None:
        if torch.compiler.is_compiling() or not (module.training and torch.is_grad_enabled()):
            return
        if not self._external:
            self._guarded(self._settle)
        if self.step % self.every == 0 and self.step != self._seen and _leads():
            self._seen = self.step
            self._guarded(self._record, self.batch or (arguments, named))
        if not self._external:
            self.step += 1

    def _before_step(self, *_: Any) -> None:
        if self._pending is not None:
            self._guarded(self._remember)

    def _after_step(self, *_: Any) -> None:
        self._guarded(self._settle)
        self.step += 1

    def _record(self, inputs: Inputs) -> None:
        self._settle()
        soon = self.optimizer is not None  # then the weights are taken just before its step
        self._pending = self.look(inputs), {} if soon else weights_of(self.modules)

    def _remember(self) -> None:
        assert self._pending is not None
        self._pending = self._pending[0], weights_of(self.modules)

    def _settle(self) -> None:
        """The step after a look has been taken: how far did it move the weights?"""
        if self._pending is None:
            return
        record, before = self._pending
        self._pending = None
        ratios = update_ratios(self.modules, before)
        record = record.assign(
            {
                f"update_{part}": ("layer", ratio.numpy().astype(float))
                for part, ratio in ratios.items()
            }
        )
        self.records.add(record)
        if self.log is not None:
            self.log(int(record.step), as_scalars(record))

    def _finish(self) -> None:
        self._settle()
        self.run = self.records.close()
        if not self.records.kept and self._seen is None and _leads():
            warnings.warn(
                "watch saw no training step: is the model called in training mode, and by itself, "
                "not inside another compiled one?",
                RuntimeWarning,
                stacklevel=4,
            )

    def _tell(self, problems: Mapping[str, str]) -> None:
        new = {name: why for name, why in problems.items() if name not in self.skipped}
        self.skipped |= new
        told = "; ".join(f"{name}: {why}" for name, why in new.items())
        if new and len(problems) == len(self.modules):
            raise ValueError(f"no attention could be read: {told}")
        if new:
            warnings.warn(f"watch skips {told}", RuntimeWarning, stacklevel=5)

    def _guarded(self, work: Callable[..., None], *arguments: Any) -> None:
        """A failing instrument says so once and is quiet from then on; the training goes on."""
        if self.failed is not None:
            return
        try:
            work(*arguments)
        except Exception as error:
            self.failed = f"{type(error).__name__}: {error}"
            self._pending = None
            warnings.warn(
                f"watch is off from step {self.step} on: {self.failed}. The training goes on; what "
                "was recorded is kept.",
                RuntimeWarning,
                stacklevel=3,
            )


class _Restored:
    """Puts back the call of a model that `model.compile()` made."""

    def __init__(self, model: nn.Module, call: Any):
        self.model, self.call = model, call

    def remove(self) -> None:
        self.model._compiled_call_impl = self.call


def watch(
    model: nn.Module,
    every: int = 100,
    *,
    out: str | Path | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    loss: Callable[[Any], Tensor] | None = None,
    batch: Mapping[str, Any] | tuple[Any, ...] | Tensor | None = None,
    budget: Budget = Budget(),  # noqa: B008
    gradients: bool = True,
    log: Log | None = None,
    label: str = "",
    seed: int = 0,
) -> Watcher:
    """A context manager that measures the attention of a model in training.

    Counts calls of the model in training mode as steps; with gradient accumulation give the
    `optimizer`, whose steps are then counted. `loss` makes a number of the model's output for the
    instruments that need a gradient (Hugging Face models given labels bring their own). `batch`:
    look at this one always, instead of at the step's own. `out`: a run store; the records become a
    run of it. `log(step, numbers)`: called with means over heads (see `to_tensorboard`).

    Cost: a forward (and, with a loss, backward) pass over `budget.sequences` sequences every
    `every` steps, in evaluation mode and in eager code; weights, modes, gradients, buffers and
    random numbers stay as they were. In a process group only rank 0 looks. If an instrument fails
    it warns once and is off from then on.
    """
    if batch is not None and not isinstance(batch, Mapping):
        batch = batch if isinstance(batch, tuple) else (batch,)
    given: Inputs | None = None
    if batch is not None:
        given = ((), batch) if isinstance(batch, Mapping) else (batch, {})
    return Watcher(model, every, out, optimizer, loss, given, budget, gradients, log, label, seed)


def to_tensorboard(writer: Any) -> Log:
    """For `watch(log=…)`: a SummaryWriter of torch or of tensorboardX."""

    def log(step: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            writer.add_scalar(f"attention/{name}", value, step)

    return log


def to_wandb(run: Any) -> Log:
    """For `watch(log=…)`: a run of Weights & Biases, as `wandb.init()` gives it."""

    def log(step: int, numbers: Mapping[str, float]) -> None:
        run.log({f"attention/{name}": value for name, value in numbers.items()}, step=step)

    return log


def _leads() -> bool:
    """Whether this process is the one that records."""
    there = torch.distributed.is_available() and torch.distributed.is_initialized()
    return not there or torch.distributed.get_rank() == 0
