"""Prompt attention: f(X) = softmax(X W p)ᵀ X v, one tunable token over n input tokens.

A student (p, v, W) learns N labels that a teacher of the same form gave.
"""

import dataclasses
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from jax.nn import softmax, softplus
from typing_extensions import Doc

from attnflow._checks import at_least, choice, finite, positive
from attnflow.models.interface import Model, Observables

OBJECTIVES = ("square", "logistic")
ATTENTIONS = ("softmax", "linear")
BLOCKS = ("p", "v", "W")
LOG10_E = 1 / np.log(10)


class Prompt(Model):
    """The loss (1/N) Σ ℓ(f(Xᵢ), yᵢ) over whichever of p, v, W are `trained`; the rest stays at
    the teacher's.

    square: ℓ = ½(f − y)²; logistic: ℓ = log(1 + e^(−y f)) with y = ±1. `linear` attention, the
    control without softmax, is f = (X W p)ᵀ X v / n. `start` holds the initial p, v and W; with a
    key, the trained blocks get `scale` × standard normal entries more.

    Observables: `loss`, `log10_ratio` (the mean over samples of log10 of the greatest over the
    least attention weight, from scores, so that nothing underflows; 0 under linear attention),
    `gradient_p`, `gradient_v`, `gradient_W` (norms; NaN-free, 0 if not trained) and
    `teacher_distance` (of the trained blocks together).
    """

    inputs: np.ndarray
    labels: np.ndarray
    teacher: dict[str, np.ndarray]
    start: dict[str, np.ndarray]
    trained: tuple[str, ...] = ("p", "v")
    objective: str = "square"
    attention: str = "softmax"
    scale: float = 0.1

    dims: ClassVar = {}

    def __check_init__(self):
        choice("loss", self.objective, OBJECTIVES)
        choice("attention", self.attention, ATTENTIONS)
        for block in self.trained:
            choice("trained block", block, BLOCKS)
        if not self.trained:
            raise ValueError("trained: name at least one of p, v, W")
        positive("scale", self.scale)
        if np.ndim(self.inputs) < 3:
            raise ValueError(f"inputs must be N × n × d (got {np.ndim(self.inputs)} axes)")
        samples, tokens, width = np.shape(self.inputs)[-3:]
        if samples < 1 or tokens < 2:
            raise ValueError(f"needs N ≥ 1 samples of n ≥ 2 tokens (got {samples} and {tokens})")
        finite("inputs", self.inputs)
        finite("labels", self.labels)
        if np.shape(self.labels)[-1] != samples:
            raise ValueError(f"labels: one for each of the {samples} samples")
        for owner in (self.teacher, self.start):
            shapes = {block: np.shape(owner[block])[-1] for block in BLOCKS}
            if set(shapes.values()) != {width}:
                raise ValueError(f"p, v and W must have the inputs' width {width} (got {shapes})")

    def init(self, key=None):
        params = {block: jnp.asarray(self.start[block]) for block in self.trained}
        if key is None:
            return params
        keys = jax.random.split(key, len(self.trained))
        return {
            block: value + self.scale * jax.random.normal(k, value.shape, value.dtype)
            for k, (block, value) in zip(keys, params.items(), strict=True)
        }

    def solution(self):
        return {block: jnp.asarray(self.teacher[block]) for block in self.trained}

    def complete(self, params) -> dict[str, jax.Array]:
        """p, v and W: the trained ones, and the teacher's for the others."""
        return {block: jnp.asarray(self.teacher[block]) for block in BLOCKS} | params

    def scores(self, params):
        """X W p, N × n."""
        full = self.complete(params)
        return jnp.asarray(self.inputs) @ (full["W"] @ full["p"])

    def outputs(self, params):
        full = self.complete(params)
        scores = self.scores(params)
        weights = (
            softmax(scores, axis=-1) if self.attention == "softmax" else scores / scores.shape[-1]
        )
        return jnp.sum(weights * (jnp.asarray(self.inputs) @ full["v"]), axis=-1)

    def loss_of_outputs(self, outputs):
        labels = jnp.asarray(self.labels)
        if self.objective == "logistic":
            return jnp.mean(softplus(-labels * outputs))
        return 0.5 * jnp.mean((outputs - labels) ** 2)

    def loss(self, params):
        return self.loss_of_outputs(self.outputs(params))

    def observe(self, params) -> Observables:
        loss, gradient = jax.value_and_grad(self.loss)(params)
        scores = self.scores(params)
        spread = jnp.max(scores, axis=-1) - jnp.min(scores, axis=-1)
        ratio = jnp.mean(spread) * LOG10_E if self.attention == "softmax" else jnp.zeros(())
        away = sum(
            jnp.sum((value - jnp.asarray(self.teacher[block])) ** 2)
            for block, value in params.items()
        )
        norms = {
            f"gradient_{block}": jnp.linalg.norm(gradient[block])
            if block in params
            else jnp.zeros(())
            for block in BLOCKS
        }
        return {"loss": loss, "log10_ratio": ratio, "teacher_distance": jnp.sqrt(away)} | norms


@dataclasses.dataclass(frozen=True)
class StudentTeacher:
    """Gaussian inputs and a Gaussian teacher, drawn from `seed`; `model()` makes the `Prompt`.

    >>> StudentTeacher(d=4, n=3, samples=5).model().inputs.shape
    (5, 3, 4)
    """

    d: Annotated[int, Doc("width of the tokens")] = 20
    n: Annotated[int, Doc("tokens a sample")] = 20
    samples: Annotated[int, Doc("N, the number of samples")] = 100
    sigma_p: Annotated[float, Doc("standard deviation of the teacher's prompt entries")] = 1.0
    sigma_v: Annotated[float, Doc("standard deviation of the teacher's value entries")] = 1.0
    trained: Annotated[tuple[str, ...], Doc("which of p, v, W are trained")] = ("p", "v")
    objective: Annotated[str, tyro.conf.arg(name="loss"), Doc("square or logistic")] = "square"
    attention: Annotated[str, Doc("softmax, or linear as the control")] = "softmax"
    near: Annotated[
        float | None,
        Doc("start at the teacher plus this × standard normal; by default at N(0, 1/d)"),
    ] = None
    seed: Annotated[int, Doc("seed of data, teacher and start")] = 0

    def __post_init__(self):
        at_least("d", self.d, 1)
        at_least("n", self.n, 2, "attention needs two tokens to choose from")
        at_least("samples", self.samples, 1, "there is nothing to learn without samples")
        at_least("seed", self.seed, 0)
        positive("sigma_p", self.sigma_p)
        positive("sigma_v", self.sigma_v)
        if self.near is not None:
            positive("near", self.near)

    def model(self) -> Prompt:
        rng = np.random.default_rng(self.seed)
        inputs = rng.normal(size=(self.samples, self.n, self.d))
        teacher = {
            "p": self.sigma_p * rng.normal(size=self.d),
            "v": self.sigma_v * rng.normal(size=self.d),
            "W": np.eye(self.d),
        }
        if self.near is None:
            start = {b: rng.normal(size=self.d) / np.sqrt(self.d) for b in ("p", "v")}
            start["W"] = np.eye(self.d)
        else:
            start = {b: x + self.near * rng.normal(size=x.shape) for b, x in teacher.items()}
        labels = np.zeros(self.samples)
        bare = Prompt(inputs, labels, teacher, start, self.trained, self.objective, self.attention)
        with jax.enable_x64(True):
            labels = np.asarray(bare.outputs({b: jnp.asarray(x) for b, x in teacher.items()}))
        if self.objective == "logistic":
            labels = np.sign(labels)
        return dataclasses.replace(bare, labels=labels)
