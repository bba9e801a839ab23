"""Vision transformers that learn a teacher's labels of MNIST, with even or sparse attention."""

import dataclasses
import functools
import importlib
from typing import Annotated, Any

import numpy as np
import xarray as xr
from typing_extensions import Doc

from attnflow._checks import at_least, choice
from attnflow.instruments import log10_ratio
from attnflow.papers import pretrained
from attnflow.papers.conditioning._class_token import class_token
from attnflow.papers.conditioning._separated_keys import measure
from attnflow.papers.ledger import NeedsData
from attnflow.runs.sweeps import Experiment
from attnflow.tasks import files, images

TEACHERS = {"even": 20.0, "sparse": 1e7}  # the geometric mean of R in their class tokens' rows
CLASSES = 10
PATCH = 4
TEACHER_SEED = 1000  # and that of the student: their weights are not the same
FEW = 32  # images on which the teacher's R is set


@dataclasses.dataclass(frozen=True)
class VisionTrial:
    """One student: SGD at a constant rate, cross-entropy, on what a teacher of the same kind says.
    The paper does not tell its batch, its steps or how it makes teachers."""

    sparsity: Annotated[str, Doc("of the teacher's attention: even (R ≈ 20) or sparse (1e7)")] = (
        "even"
    )
    rate: Annotated[float, Doc("learning rate")] = 0.01
    seed: Annotated[int, Doc("of the teacher, the student and the batches")] = 0
    images: Annotated[int, Doc("of the training split")] = 60_000
    steps: Annotated[int, Doc("updates")] = 9400
    every: Annotated[int, Doc("steps between two records")] = 100
    batch: Annotated[int, Doc("images of a step")] = 64
    examples: Annotated[int, Doc("held-out images to measure on")] = 2000
    layers: Annotated[int, Doc("attention layers")] = 6
    heads: Annotated[int, Doc("heads of a layer")] = 4
    width: Annotated[int, Doc("of the residual stream")] = 64
    mlp: Annotated[int, Doc("hidden width of the MLPs")] = 256

    def __post_init__(self):
        choice("sparsity", self.sparsity, TEACHERS)
        for name in ("images", "batch", "examples"):
            at_least(name, getattr(self, name), 1)
        if self.batch > self.images:
            raise ValueError(
                f"a batch of {self.batch} does not repeat: there are {self.images} images"
            )
        if self.steps < 1 or self.every < 1 or self.steps % self.every:
            raise ValueError(
                f"records come every so many steps: {self.steps} steps are no multiple of "
                f"{self.every}"
            )


def needs_mnist() -> None:
    pretrained.needs_torch()
    try:
        for split in images.SPLITS:
            _digits(split)
    except files.DataError as error:
        raise NeedsData(str(error)) from error


@functools.cache
def _digits(split: str) -> np.ndarray:
    return images.mnist(split).pixels


def patches(split: str, count: int) -> np.ndarray:
    return images.patches(_digits(split)[:count], PATCH)


def build(trial: VisionTrial, seed: int) -> Any:
    from attnflow.torch import Transformer, TransformerConfig

    config = TransformerConfig(
        vocabulary=0,
        patch=PATCH**2,
        outputs=CLASSES,
        layers=trial.layers,
        heads=trial.heads,
        width=trial.width,
        length=1 + (28 // PATCH) ** 2,
        mlp=trial.mlp,
        causal=False,
        start=True,
        read="first",
    )
    return Transformer(config, seed=seed)


def teacher(trial: VisionTrial, inputs: np.ndarray) -> Any:
    """Random weights; those of queries and keys are multiplied by the one factor, found by
    bisection, for which the class tokens' rows on `inputs` have the geometric mean of R, over
    layers, heads and images, that `TEACHERS` names."""
    wanted = np.log10(TEACHERS[trial.sparsity])
    low, high = -1.0, 1.0  # log₁₀ of the factor
    while high - low > 1e-4:
        middle = (low + high) / 2
        above = np.mean(decades(_sharpened(trial, 10**middle), inputs)) > wanted
        low, high = (low, middle) if above else (middle, high)
    return _sharpened(trial, 10**low)


def _sharpened(trial: VisionTrial, factor: float) -> Any:
    torch: Any = importlib.import_module("torch")
    model = build(trial, TEACHER_SEED + trial.seed)
    with torch.no_grad():
        for block in model.blocks:
            for each in (block.attention.qkv.weight, block.attention.qkv.bias):
                each[: 2 * trial.width] *= factor  # queries and keys come before values
    return model


def decades(model: Any, inputs: np.ndarray) -> np.ndarray:
    """log₁₀ R of the class token's rows, (layer, example, head)."""
    return log10_ratio(class_token(model, inputs).scores)


def logits(model: Any, inputs: np.ndarray, size: int = 500) -> np.ndarray:
    torch: Any = importlib.import_module("torch")
    with torch.no_grad():
        parts = [
            model(torch.as_tensor(inputs[k : k + size])).double().numpy()
            for k in range(0, len(inputs), size)
        ]
    return np.concatenate(parts)


def labels(answers: np.ndarray, centre: np.ndarray) -> np.ndarray:
    """The class whose logit is most above `centre`, its mean over the training images: without
    that, a random teacher gives nearly all images one class."""
    return np.argmax(answers - centre, axis=-1)


def mean_loss(answers: np.ndarray, targets: np.ndarray) -> float:
    """Cross-entropy."""
    shifted = answers - answers.max(-1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return float(-logs[np.arange(len(targets)), targets].mean())


def run(trial: VisionTrial) -> xr.Dataset:
    """`loss` by step, means over the batches since the last record; `start` and `end`, the loss on
    the first training images, as many as `examples`, before and after; `accuracy` on held-out
    ones; of them `measure` for the trained student, log₁₀ R of the `teacher` and the `student`,
    and all maps of one. `classes`: shares of the labels.

    `failed` is the step at which the loss was no number, or −1: the rest is then NaN.
    """
    needs_mnist()
    torch: Any = importlib.import_module("torch")
    inputs, held_out = patches("train", trial.images), patches("test", trial.examples)
    guide = teacher(trial, inputs[:FEW])
    answers = logits(guide, inputs)
    centre = answers.mean(axis=0)
    targets = labels(answers, centre)
    student = build(trial, trial.seed)
    some = inputs[: trial.examples], targets[: trial.examples]
    start = mean_loss(logits(student, some[0]), some[1])
    losses, failed = _train(student, trial, inputs, targets)
    lost = 1.0
    if failed >= 0:
        lost, student = np.nan, build(trial, trial.seed)  # for the shapes of what is lost
    with torch.no_grad():
        _, maps = student(torch.as_tensor(held_out[:1]), maps=True)
    right = np.argmax(logits(student, held_out), -1) == labels(logits(guide, held_out), centre)
    seen = class_token(student, held_out)
    return (measure(seen, trial.seed) * lost).assign(
        loss=("step", losses),
        step=np.arange(trial.every, trial.steps + 1, trial.every),
        start=start,
        end=mean_loss(logits(student, some[0]), some[1]) * lost,
        accuracy=right.mean() * lost,
        teacher=(("layer", "head"), decades(guide, held_out).mean(axis=1)),
        student=(("layer", "head"), log10_ratio(seen.scores).mean(axis=1) * lost),
        map=(("layer", "head", "query", "key"), maps[:, 0].numpy() * np.float32(lost)),
        pixels=(("row", "column"), _digits("test")[0].astype(np.int32)),
        classes=("class", np.bincount(targets, minlength=CLASSES) / len(targets)),
        failed=failed,
    )


def _train(student, trial: VisionTrial, inputs, targets) -> tuple[np.ndarray, int]:
    torch: Any = importlib.import_module("torch")
    from attnflow.torch import TrainingError, train

    def batch(step: int):
        rng = np.random.default_rng([trial.seed, step])
        chosen = rng.choice(trial.images, trial.batch, replace=False, shuffle=False)
        return inputs[chosen], targets[chosen]

    optimizer = torch.optim.SGD(student.parameters(), lr=trial.rate)
    failed = -1
    try:
        record = train(student, batch, steps=trial.steps, optimizer=optimizer, record_every=1)
    except TrainingError as error:
        record, failed = error.recorded, error.step
    losses = np.full(trial.steps, np.nan)
    losses[: record.sizes["step"]] = record.loss
    return losses.reshape(-1, trial.every).mean(axis=1), failed


VISION = Experiment("vision", run)
