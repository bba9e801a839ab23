"""Tasks in which only the score gap Δ and the number of important keys act."""

import dataclasses

import numpy as np

from attnflow.instruments import local_factors
from attnflow.models.prompt import Prompt
from attnflow.papers.conditioning._ledger import softmax


@dataclasses.dataclass(frozen=True)
class Separated:
    """Important keys (1, ±…) in a two-dimensional signal space at score Δ, the others outside it
    at score 0: no leakage, no spread, so only the gap Δ and the number s of important keys act."""

    deltas: tuple[float, ...] = tuple(np.linspace(0, 12, 13).tolist())
    important: tuple[int, ...] = (1, 2, 3)
    tokens: int = 8
    width: int = 6
    samples: int = 60
    seed: int = 0


def separated(config: Separated, size: int, delta: float) -> Prompt:
    """The task with `size` important keys a sample, p* = Δ e₁, only p trained."""
    rng = np.random.default_rng(config.seed)
    keys = np.zeros((config.samples, config.tokens, config.width))
    keys[:, :size, 0] = 1.0
    keys[:, :size, 1] = rng.normal(size=(config.samples, size))
    keys[:, size:, 2:] = rng.normal(size=(config.samples, config.tokens - size, config.width - 2))
    teacher = {
        "p": delta * np.eye(config.width)[0],
        "v": rng.normal(size=config.width),
        "W": np.eye(config.width),
    }
    labels = np.sum(softmax(keys @ teacher["p"]) * (keys @ teacher["v"]), axis=1)
    return Prompt(keys, labels, teacher, teacher, trained=("p",))


def teacher_weights(model: Prompt) -> np.ndarray:
    """The attention rows at the teacher (W = I)."""
    return softmax(np.asarray(model.inputs) @ model.teacher["p"])


def factors_at_teacher(model: Prompt) -> np.ndarray:
    """G with H = GᵀG the Hessian in p at the teacher, where the residuals vanish."""
    keys, share = np.asarray(model.inputs), np.full(len(model.labels), 1 / len(model.labels))
    return local_factors(keys, teacher_weights(model), keys @ model.teacher["v"], share)
