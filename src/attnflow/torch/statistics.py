"""What the attention map of a head looks like, without ever holding it whole.

Rows are made a few queries at a time, so that memory is O(T) for T tokens; everything is exact.
From the log-sum-exp of a fused kernel some of it needs no pass of its own: `statistics_from_lse`.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnflow import attention as registry
from attnflow._checks import at_least, choice, positive
from attnflow.torch.fused import fused_attention


@dataclasses.dataclass(frozen=True)
class Attention:
    """How scores become weights: softmax of scale · q·k (capped at ±`softcap` by a tanh if given),
    plus `bias`, over the keys that the query sees.

    causal: query i of the last T sees the keys up to its own place. window: and no more than so
    many. mask: booleans that broadcast to (batch, heads, queries, keys), True where a key is seen.
    bias: numbers of such a shape, added to the scores. sink: one logit a head; its share of the
    weight goes nowhere (softmax-1 with a learned sink). scale: 1/√d unless given. function: another
    attention of the registry than softmax; of "bayes_softmax" `sink` is the heads' own bias.
    """

    causal: bool = False
    window: int | None = None
    mask: Tensor | None = None
    bias: Tensor | None = None
    softcap: float | None = None
    sink: Tensor | None = None
    scale: float | None = None
    function: str = "softmax"

    def __post_init__(self):
        choice("function", self.function, registry.names())
        takes_one = self.function == "softmax" or registry.get(self.function).takes_bias
        if self.sink is not None and not takes_one:
            raise ValueError(f"sink: {self.function} has none")
        if self.window is not None:
            at_least("window", self.window, 1)
            if not self.causal:
                raise ValueError("window: only causal attention has one")
        if self.softcap is not None:
            positive("softcap", self.softcap)
        if self.scale is not None:
            positive("scale", self.scale)


class Statistics(NamedTuple):
    """Of every row, (batch, head, query). Rows that see no key are NaN.

    lse: log Σ e^score over the keys it sees and the sink (NaN for attentions without exponentials).
    entropy: nats, of the shares p/Σp (of |p| for attentions that give signed weights).
    sum_of_squares: Σ p². jacobian_trace: Σ p (1 − p), for softmax the trace of its Jacobian.
    greatest: the largest weight. log_ratio: log of the greatest weight over the mean of the others
    (infinite if there is none). support: (Σ p)²/Σ p², keys in effective use. row_sum: Σ p, less
    than one if there is a sink. visible: how many keys it sees. relative_entropy: entropy /
    log(visible), 0 where one key is seen. sparsity: the greatest weight as a share of the row's
    whole. key_mass: (…, asked key), weights as they are.
    """

    lse: Tensor
    entropy: Tensor
    sum_of_squares: Tensor
    jacobian_trace: Tensor
    greatest: Tensor
    log_ratio: Tensor
    support: Tensor
    row_sum: Tensor
    visible: Tensor
    relative_entropy: Tensor
    sparsity: Tensor
    key_mass: Tensor


class Rows(NamedTuple):
    """Some rows of the map, (batch, head, row, key): the scores (−∞ where a key is hidden), the
    weights (NaN in rows that see no key), how many keys each row sees, and its log-sum-exp."""

    scores: Tensor
    weights: Tensor
    visible: Tensor
    lse: Tensor


def attention_statistics(
    queries: Tensor,
    keys: Tensor,
    attention: Attention = Attention(),
    *,
    key_mass: Sequence[int] = (0,),
    rows: Tensor | None = None,
    block: int = 128,
) -> Statistics:
    """Of queries (batch, heads, T, d) and keys (batch, key heads, S, d); with fewer key heads than
    heads each serves a group (grouped queries). rows: the numbers of the queries to look at, all
    unless given. Cost: one product of queries and keys; memory O(block · S).

    >>> q = torch.zeros(1, 1, 4, 2)
    >>> found = attention_statistics(q, q, Attention(causal=True))
    >>> [round(x, 3) for x in found.support[0, 0].tolist()]
    [1.0, 2.0, 3.0, 4.0]
    """
    at_least("block", block, 1)
    length, size = queries.shape[2], keys.shape[2]
    wanted = [int(key) if key >= 0 else size + int(key) for key in key_mass]
    for key in wanted:
        if not 0 <= key < size:
            raise ValueError(f"key_mass: there are {size} keys, numbered from 0 (asked for {key})")
    rows = torch.arange(length, device=queries.device) if rows is None else rows
    found: Statistics | None = None
    for start in range(0, len(rows), block):
        part = row_statistics(
            attention_rows(queries, keys, attention, rows[start : start + block]), wanted
        )
        if found is None:  # made whole at once: small pieces between large ones would pin memory
            sizes = [(*x.shape[:2], len(rows), *x.shape[3:]) for x in part]
            empty = (x.new_empty(size) for x, size in zip(part, sizes, strict=True))
            found = Statistics(*empty)
        for whole, piece in zip(found, part, strict=True):
            whole[:, :, start : start + piece.shape[2]] = piece
    if found is None:
        raise ValueError("rows is empty: there is nothing to look at")
    return found


def attention_rows(queries: Tensor, keys: Tensor, attention: Attention, rows: Tensor) -> Rows:
    """The asked rows of the map themselves; memory O(rows · S)."""
    _check(queries, keys, attention)
    batch, heads, length, width = queries.shape
    size, exact = keys.shape[2], _exact(keys)
    scale = 1 / math.sqrt(width) if attention.scale is None else attention.scale
    with torch.no_grad():
        grouped = queries[:, :, rows].to(exact).reshape(batch, keys.shape[1], -1, len(rows), width)
        scores = (grouped * scale) @ keys.to(exact).unsqueeze(2).transpose(-1, -2)
        scores = scores.reshape(batch, heads, len(rows), size)
        if attention.softcap is not None:
            scores = attention.softcap * torch.tanh(scores / attention.softcap)
        if attention.bias is not None:
            scores = scores + _rows_of(attention.bias, rows, length).to(exact)
        seen = visible_keys(attention, rows, length, size, scores.device) & torch.isfinite(scores)
        scores = scores.masked_fill(~seen, -math.inf)
        visible = seen.sum(-1)
        weights, lse = _weigh(scores, seen, attention)
        empty = visible == 0
        return Rows(
            scores,
            weights.masked_fill(empty[..., None], math.nan),
            visible,
            lse.masked_fill(empty, math.nan),
        )


def _weigh(scores: Tensor, seen: Tensor, attention: Attention) -> tuple[Tensor, Tensor]:
    sink = None if attention.sink is None else attention.sink.to(scores)[:, None]
    if attention.function in ("softmax", "softmax_1"):
        if sink is None and attention.function == "softmax_1":
            sink = torch.zeros_like(scores[..., 0])
        lse = torch.logsumexp(scores, dim=-1)
        lse = lse if sink is None else torch.logaddexp(lse, sink)
        return torch.exp(scores - lse[..., None]), lse
    named = registry.get(attention.function)
    return named(scores, seen, bias=sink, heads=-3), torch.full_like(scores[..., 0], math.nan)


def row_statistics(rows: Rows, wanted: Sequence[int] = (0,)) -> Statistics:
    """What the rows look like; `wanted` are the keys of `key_mass`."""
    weights, visible = rows.weights, rows.visible
    size = weights.abs()
    total = size.sum(-1)
    share = size / total.clamp_min(torch.finfo(size.dtype).tiny)[..., None]
    entropy = torch.special.entr(share).sum(-1)
    squares = weights.square().sum(-1)
    row_sum = weights.sum(-1)
    greatest = size.amax(-1)
    others = (total - greatest).clamp_min(0) / (visible - 1).clamp_min(1)
    most = visible.to(weights.dtype).log()
    relative = torch.where(visible > 1, entropy / most.clamp_min(1e-30), torch.zeros_like(entropy))
    return Statistics(
        lse=rows.lse,
        entropy=entropy,
        sum_of_squares=squares,
        jacobian_trace=row_sum - squares,
        greatest=greatest,
        log_ratio=greatest.log() - others.log(),
        support=total.square() / squares,
        row_sum=row_sum,
        visible=visible,
        relative_entropy=relative.masked_fill(visible == 0, math.nan),
        sparsity=greatest / total,
        key_mass=weights[..., list(wanted)],
    )


def visible_keys(
    attention: Attention, rows: Tensor, length: int, size: int, device: torch.device
) -> Tensor:
    """Booleans that broadcast to (batch, heads, rows, keys)."""
    place = rows[:, None] + (size - length)  # queries are the last ones: keys before are a cache
    key = torch.arange(size, device=device)
    seen = torch.ones(len(rows), size, dtype=torch.bool, device=device)
    if attention.causal:
        seen = key <= place
    if attention.window is not None:
        seen = seen & (key > place - attention.window)
    if attention.mask is not None:
        seen = seen & _rows_of(attention.mask, rows, length)
    return seen


def _rows_of(array: Tensor, rows: Tensor, length: int) -> Tensor:
    """The asked queries of something that broadcasts to (batch, heads, queries, keys)."""
    return array[..., rows, :] if array.ndim >= 2 and array.shape[-2] == length > 1 else array


def fused_statistics(
    queries: Tensor,
    keys: Tensor,
    *,
    causal: bool = False,
    mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-sum-exp, entropy and Σ p² of every row from two passes of the fused kernel, the second at
    twice the scale: O(T · d) memory, and faster than `attention_statistics` for those that want no
    more. mask: booleans; what a bias adds to the scores is not in q·k, so there is none here. Rows
    that see no key: −∞, 0 and NaN."""
    if mask is not None and mask.dtype != torch.bool:
        raise ValueError("mask must be booleans: with a bias use attention_statistics")
    scale = 1 / math.sqrt(queries.shape[-1]) if scale is None else scale
    with torch.no_grad():
        options: Any = {"causal": causal, "mask": mask}
        mixed, lse = fused_attention(queries, keys, keys, scale=scale, **options)
        _, doubled = fused_attention(queries, keys, keys, scale=2 * scale, **options)
    entropy, squares = statistics_from_lse(queries, lse, mixed, doubled, scale)
    return lse, torch.where(torch.isfinite(lse), entropy, torch.zeros_like(entropy)), squares


def statistics_from_lse(
    queries: Tensor,
    lse: Tensor,
    mixed_keys: Tensor,
    doubled_lse: Tensor,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Entropy and Σ p² of plain softmax attention from what fused kernels return: the log-sum-exp,
    the attention with the keys as values (batch, heads, T, d), and the log-sum-exp at twice the
    scale: H = lse − scale · q·Attn(K), Σ p² = e^(lse(2 scale) − 2 lse)."""
    scale = 1 / math.sqrt(queries.shape[-1]) if scale is None else scale
    entropy = lse - scale * (queries * mixed_keys).sum(-1)
    return entropy, torch.exp(doubled_lse - 2 * lse)


def _exact(keys: Tensor) -> torch.dtype:
    """Half precision would lose what is measured."""
    return torch.float64 if keys.dtype == torch.float64 else torch.float32


def _check(queries: Tensor, keys: Tensor, attention: Attention) -> None:
    for name, array in (("queries", queries), ("keys", keys)):
        if array.ndim != 4 or 0 in array.shape:
            raise ValueError(
                f"{name} must be (batch, heads, tokens, width) (got shape {tuple(array.shape)})"
            )
    if queries.shape[0] != keys.shape[0] or queries.shape[3] != keys.shape[3]:
        raise ValueError(
            f"queries {tuple(queries.shape)} and keys {tuple(keys.shape)} differ in batch or width"
        )
    if queries.shape[1] % keys.shape[1]:
        raise ValueError(
            f"{keys.shape[1]} key heads cannot serve {queries.shape[1]} heads in equal groups"
        )
    if attention.sink is not None and attention.sink.shape != (queries.shape[1],):
        raise ValueError(f"sink must hold one logit for each of {queries.shape[1]} heads")
