"""Named attentions: a similarity, then a normalization.

>>> import numpy as np
>>> get("softmax")(np.zeros(4))
array([0.25, 0.25, 0.25, 0.25])
"""

import dataclasses
from typing import Any

from attnflow._arrays import array_namespace
from attnflow._checks import choice
from attnflow.attention import normalizations as norm
from attnflow.attention import similarities as sim

Array = Any


@dataclasses.dataclass(frozen=True)
class Attention:
    """`scores -> weights` along the axis of the keys, the last one unless `axis` says otherwise.

    `mask` is True where a key is visible; hidden keys get weight exactly 0 and take no part in
    the normalization. A row with no visible key gives zeros under `none` and `clamped_sum`, NaN
    under `row_sum`. Cost: O(size of scores).

    `bias`, one number b a row (the scores' shape without the axis of the keys), is the logarithm
    of the sink's weight under `sink_sum`, and is added to all scores of its head under
    `joint_sum`; the other normalizations have no use for one. Under `joint_sum` the heads lie
    along `heads`. `shift=False` leaves exponentials as they are, for scores known to be moderate.

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

    @property
    def has_sink(self) -> bool:
        return self.normalization is norm.sink_sum

    @property
    def joins_heads(self) -> bool:
        return self.normalization is norm.joint_sum

    @property
    def takes_bias(self) -> bool:
        return self.has_sink or self.joins_heads

    def __call__(
        self,
        scores: Array,
        mask: Array | None = None,
        bias: Array | None = None,
        axis: int = -1,
        heads: int = -2,
        shift: bool = True,
    ) -> Array:
        xp = array_namespace(scores)
        sink = None  # its logarithm, until the end
        if bias is not None:
            if not self.takes_bias:
                raise ValueError(f"{self.name} has no bias: only sinks and joint heads take one")
            bias = xp.expand_dims(bias, axis=axis)
        if self.joins_heads and bias is not None:
            scores = scores + bias
        if self.has_sink:
            sink = xp.zeros_like(xp.max(scores, axis=axis, keepdims=True))
            sink = sink if bias is None else sink + bias
        if mask is not None:
            scores = xp.where(mask, scores, xp.full_like(scores, -float("inf")))
        if shift and self.similarity is sim.exp and self.normalization is not norm.none:
            top = xp.max(scores, axis=self._normalized_over(scores, axis, heads), keepdims=True)
            if sink is not None:
                top = xp.where(top > sink, top, sink)
                sink = sink - top
            # Derivatives pass through the shift on purpose: they cancel on paper, and in floating
            # point they give the slope of a weight near one from the others, without 1 − 1.
            scores = scores - top
        elif mask is not None:
            scores = xp.where(mask, scores, xp.zeros_like(scores))
        weights = self.similarity(scores)
        if mask is not None:
            weights = xp.where(mask, weights, xp.zeros_like(weights))
        return self.normalization(weights, axis, heads, None if sink is None else xp.exp(sink))

    def _normalized_over(self, scores: Array, axis: int, heads: int) -> int | tuple[int, int]:
        return (heads, axis) if self.joins_heads and scores.ndim > 1 else axis


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
    ("softmax_1", sim.exp, norm.sink_sum),
    ("bayes_softmax", sim.exp, norm.joint_sum),
]:
    register(Attention(_name, _similarity, _normalization))
