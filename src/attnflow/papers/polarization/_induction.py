"""Sinks in transformers of two layers that learn induction."""

import dataclasses
import importlib
from typing import Any

import numpy as np

from attnflow.papers import pretrained
from attnflow.tasks.induction import Induction


@dataclasses.dataclass(frozen=True)
class Trial:
    """One training: AdamW at a constant rate on batches of 256, until the accuracy on two records
    in a row is above 0.99, or `steps` are done (the published runs take 3,910)."""

    attention: str = "softmax"
    heads: int = 4
    positions: str = "additive"
    same_target: bool = False
    random_weight: float = 0.2
    rate: float = 1e-3
    seed: int = 0
    steps: int = 1500
    width: int = 128
    mlp: int = 512
    batch: int = 256


def run(trial: Trial) -> dict[str, Any]:
    """Accuracy of the answer and sink scores of the second layer's heads on 1,000 fresh sequences,
    and the step at which it ended."""
    pretrained.needs_torch()
    torch: Any = importlib.import_module("torch")
    from attnflow.torch import Transformer, TransformerConfig, Until, train
    from attnflow.torch.training import last_accuracy

    task = Induction(same_target=trial.same_target, random_weight=trial.random_weight)
    config = TransformerConfig(
        vocabulary=task.tokens,
        outputs=task.tokens,
        heads=trial.heads,
        width=trial.width,
        length=task.length,
        mlp=trial.mlp,
        positions=trial.positions,
        attention=trial.attention,
        learn_bias=trial.attention in ("softmax_1", "bayes_softmax"),
    )
    model = Transformer(config, seed=trial.seed)
    record = train(
        model,
        lambda step: task.batch(trial.seed, step, trial.batch),
        steps=trial.steps,
        optimizer=torch.optim.AdamW(model.parameters(), lr=trial.rate, fused=True),
        accuracy=last_accuracy,
        record_every=50,
        stop=Until(accuracy=0.99, records=2),
    )
    fresh = task.batch(trial.seed, 10**6, 1000)
    model.eval()
    with torch.no_grad():
        logits, maps = model(torch.as_tensor(fresh.tokens), maps=True)
    right = logits[:, -1].argmax(-1).numpy() == fresh.targets[:, -1]
    return {
        "accuracy": float(right.mean()),
        "sinks": sink_scores(maps[-1].numpy(), task),
        "steps": int(record.step[-1]) + 1,
    }


def sink_scores(maps: np.ndarray, task: Induction) -> np.ndarray:
    """By head: the mean over sequences and positions where no prediction is possible of the share
    of a row's weight that goes to BOS, within [0, 1]. maps: (sequence, head, query, key)."""
    rows = maps[:, :, list(task.random_positions)]
    share = rows[..., 0] / rows.sum(-1)
    return share.mean((0, 2)).clip(0, 1)
