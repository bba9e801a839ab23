"""One attention head under cross-entropy: routing of scores, responsibilities of values.

Row vectors throughout: q = x W_Q + b_Q, k = x W_K + b_K, v = x W_V + b_V, z_i = Σ_j α_ij v_j, and
logits z W_O + b_O. The upstream error of position i is u_i = (p_i − e_{y_i}) W_Oᵀ.
"""

import abc
import functools
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.nn import log_softmax, softmax

from attnflow._checks import at_least, finite, is_traced
from attnflow.models.interface import Model, Observables

WEIGHTS = ("W_Q", "W_K", "W_V", "W_O")
BIASES = ("b_Q", "b_K", "b_V", "b_O")
FREE = ("scores", "values", "W_O", "b_O")
QUERY_BLOCK = 128  # queries whose attention rows are in memory at a time
CAUSAL_PARTS = 4  # each compiled anew, with as many keys as its queries see


class Routing(NamedTuple):
    """The whole decomposition of one step, (sequence, query, key) where it is a map.

    attention α; error u (sequence, query, d_v); compatibility b_ij = u_i·v_j; advantage
    −(b_ij − Σ_j α_ij b_ij), positive where more attention lowers the loss; usage Σ_i α_ij of every
    key; values v; chances p of the classes.
    """

    attention: jax.Array
    error: jax.Array
    compatibility: jax.Array
    advantage: jax.Array
    usage: jax.Array
    values: jax.Array
    chances: jax.Array


class CrossEntropyHead(Model):
    """What the heads share: parameters by name, mean cross-entropy, observables.

    Observables: `loss`, `excess` = loss − floor, `entropy` of the attention rows (mean, nats),
    `value_norm` (mean |v|), `error_norm` (mean |u|), and `gradient_W_Q` … of every block.
    """

    if TYPE_CHECKING:  # fields of every head, each in its own order
        targets: Any
        start: dict[str, Any]
        classes: int
        floor: float
        scale: float

    def init(self, key=None):
        params = {name: jnp.asarray(value) for name, value in self.start.items()}
        if key is None:
            return params
        keys = jax.random.split(key, len(params))
        return {
            name: value + self.scale * jax.random.normal(k, value.shape, value.dtype)
            for k, (name, value) in zip(keys, params.items(), strict=True)
        }

    @abc.abstractmethod
    def totals(self, params) -> dict[str, jax.Array]:
        """Sums over positions: `loss`, `entropy`, `error_norm`; and `value_norm`, a mean."""

    def loss(self, params):
        return self.totals(params)["loss"] / self.targets.size

    def observe(self, params) -> Observables:
        def total(params):
            sums = self.totals(params)
            return sums["loss"] / self.targets.size, sums

        (loss, sums), gradient = jax.value_and_grad(total, has_aux=True)(params)
        seen = {
            "loss": loss,
            "excess": loss - self.floor,
            "entropy": sums["entropy"] / self.targets.size,
            "error_norm": sums["error_norm"] / self.targets.size,
            "value_norm": sums["value_norm"],
        }
        return seen | {f"gradient_{name}": jnp.linalg.norm(x) for name, x in gradient.items()}


def check_head(head: CrossEntropyHead, blocks: tuple[str, ...]) -> None:
    """Raises on parameters or targets that do not fit."""
    at_least("classes", head.classes, 2, "one class leaves nothing to predict")
    needed = {name for name in blocks if not name.startswith("b_")}
    if not needed <= set(head.start) <= set(blocks):
        raise ValueError(
            f"start: needs {', '.join(sorted(needed))} and may have biases (got "
            f"{', '.join(sorted(head.start))})"
        )
    for name, value in head.start.items():
        finite(name, value)
    if np.shape(head.start["W_O"])[-1] != head.classes:
        raise ValueError(f"W_O must end in the {head.classes} classes")
    if is_traced(head.targets):
        return
    targets = np.asarray(head.targets)
    if targets.ndim != 2 or len(targets) == 0:
        raise ValueError(f"targets must be (sequence, position) (got shape {targets.shape})")
    if targets.shape[1] < 2:
        raise ValueError(f"a head needs two positions to choose from (got T = {targets.shape[1]})")
    if targets.dtype.kind not in "iu" or targets.min() < 0 or targets.max() >= head.classes:
        raise ValueError(f"targets must be whole numbers from 0 to {head.classes - 1}")


def linear(params, x, name: str):
    """x W + b; no bias if there is none."""
    out = x @ params[f"W_{name}"]
    return out + params[f"b_{name}"] if f"b_{name}" in params else out


def losses_and_errors(params, mixed, targets):
    """Cross-entropy of every position, its upstream error u, and the chances."""
    logs = log_softmax(linear(params, mixed, "O"), axis=-1)
    hit = jax.nn.one_hot(targets, logs.shape[-1], dtype=logs.dtype)
    return -jnp.sum(hit * logs, axis=-1), (jnp.exp(logs) - hit) @ params["W_O"].T, jnp.exp(logs)


class Head(CrossEntropyHead):
    """A head on given inputs (sequence, position, width), or with free scores and values.

    `start` holds W_Q, W_K, W_V, W_O and any of the biases b_Q, b_K, b_V, b_O; with inputs None
    instead `scores` (position, position), `values` (position, d_v) and W_O. With a key, `scale` ×
    standard normal numbers are added to all of them. `floor` is the least possible loss, if known.

    Rows of the attention are made 128 queries at a time, in the gradient too: memory O(T).
    `routing(params)` is the whole decomposition, for T × T maps that fit; with `maps` its
    `attention`, `compatibility`, `advantage` and `values` are among the observables.
    """

    inputs: Any
    targets: Any
    start: dict[str, Any]
    classes: int
    causal: bool = True
    floor: float = 0.0
    scale: float = 0.1
    maps: bool = False

    shared: ClassVar = ("inputs", "targets")
    dims: ClassVar = {
        "attention": ("sequence", "query", "key"),
        "compatibility": ("sequence", "query", "key"),
        "advantage": ("sequence", "query", "key"),
        "values": ("sequence", "key", "width"),
    }

    def __check_init__(self):
        check_head(self, FREE if self.inputs is None else (*WEIGHTS, *BIASES))
        if self.inputs is not None:
            finite("inputs", self.inputs)
            if np.shape(self.inputs)[:2] != np.shape(self.targets):
                raise ValueError(
                    f"inputs must be (sequence, position, width) for targets of shape "
                    f"{np.shape(self.targets)} (got {np.shape(self.inputs)})"
                )

    @property
    def length(self) -> int:
        return self.targets.shape[1]

    def values(self, params):
        if self.inputs is None:
            return params["values"][None]
        return linear(params, jnp.asarray(self.inputs), "V")

    def _queries_and_keys(self, params):
        inputs = jnp.asarray(self.inputs)
        queries, keys = (linear(params, inputs, name) for name in "QK")
        return queries / np.sqrt(keys.shape[-1]), keys

    def _rows(self, scores, which):
        """Attention of the queries numbered `which` on the first keys."""
        if self.causal:
            visible = jnp.arange(scores.shape[-1]) <= which[:, None]
            scores = jnp.where(visible, scores, -jnp.inf)
        return softmax(scores, axis=-1)

    def totals(self, params):
        values, targets = self.values(params), jnp.asarray(self.targets)
        pair = None if self.inputs is None else self._queries_and_keys(params)

        def of_queries(keys: int, queries):
            which, real = queries
            if pair is None:
                scores = jnp.asarray(params["scores"])[which, :keys][None]
            else:
                scores = pair[0][:, which] @ pair[1][:, :keys].swapaxes(1, 2)
            rows = self._rows(scores, which)
            loss, error, _ = losses_and_errors(params, rows @ values[:, :keys], targets[:, which])
            logs = jnp.log(jnp.where(rows > 0, rows, 1.0))
            entropy = jnp.broadcast_to(-jnp.sum(rows * logs, axis=-1), loss.shape)
            lengths = jnp.sqrt(jnp.sum(error**2, axis=-1) + 1e-300)
            parts = {"loss": loss, "entropy": entropy, "error_norm": lengths}
            return {name: jnp.sum(real * x) for name, x in parts.items()}

        sums = {"value_norm": jnp.mean(jnp.linalg.norm(values, axis=-1))}
        for number, keys in self._blocks():
            each = jax.checkpoint(functools.partial(of_queries, keys))
            real = jnp.asarray((number < self.length).astype(float))
            found = jax.lax.map(each, (np.minimum(number, self.length - 1), real))
            sums |= {name: sums.get(name, 0.0) + jnp.sum(x) for name, x in found.items()}
        return sums

    def _blocks(self) -> list[tuple[np.ndarray, int]]:
        """Numbers of the queries (block, place), in parts with the number of keys that they need:
        causal queries of the first quarter look at a quarter of the keys."""
        size = min(QUERY_BLOCK, self.length)
        number = np.arange(-(-self.length // size) * size).reshape(-1, size)
        parts = min(len(number), CAUSAL_PARTS) if self.causal else 1
        blocks = np.array_split(number, parts)
        return [
            (x, min(int(x[-1, -1]) + 1, self.length) if self.causal else self.length)
            for x in blocks
        ]

    def observe(self, params) -> Observables:
        seen = super().observe(params)
        if not self.maps:
            return seen
        routing = self.routing(params)._asdict()
        return seen | {name: routing[name] for name in self.dims}

    def routing(self, params) -> Routing:
        """Memory O(sequences × T²)."""
        values, targets = self.values(params), jnp.asarray(self.targets)
        if self.inputs is None:
            scores = jnp.broadcast_to(params["scores"], (len(targets), self.length, self.length))
        else:
            queries, keys = self._queries_and_keys(params)
            scores = queries @ keys.swapaxes(1, 2)
        attention = self._rows(scores, jnp.arange(self.length))
        _, error, chances = losses_and_errors(params, attention @ values, targets)
        values = jnp.broadcast_to(values, (len(targets), *values.shape[1:]))
        compatibility = error @ values.swapaxes(1, 2)
        mean = jnp.sum(attention * compatibility, axis=-1, keepdims=True)
        usage = jnp.sum(attention, axis=1)
        return Routing(
            attention, error, compatibility, mean - compatibility, usage, values, chances
        )
