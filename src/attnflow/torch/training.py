"""A plain training loop that keeps a record: whole batches made on the fly, by the step's number.

model = Transformer(TransformerConfig(), seed=0)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
record = train(model, lambda step: task.batch(0, step, 256), steps=1000, optimizer=optimizer)
"""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import xarray as xr
from torch import Tensor, nn

from attnflow._checks import at_least
from attnflow.torch.watcher import Watcher

Batches = Callable[[int], Sequence[Any]]
Numbers = dict[str, float]


class TrainingError(RuntimeError):
    """The loss of a step was no finite number; what was recorded before is in `recorded`."""

    def __init__(self, step: int, recorded: xr.Dataset, loss: float = math.nan):
        super().__init__(
            f"the loss is {loss} at step {step}: the training stopped there, after "
            f"{recorded.sizes['step']} records. A smaller learning rate is the usual way out"
        )
        self.step, self.recorded = step, recorded


@dataclasses.dataclass(frozen=True)
class Until:
    """Stop once the loss is at most, or the accuracy at least, a bound in `records` records in a
    row; with both bounds, once both hold.

    >>> print(Until(accuracy=0.99, records=3))
    accuracy at least 0.99 in 3 records in a row
    """

    loss: float | None = None
    accuracy: float | None = None
    records: int = 1

    def __post_init__(self):
        at_least("records", self.records, 1)
        if self.loss is None and self.accuracy is None:
            raise ValueError("Until needs a bound: loss, accuracy or both")

    def __call__(self, recorded: Sequence[Numbers]) -> bool:
        last = recorded[-self.records :]
        return len(last) == self.records and all(self._holds(each) for each in last)

    def _holds(self, numbers: Numbers) -> bool:
        low = self.loss is None or numbers["loss"] <= self.loss
        return low and (self.accuracy is None or numbers["accuracy"] >= self.accuracy)

    def __str__(self) -> str:
        low = [] if self.loss is None else [f"loss at most {self.loss:g}"]
        high = [] if self.accuracy is None else [f"accuracy at least {self.accuracy:g}"]
        return f"{' and '.join(low + high)} in {self.records} records in a row"


def cross_entropy(logits: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """Of logits (batch, …, classes) and targets (batch, …): their mean; with weights, which
    broadcast to the targets, the mean over the batch of the weighted sums."""
    flat = logits.flatten(0, -2), targets.flatten()
    if weights is None:
        return nn.functional.cross_entropy(*flat)
    each = nn.functional.cross_entropy(*flat, reduction="none").view(targets.shape)
    return (each * weights.to(each.dtype)).sum() / len(targets)


def accuracy(logits: Tensor, targets: Tensor, *_: Tensor) -> Tensor:
    """Share of targets that have the greatest logit."""
    return (logits.argmax(-1) == targets).double().mean()


def last_accuracy(logits: Tensor, targets: Tensor, *_: Tensor) -> Tensor:
    """The same at the last position only."""
    return accuracy(logits[:, -1], targets[:, -1])


def train(
    model: nn.Module,
    batches: Batches,
    *,
    steps: int,
    optimizer: torch.optim.Optimizer,
    schedule: Callable[[int], float] | None = None,
    loss: Callable[..., Tensor] = cross_entropy,
    accuracy: Callable[..., Tensor] = accuracy,
    watch: Watcher | None = None,
    record_every: int = 100,
    stop: Callable[[Sequence[Numbers]], bool] | None = None,
) -> xr.Dataset:
    """Loss and accuracy by step, of every so many steps and the last, each on the batch of the step
    before its update.

    batches(step): arrays or tensors: inputs, then what `loss(logits, ...)` and `accuracy(logits,
    ...)` take besides logits. schedule(step): by what the optimizer's learning rates are
    multiplied. watch: `attnflow.torch.watch(model, ...)`, entered here; unless it has a loss or a
    batch of its own it is given that of the step, so that it sees gradients. stop: called with the
    records so far (`Until`); its words are kept in the attribute `stopped`.

    A loss that is not finite raises `TrainingError`, before the step is taken.
    """
    at_least("steps", steps, 1)
    at_least("record_every", record_every, 1)
    if not callable(batches):
        raise ValueError("batches must be a function of the step, which returns one batch")
    device = next(model.parameters()).device
    rates = [group["lr"] for group in optimizer.param_groups]
    lends = watch is not None and watch.loss is None and watch.batch is None
    recorded: list[Numbers] = []
    stopped = ""
    model.train()
    with watch or contextlib.nullcontext():
        for step in range(steps):
            inputs, *rest = (torch.as_tensor(each, device=device) for each in batches(step))
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate if schedule is None else rate * schedule(step)
            if lends and watch is not None:
                watch.loss = _loss_of_some(loss, rest, len(inputs), watch.budget.sequences)
            logits = model(inputs)
            value = loss(logits, *rest)
            number = value.item()
            if not math.isfinite(number):
                raise TrainingError(step, _dataset(recorded), number)
            if step % record_every == 0 or step == steps - 1:
                right = float(accuracy(logits.detach(), *rest))
                recorded.append({"step": step, "loss": number, "accuracy": right})
                if stop is not None and stop(recorded):
                    stopped = str(stop)
                    break
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
    return _dataset(recorded).assign_attrs(stopped=stopped)


def _loss_of_some(
    loss: Callable[..., Tensor], rest: list[Tensor], size: int, count: int
) -> Callable[[Tensor], Tensor]:
    """The step's loss on its first few sequences, which a watcher looks at."""
    some = [each[:count] if each.ndim and len(each) == size else each for each in rest]
    return lambda logits: loss(logits, *some)


def _dataset(recorded: Sequence[Numbers]) -> xr.Dataset:
    columns = {name: [each[name] for each in recorded] for name in ("step", "loss", "accuracy")}
    step = columns.pop("step")
    data = xr.Dataset({k: ("step", v) for k, v in columns.items()}, {"step": ("step", step)})
    return data.astype(float).assign_coords(step=data.step.astype(int))
