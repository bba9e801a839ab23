"""A causal head on symbols, by counting."""

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.nn import log_softmax

from attnflow._checks import at_least, fits_memory
from attnflow.models.head.head import (
    BIASES,
    WEIGHTS,
    CrossEntropyHead,
    Head,
    check_head,
    linear,
)
from attnflow.models.interface import Observables

PLACES = 64  # groups are padded to a multiple, so that other chains seldom compile anew


class Groups(NamedTuple):
    """Positions sorted by their symbol q, padded to the largest group: how often each symbol has
    been seen so far (q, symbol, place), the target one-hot and 0 in the padding (q, class, place),
    and which places are real (q, place)."""

    counts: np.ndarray
    hits: np.ndarray
    real: np.ndarray


def grouped(symbols: np.ndarray, targets: np.ndarray, size: int, classes: int) -> Groups:
    flat = symbols.ravel()
    commonest = int(np.bincount(flat, minlength=size).max())
    width = -(-commonest // PLACES) * PLACES
    shown = f"a chain of {flat.size} positions, {size} symbols and {classes} classes"
    fits_memory(shown, 8 * (flat.size * (2 * size + classes) + 4 * size * width * (size + classes)))
    seen = np.cumsum(np.eye(size)[symbols], axis=1).reshape(-1, size)
    hit = np.eye(classes)[targets.ravel()]
    places = [np.flatnonzero(flat == symbol) for symbol in range(size)]
    counts, hits = np.ones((size, size, width)), np.zeros((size, classes, width))
    real = np.zeros((size, width))
    for symbol, where in enumerate(places):
        counts[symbol, :, : len(where)] = seen[where].T
        hits[symbol, :, : len(where)] = hit[where].T
        real[symbol, : len(where)] = 1
    return Groups(counts, hits, real)


class SymbolHead(CrossEntropyHead):
    """The causal head on sequences of symbols without positions, exactly, in O(T S) for S symbols.

    Scores depend on the two symbols only, so a row of the attention needs no more than the counts
    of each symbol so far: key j of symbol s has weight e^{s_qs}/Σ_s n_s e^{s_qs}. Queries of the
    same symbol are computed together: S² exponentials for the attention of all positions. (Memory
    is S² times the number of the commonest symbol.) Tokens are rows of `embedding` (symbol, width),
    the identity for one-hot tokens.

    What stands around a head in a transformer: `heads` of equal share of W_Q, W_K and W_V,
    `normalized` (LayerNorm without gain on every value vector), `residual` (the token is added to
    what the heads return, before W_O).

    Observables besides those of every head: `scores` of symbol pairs and `values` of symbols.
    """

    symbols: Any
    targets: Any
    start: dict[str, Any]
    classes: int
    embedding: Any
    groups: Any = None  # made of symbols and targets unless given
    floor: float = 0.0
    scale: float = 0.1
    heads: int = 1
    normalized: bool = False
    residual: bool = False

    shared: ClassVar = ("symbols", "targets", "embedding", "groups")
    dims: ClassVar = {"scores": ("head", "symbol", "key_symbol"), "values": ("symbol", "width")}

    def __post_init__(self):
        if self.groups is None:
            symbols, targets, size = map(np.asarray, (self.symbols, self.targets, self.embedding))
            size = len(size)
            if symbols.dtype.kind not in "iu" or symbols.min() < 0 or symbols.max() >= size:
                raise ValueError(f"symbols must be whole numbers from 0 to {size - 1}")
            if symbols.shape != targets.shape:
                raise ValueError("symbols and targets must have the same shape")
            check_head(self, (*WEIGHTS, *BIASES))
            groups = grouped(symbols, targets, size, self.classes)
            object.__setattr__(self, "groups", groups)
        super().__post_init__()

    def __check_init__(self):
        check_head(self, (*WEIGHTS, *BIASES))
        at_least("heads", self.heads, 1)
        for name in ("W_Q", "W_V"):
            if np.shape(self.start[name])[-1] % self.heads:
                raise ValueError(f"heads: {self.heads} do not divide the columns of {name}")
        if self.residual and np.shape(self.start["W_V"])[-1] != np.shape(self.embedding)[-1]:
            raise ValueError("residual: values must be as wide as the embedding to be added to it")

    def table(self, params):
        """Scores of symbol pairs (head, symbol, key symbol) and values of symbols (symbol, d_v)."""
        tokens = jnp.asarray(self.embedding)
        queries, keys, values = (linear(params, tokens, name) for name in "QKV")
        queries, keys = (self._by_head(x) for x in (queries, keys))
        if self.normalized:
            values = values - jnp.mean(values, axis=-1, keepdims=True)
            values = values / jnp.sqrt(jnp.mean(values**2, axis=-1, keepdims=True) + 1e-5)
        return queries @ keys.swapaxes(1, 2) / np.sqrt(keys.shape[-1]), values

    def _by_head(self, x):
        return x.reshape(len(x), self.heads, -1).swapaxes(0, 1)

    def totals(self, params):
        scores, values = self.table(params)
        groups = jax.tree.map(jnp.asarray, self.groups)
        grown = jnp.exp(scores - jax.lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True)))
        outputs = params["W_O"].reshape(self.heads, -1, self.classes)
        voted = jnp.einsum("hsv,hvc->hsc", self._by_head(values), outputs)
        # Numerators of all classes and the common denominator in one product with the counts.
        votes = jnp.concatenate([voted, jnp.ones_like(voted[..., :1])], axis=-1)
        sums = jnp.einsum("hqsc,qst->hqct", grown[..., None] * votes[:, None], groups.counts)
        logits = jnp.sum(sums[:, :, :-1] * (1 / sums[:, :, -1:]), axis=0)
        if self.residual:
            logits = logits + (jnp.asarray(self.embedding) @ params["W_O"])[..., None]
        if "b_O" in params:
            logits = logits + params["b_O"][:, None]
        logs = log_softmax(logits, axis=1)
        error = jnp.einsum("vc,qct->qvt", params["W_O"], jnp.exp(logs) - groups.hits)
        lengths = jnp.sqrt(jnp.sum(error**2, axis=1) + 1e-300)
        return {
            "loss": -jnp.sum(logs * groups.hits),
            "entropy": self._entropy(scores, groups) / self.heads,
            "error_norm": jnp.sum(groups.real * lengths),
            "value_norm": jnp.linalg.norm(values, axis=-1) @ groups.real.sum(1) / groups.real.sum(),
        }

    def _entropy(self, scores, groups: Groups):
        """Summed over positions and heads: ln Z − Σ_s n_s e^{s}/Z s."""
        top = jnp.max(scores, axis=-1, keepdims=True)
        grown = jnp.exp(scores - top)
        pair = jnp.stack([grown, grown * (scores - top)], axis=-1)
        total, mean = jnp.einsum("hqsk,qst->khqt", pair, groups.counts)
        return jnp.sum(groups.real * (jnp.log(total) - mean / total))

    def observe(self, params) -> Observables:
        scores, values = self.table(params)
        return super().observe(params) | {"scores": scores, "values": values}

    def dense(self) -> Head:
        """The same head with its T × T attention."""
        if self.heads > 1 or self.normalized or self.residual:
            raise ValueError("dense: only a single head without LayerNorm and residual has it")
        inputs = np.asarray(self.embedding)[np.asarray(self.symbols)]
        return Head(
            inputs=inputs,
            targets=self.targets,
            start=self.start,
            classes=self.classes,
            floor=self.floor,
            scale=self.scale,
        )
