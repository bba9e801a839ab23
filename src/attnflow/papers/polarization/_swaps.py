"""Does one exchanged token flip the prediction? Transformers that tell groups of tokens apart."""

import dataclasses
import importlib
import itertools
from typing import Annotated, Any

import numpy as np
import xarray as xr
from typing_extensions import Doc

from attnflow.papers import pretrained
from attnflow.papers.polarization._induction import FRESH
from attnflow.runs.sweeps import Experiment
from attnflow.tasks.token_groups import TokenGroups


@dataclasses.dataclass(frozen=True)
class Swap:
    """One training: AdamW at a constant rate, no positions, CLS last, on sequences that never
    repeat. The published runs take 400 batches of 256, ten times the same 10,000 sequences."""

    attention: Annotated[str, Doc("a name of the registry or a feature map")] = "softmax"
    vocabulary: Annotated[int, Doc("tokens without CLS: 40, 80 or 160")] = 40
    layers: Annotated[int, Doc("attention layers")] = 1
    heads: Annotated[int, Doc("heads of a layer")] = 1
    mlp: Annotated[bool, Doc("MLPs of four times the width")] = True
    norm: Annotated[bool, Doc("LayerNorm")] = True
    rate: Annotated[float, Doc("learning rate")] = 1e-3
    seed: Annotated[int, Doc("of weights and data")] = 0
    steps: Annotated[int, Doc("batches")] = 400
    width: Annotated[int, Doc("of the residual stream")] = 128
    batch: Annotated[int, Doc("sequences of a step")] = 256
    pairs: Annotated[int, Doc("pairs of sequences whose tokens are exchanged")] = 500
    looks: Annotated[int, Doc("times at which two sequences are looked at, the start included")] = 2

    @property
    def task(self) -> TokenGroups:
        return TokenGroups(vocabulary=self.vocabulary)


def build(trial: Swap) -> Any:
    from attnflow.torch import Transformer, TransformerConfig

    config = TransformerConfig(
        vocabulary=trial.task.tokens,
        outputs=trial.task.groups,
        layers=trial.layers,
        heads=trial.heads,
        width=trial.width,
        mlp=4 * trial.width if trial.mlp else 0,
        norm=trial.norm,
        causal=False,
        positions="none",
        length=trial.task.length,
        attention=trial.attention,
        read="last",
    )
    return Transformer(config, seed=trial.seed)


def run(trial: Swap) -> xr.Dataset:
    """After training: accuracy on fresh sequences, and by head how often one exchanged token flips
    the prediction: that of the greatest weight (`flip`), and one at random (`chance`). While it
    trains: CLS's weights in two sequences of different labels. NaN where the loss was no number.
    """
    pretrained.needs_torch()
    torch: Any = importlib.import_module("torch")
    from attnflow.torch import TrainingError, train

    task, model = trial.task, build(trial)
    optimizer = torch.optim.AdamW(model.parameters(), lr=trial.rate, fused=True)
    two = np.concatenate([each.tokens for each in task.pairs(trial.seed, FRESH + 1, 1)])
    looks = np.unique(np.geomspace(1, trial.steps + 1, trial.looks).round().astype(int)) - 1
    seen, lost = [rows_of(model, two)], 1.0
    for begin, end in itertools.pairwise(looks):
        try:
            train(
                model,
                lambda step, begin=begin: task.batch(trial.seed, int(begin) + step, trial.batch),
                steps=int(end - begin),
                optimizer=optimizer,
                record_every=trial.steps,
            )
        except TrainingError:
            lost = float("nan")
        seen.append(rows_of(model, two) * lost)
    right, flips, chance = measured(model, trial)
    heads = ("layer", "head")
    return xr.Dataset(
        {
            "accuracy": right * lost,
            "flip": (heads, flips * lost),
            "chance": chance * lost,
            "weights": (("step", *heads, "sequence", "key"), np.stack(seen)),
            "tokens": (("sequence", "key"), two),
        },
        {"step": looks},
    )


GROUPS = Experiment("token_groups", run)


def rows_of(model: Any, tokens: np.ndarray) -> np.ndarray:
    """CLS's weights (layer, head, sequence, key)."""
    torch: Any = importlib.import_module("torch")
    model.eval()
    with torch.no_grad():
        maps = model(torch.as_tensor(tokens), maps=True)[1]
    model.train()
    return maps[..., -1, :].permute(0, 2, 1, 3).numpy().astype(float)


def predicted(model: Any, tokens: np.ndarray) -> np.ndarray:
    """Labels, of sequences on the last axis."""
    torch: Any = importlib.import_module("torch")
    with torch.no_grad():
        logits = model(torch.as_tensor(tokens.reshape(-1, tokens.shape[-1])))
    return logits.argmax(-1).numpy().reshape(tokens.shape[:-1])


def measured(model: Any, trial: Swap) -> tuple[float, np.ndarray, float]:
    """Accuracy, flip rates (layer, head), and the flip rate of tokens chosen at random."""
    task = trial.task
    fresh = task.batch(trial.seed, FRESH, 1000)
    first, second = task.pairs(trial.seed, FRESH, trial.pairs)
    model.eval()
    right = (predicted(model, fresh.tokens) == fresh.labels).mean()
    places = [rows_of(model, x.tokens)[..., :-1].argmax(-1) for x in (first, second)]
    shape = places[0].shape[:2]
    chosen = [place.reshape(-1, trial.pairs).T for place in places]  # (pair, layer and head)
    rng = np.random.default_rng(trial.seed)
    chosen = [np.column_stack([c, rng.integers(task.drawn, size=trial.pairs)]) for c in chosen]
    flipped = [
        predicted(model, task.swap(a.tokens, p, b.tokens, q, shuffle=trial.seed))
        == b.labels[:, None]
        for a, p, b, q in (
            (first, *chosen[:1], second, chosen[1]),
            (second, chosen[1], first, chosen[0]),
        )
    ]
    rate = np.mean(flipped, axis=(0, 1))
    return float(right), rate[:-1].reshape(shape), float(rate[-1])
