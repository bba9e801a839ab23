"""Prompt attention: f(X) = softmax(X W p)ᵀ X v, one tunable token over n input tokens.

A student (p, v, W) learns N labels that a teacher of the same form gave.
"""

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from jax.nn import softmax, softplus
from typing_extensions import Doc

from attnflow._checks import at_least, choice, finite, fits_memory, positive_moderate, seed
from attnflow.models.interface import Model, Observables

OBJECTIVES = ("square", "logistic")
ATTENTIONS = ("softmax", "linear")
BLOCKS = ("p", "v", "W")
LOG10_E = 1 / np.log(10)
IN_MEMORY = 2**26  # entries of the inputs up to which a task holds them (half a gigabyte)
CHUNK = 2**21  # entries drawn at once beyond


class SeededInputs(NamedTuple):
    """Standard normal inputs that are drawn again, `chunk` samples at a time, whenever needed.

    Chunk i is the normal draw of `fold_in(key, i)`, so the data is a function of the key and of the
    size of a chunk. The last chunk may hold more samples than are left: those are dropped.
    """

    key: np.ndarray
    samples: int
    tokens: int
    width: int
    chunk: int

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.samples, self.tokens, self.width

    def map(self, f: Callable[[jax.Array], Any]) -> Any:
        """f(X), an array or a tree of them with a row for each sample, in the memory of one chunk;
        so is its gradient, for which the chunks are drawn once more."""
        if not jax.config.read("jax_enable_x64"):
            raise ValueError("seeded inputs are float64: use them within jax.enable_x64(True)")
        key = jax.random.wrap_key_data(jnp.asarray(self.key), impl="threefry2x32")

        def one(i):
            shape = (self.chunk, self.tokens, self.width)
            return f(jax.random.normal(jax.random.fold_in(key, i), shape))

        chunks = -(-self.samples // self.chunk)
        rows = jax.lax.map(jax.checkpoint(one, prevent_cse=False), jnp.arange(chunks))
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[: self.samples], rows)

    def array(self) -> np.ndarray:
        """All of them, N × n × d."""
        with jax.enable_x64(True):
            return np.asarray(self.map(lambda x: x))


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

    inputs: Any  # an N × n × d array, or SeededInputs
    labels: np.ndarray
    teacher: dict[str, np.ndarray]
    start: dict[str, np.ndarray]
    trained: tuple[str, ...] = ("p", "v")
    objective: str = "square"
    attention: str = "softmax"
    scale: float = 0.1

    dims: ClassVar = {}
    shared: ClassVar = ("inputs", "labels")

    def __check_init__(self):
        choice("loss", self.objective, OBJECTIVES)
        choice("attention", self.attention, ATTENTIONS)
        for block in self.trained:
            choice("trained block", block, BLOCKS)
        if not self.trained:
            raise ValueError("trained: name at least one of p, v, W")
        positive_moderate("scale", self.scale)
        if isinstance(self.inputs, SeededInputs):
            shape = self.inputs.shape
            at_least("chunk", self.inputs.chunk, 1)
        else:
            shape = np.shape(self.inputs)
            finite("inputs", self.inputs)
        if len(shape) < 3:
            raise ValueError(f"inputs must be N × n × d (got {len(shape)} axes)")
        samples, tokens, width = shape[-3:]
        if samples < 1 or tokens < 2:
            raise ValueError(f"needs N ≥ 1 samples of n ≥ 2 tokens (got {samples} and {tokens})")
        if self.labels is None or np.shape(self.labels)[-1:] != (samples,):
            raise ValueError(f"labels: one for each of the {samples} samples")
        finite("labels", self.labels)
        for name, owner in {"teacher": self.teacher, "start": self.start}.items():
            missing = [block for block in BLOCKS if block not in (owner or {})]
            if missing:
                raise ValueError(f"{name}: {', '.join(missing)} missing; give all of p, v and W")
            p, v, W = (np.shape(owner[block]) for block in BLOCKS)
            if not (p[-1:] == v[-1:] == (width,) and W[-2:] == (width, width)):
                raise ValueError(
                    f"{name}: p, v and W must have the inputs' width {width} (got {p}, {v}, {W})"
                )

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

    def of_samples(self, f: Callable[..., Any], params) -> Any:
        """f(scores, values) of all samples, from their scores X W p and values X v (… × n)."""
        full = self.complete(params)
        query, value = full["W"] @ full["p"], full["v"]

        def of_inputs(inputs):
            return f(inputs @ query, inputs @ value)

        # X times two vectors, not times a d × 2 matrix: XLA packs that one, 3 × slower at d = 20
        if isinstance(self.inputs, SeededInputs):
            return self.inputs.map(of_inputs)
        return of_inputs(jnp.asarray(self.inputs))

    def scores(self, params):
        """X W p, N × n."""
        return self.of_samples(lambda scores, values: scores, params)

    def attend(self, scores, values):
        """Σ a u over the tokens."""
        weights = (
            softmax(scores, axis=-1) if self.attention == "softmax" else scores / scores.shape[-1]
        )
        return jnp.sum(weights * values, axis=-1)

    def outputs(self, params):
        return self.of_samples(self.attend, params)

    def loss_of_outputs(self, outputs):
        labels = jnp.asarray(self.labels)
        if self.objective == "logistic":
            return jnp.mean(softplus(-labels * outputs))
        return 0.5 * jnp.mean((outputs - labels) ** 2)

    def loss(self, params):
        return self.loss_of_outputs(self.outputs(params))

    def observe(self, params) -> Observables:
        def seen(scores, values):
            spread = jnp.max(scores, axis=-1) - jnp.min(scores, axis=-1)
            return self.attend(scores, values), spread

        def loss_and_spread(params):
            outputs, spread = self.of_samples(seen, params)
            return self.loss_of_outputs(outputs), spread

        (loss, spread), gradient = jax.value_and_grad(loss_and_spread, has_aux=True)(params)
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
    chunk: Annotated[
        int | None,
        Doc(
            "samples drawn at once, so that the data is never in memory; by default that is done "
            "beyond 2^26 entries only"
        ),
    ] = None

    def __post_init__(self):
        at_least("d", self.d, 1)
        at_least("n", self.n, 2, "attention needs two tokens to choose from")
        at_least("samples", self.samples, 1, "there is nothing to learn without samples")
        seed("seed", self.seed)
        positive_moderate("sigma_p", self.sigma_p)
        positive_moderate("sigma_v", self.sigma_v)
        if self.near is not None:
            positive_moderate("near", self.near)
        if self.chunk is not None:
            at_least("chunk", self.chunk, 1)
        at_once = min(self.samples, self.chunk_size() or self.samples)
        shown = f"samples = {self.samples}, n = {self.n}, d = {self.d}"
        fits_memory(shown, 8 * (3 * at_once * self.n * self.d + 4 * self.samples + 8 * self.d**2))

    def chunk_size(self) -> int | None:
        """Samples drawn at once; None if all are held."""
        if self.chunk is None and self.samples * self.n * self.d <= IN_MEMORY:
            return None
        return self.chunk or max(1, CHUNK // (self.n * self.d))

    def draw_inputs(self, rng: np.random.Generator) -> np.ndarray | SeededInputs:
        chunk = self.chunk_size()
        if chunk is None:
            return rng.normal(size=(self.samples, self.n, self.d))
        key = rng.integers(2**32, size=2, dtype=np.uint32)
        return SeededInputs(key, self.samples, self.n, self.d, min(chunk, self.samples))

    def model(self) -> Prompt:
        rng = np.random.default_rng(self.seed)
        inputs = self.draw_inputs(rng)
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
