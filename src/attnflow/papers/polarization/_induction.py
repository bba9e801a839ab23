"""Sinks in transformers of two layers that learn induction."""

import dataclasses
import importlib
from typing import Annotated, Any

import numpy as np
import xarray as xr
from typing_extensions import Doc

from attnflow.papers import pretrained
from attnflow.runs.sweeps import Experiment
from attnflow.tasks.induction import Induction

FAMILIES = ("sigmoid", "elu", "elu_elu", "mlp", "linear")
ATTENTIONS = ("softmax", *(f"{name}{end}" for name in FAMILIES for end in ("_normalized", "")))
POSITIVE = ("softmax", "sigmoid_normalized", "elu_normalized", "elu_elu_normalized")
BIASED = ("softmax_1", "bayes_softmax")
FRESH = 10**6  # a step that no training reaches: its batch is to test on


@dataclasses.dataclass(frozen=True)
class Trial:
    """One training: AdamW at a constant rate, on sequences that never repeat. The published runs
    take 3,910 batches of 256, ten times the same 100,000 sequences."""

    attention: Annotated[str, Doc("a name of the registry or a feature map")] = "softmax"
    heads: Annotated[int, Doc("heads of both layers")] = 4
    positions: Annotated[str, Doc("additive, concatenated or none")] = "additive"
    same_target: Annotated[bool, Doc("t' is t")] = False
    random_weight: Annotated[float, Doc("λ")] = 0.2
    rate: Annotated[float, Doc("learning rate")] = 1e-3
    seed: Annotated[int, Doc("of weights and data")] = 0
    steps: Annotated[int, Doc("at most")] = 3910
    patience: Annotated[
        int, Doc("stop after so many records (one every 50 steps) with accuracy 0.99; 0: never")
    ] = 0
    width: Annotated[int, Doc("of the residual stream")] = 128
    mlp: Annotated[int, Doc("hidden width of the MLPs")] = 512
    batch: Annotated[int, Doc("sequences of a step")] = 256
    vocabulary: Annotated[int, Doc("symbols t")] = 50
    context: Annotated[int, Doc("symbols before the query")] = 10

    @property
    def task(self) -> Induction:
        return Induction(
            vocabulary=self.vocabulary,
            context=self.context,
            same_target=self.same_target,
            random_weight=self.random_weight,
        )


SMALL = Trial(
    rate=3e-3, steps=2000, patience=6, width=64, mlp=128, batch=64, vocabulary=20, context=6
)


def build(trial: Trial) -> Any:
    from attnflow.torch import Transformer, TransformerConfig

    task = trial.task
    config = TransformerConfig(
        vocabulary=task.tokens,
        outputs=task.tokens,
        heads=trial.heads,
        width=trial.width,
        length=task.length,
        mlp=trial.mlp,
        positions=trial.positions,
        attention=trial.attention,
        learn_bias=trial.attention in BIASED,
    )
    return Transformer(config, seed=trial.seed)


def run(trial: Trial) -> xr.Dataset:
    """After training, on 1,000 fresh sequences: the accuracy of the answer; by head of the second
    layer the sink score, and the share of BOS of all there is to give, which differs for attentions
    that can give less than one; the maps of one sequence. And loss and accuracy while it trained.

    Where the loss was no number (`failed` names the step) the first ones are NaN.
    """
    pretrained.needs_torch()
    torch: Any = importlib.import_module("torch")
    from attnflow.torch import TrainingError, Until, train
    from attnflow.torch.training import last_accuracy

    task, model = trial.task, build(trial)
    failed = -1
    try:
        record = train(
            model,
            lambda step: task.batch(trial.seed, step, trial.batch),
            steps=trial.steps,
            optimizer=torch.optim.AdamW(model.parameters(), lr=trial.rate, fused=True),
            accuracy=last_accuracy,
            record_every=50,
            stop=Until(accuracy=0.99, records=trial.patience) if trial.patience else None,
        )
    except TrainingError as error:
        record, failed = error.recorded, error.step
    fresh = task.batch(trial.seed, FRESH, 1000)
    model.eval()
    with torch.no_grad():
        logits, maps = model(torch.as_tensor(fresh.tokens), maps=True)
    right = (logits[:, -1].argmax(-1).numpy() == fresh.targets[:, -1]).mean()
    second = maps[-1].numpy()
    lost = float("nan") if failed >= 0 else 1.0
    rows = second[:, :, list(task.random_positions)]
    return record.rename({name: f"training_{name}" for name in record.data_vars}).assign(
        accuracy=right * lost,
        sink=("head", sink_scores(second, task) * lost),
        first=("head", rows[..., 0].mean((0, 2), dtype=float) * lost),
        pattern=(("layer", "head", "query", "key"), maps[:, 0].numpy() * lost),
        tokens=("query", fresh.tokens[0]),
        steps=int(record.step[-1]) + 1 if record.sizes["step"] else 0,
        failed=failed,
    )


INDUCTION = Experiment("induction", run)


def sink_scores(maps: np.ndarray, task: Induction) -> np.ndarray:
    """By head: the mean over sequences and positions where no prediction is possible of the share
    of a row's weight that goes to BOS, within [0, 1]. maps: (sequence, head, query, key)."""
    rows = maps[:, :, list(task.random_positions)]
    share = rows[..., 0] / rows.sum(-1)
    return share.mean((0, 2), dtype=float).clip(0, 1)
