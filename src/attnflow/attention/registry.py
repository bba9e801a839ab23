"""Named attentions: a similarity, then a normalization.

>>> import numpy as np
>>> get("softmax")(np.zeros(4))
array([0.25, 0.25, 0.25, 0.25])
"""

import dataclasses
from typing import Any

from array_api_compat import array_namespace

from attnflow._checks import choice
from attnflow.attention import normalizations as norm
from attnflow.attention import similarities as sim

Array = Any


@dataclasses.dataclass(frozen=True)
class Attention:
    """`scores -> weights` along the last axis.

    `mask` is True where a key is visible; hidden keys get weight exactly 0 and take no part in
    the normalization. A row with no visible key gives zeros under `none` and `clamped_sum`, NaN
    under `row_sum`. Cost: O(size of scores).

    `needs_nonzero_sum`: the weights are 0/0 where the similarities of a row add up to zero.
    """

    name: str
    similarity: sim.Similarity
    normalization: norm.Normalization

    @property
    def sums_to_one(self) -> bool:
        return self.normalization is norm.row_sum

    @property
    def gives_distributions(self) -> bool:
        """Whether every row is nonnegative and sums to one."""
        return self.sums_to_one and self.similarity is not sim.identity

    @property
    def needs_nonzero_sum(self) -> bool:
        vanishing = (sim.identity, sim.absolute, sim.square, sim.relu)
        return self.sums_to_one and self.similarity in vanishing

    def __call__(self, scores: Array, mask: Array | None = None) -> Array:
        xp = array_namespace(scores)
        if self.similarity is sim.exp and self.sums_to_one:  # shift-invariant, so shift
            if mask is not None:
                scores = xp.where(mask, scores, xp.full_like(scores, -float("inf")))
            scores = scores - xp.max(scores, axis=-1, keepdims=True)
        weights = self.similarity(scores)
        if mask is not None:
            weights = xp.where(mask, weights, xp.zeros_like(weights))
        return self.normalization(weights)


_REGISTRY: dict[str, Attention] = {}


def register(attention: Attention) -> Attention:
    """Add a named attention; a name can be taken once."""
    if attention.name in _REGISTRY:
        raise ValueError(f"attention {attention.name!r} is registered already: choose another name")
    _REGISTRY[attention.name] = attention
    return attention


def get(name: str) -> Attention:
    choice("attention", name, _REGISTRY)
    return _REGISTRY[name]


def names() -> list[str]:
    return sorted(_REGISTRY)


for _name, _similarity, _normalization in [
    ("softmax", sim.exp, norm.row_sum),
    ("sigmoid", sim.sigmoid, norm.none),
    ("sigmoid_normalized", sim.sigmoid, norm.row_sum),
    ("elu", sim.elu_plus_one, norm.none),
    ("elu_normalized", sim.elu_plus_one, norm.row_sum),
    ("linear", sim.identity, norm.none),
    ("linear_normalized", sim.identity, norm.clamped_sum),
    ("relu", sim.relu, norm.none),
    ("relu_normalized", sim.relu, norm.row_sum),
    ("identity_normalized", sim.identity, norm.row_sum),
    ("abs_normalized", sim.absolute, norm.row_sum),
    ("square_normalized", sim.square, norm.row_sum),
    ("softplus_normalized", sim.softplus, norm.row_sum),
]:
    register(Attention(_name, _similarity, _normalization))
