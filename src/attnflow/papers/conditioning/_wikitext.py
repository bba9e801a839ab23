"""Transformers of two layers on WikiText-2: the next word piece, and whether "the" is there."""

import dataclasses
import functools
import importlib
from typing import Annotated, Any

import numpy as np
import xarray as xr
from typing_extensions import Doc

from attnflow._checks import choice
from attnflow.instruments import log10_ratio
from attnflow.papers import pretrained
from attnflow.papers.conditioning._class_token import class_token
from attnflow.papers.ledger import NeedsData
from attnflow.runs.sweeps import Experiment
from attnflow.tasks import files, wikitext

TASKS = ("next", "the")
OPTIMIZERS = ("sgd", "adam")


@dataclasses.dataclass(frozen=True)
class TextTrial:
    """One training, at a constant rate, on random chunks of WikiText-2 after a class token that
    all is told from. Norms stand before the parts of a layer, and weights begin as PyTorch makes
    linear maps and embeddings; the paper tells neither."""

    task: Annotated[str, Doc("next: the last piece of a chunk; the: is this word in it")] = "next"
    optimizer: Annotated[str, Doc("sgd (momentum 0.9) or adam (weight decay 1e-4)")] = "sgd"
    rate: Annotated[float, Doc("learning rate")] = 0.1
    seed: Annotated[int, Doc("of weights and batches")] = 0
    steps: Annotated[int, Doc("updates")] = 2000
    every: Annotated[int, Doc("steps between two records")] = 50
    batch: Annotated[int, Doc("chunks of a step")] = 32
    length: Annotated[int, Doc("pieces of a chunk")] = 64
    layers: Annotated[int, Doc("attention layers")] = 2
    heads: Annotated[int, Doc("heads of a layer")] = 4
    width: Annotated[int, Doc("of the residual stream; MLPs have four times that")] = 128

    def __post_init__(self):
        choice("task", self.task, TASKS)
        choice("optimizer", self.optimizer, OPTIMIZERS)
        if self.steps < 1 or self.every < 1 or self.steps % self.every:
            raise ValueError(
                f"records come every so many steps: {self.steps} steps are no multiple of "
                f"{self.every}"
            )


def needs_wikitext() -> None:
    pretrained.needs_torch()
    try:
        for name in ("wikitext-2/train.txt", wikitext.WORDS):
            files.read(name)
    except files.DataError as error:
        raise NeedsData(str(error)) from error


@functools.cache
def labelled(task: str, length: int) -> wikitext.Labelled:
    """All training chunks of a task."""
    chunks = wikitext.chunks("train", length)
    return wikitext.next_piece(chunks) if task == "next" else wikitext.contains(chunks)


@functools.cache
def best_constant(task: str, length: int) -> float:
    """Cross-entropy (nats) of the best answer that ignores the input: the entropy of the labels;
    for the next piece that of all pieces, as there are about as many labels as pieces."""
    known = labelled(task, length)
    answers = known.tokens[:, 1:] if task == "next" else known.targets
    _, counts = np.unique(answers, return_counts=True)
    share = counts / counts.sum()
    return float(-(share * np.log(share)).sum())


def build(trial: TextTrial) -> tuple[Any, Any]:
    """The model and its optimizer."""
    torch: Any = importlib.import_module("torch")
    from attnflow.torch import Transformer, TransformerConfig

    config = TransformerConfig(
        vocabulary=wikitext.VOCABULARY,
        outputs=wikitext.VOCABULARY if trial.task == "next" else 2,
        layers=trial.layers,
        heads=trial.heads,
        width=trial.width,
        length=trial.length + 1,
        mlp=4 * trial.width,
        causal=False,
        read="first",
    )
    model = Transformer(config, seed=trial.seed)
    if trial.optimizer == "sgd":
        return model, torch.optim.SGD(model.parameters(), lr=trial.rate, momentum=0.9)
    options = {"lr": trial.rate, "weight_decay": 1e-4, "fused": True}
    return model, torch.optim.Adam(model.parameters(), **options)


def run(trial: TextTrial) -> xr.Dataset:
    """By record, step 0 first: `loss`, the mean over the batches since the last record, of which
    the paper shows one (at step 0 that of the first batch); of the ratio R = max a/min a of the
    class token's attention, `ratio`, its mean over layers, heads and the batch, and
    `log10_ratio`, the mean of log₁₀ R there. `constant`: see `best_constant`.

    `failed` is the step at which the loss was no number, or −1: records from there on are NaN.
    """
    needs_wikitext()
    from attnflow.torch import TrainingError, train

    known = labelled(trial.task, trial.length)
    model, optimizer = build(trial)
    batch = lambda step: wikitext.some(known, trial.seed, step, trial.batch)  # noqa: E731
    losses, ratios, failed = np.full(trial.steps, np.nan), [], -1
    for start in range(0, trial.steps, trial.every):
        ratios.append(_ratios(model, batch(start).tokens))
        try:
            segment = train(
                model,
                lambda step, start=start: batch(start + step),
                steps=trial.every,
                optimizer=optimizer,
                record_every=1,
            )
        except TrainingError as error:
            segment, failed = error.recorded, start + error.step
        losses[start : start + segment.sizes["step"]] = segment.loss
        if failed >= 0:
            break
    else:
        ratios.append(_ratios(model, batch(trial.steps).tokens))
    return _records(trial, losses, ratios).assign(
        constant=best_constant(trial.task, trial.length), failed=failed
    )


TEXT = Experiment("wikitext", run)


def _ratios(model: Any, tokens: np.ndarray) -> tuple[float, float]:
    decades = log10_ratio(class_token(model, tokens).scores)
    return float(np.mean(10.0**decades)), float(np.mean(decades))


def _records(trial: TextTrial, losses: np.ndarray, ratios: list) -> xr.Dataset:
    """losses: of every step."""
    steps = np.arange(0, trial.steps + 1, trial.every)
    means = losses.reshape(-1, trial.every).mean(axis=1)
    ratio = np.full((len(steps), 2), np.nan)
    ratio[: len(ratios)] = ratios
    found = {
        "loss": np.concatenate([losses[:1], means]),
        "ratio": ratio[:, 0],
        "log10_ratio": ratio[:, 1],
    }
    return xr.Dataset({k: ("step", v) for k, v in found.items()}, {"step": steps})
