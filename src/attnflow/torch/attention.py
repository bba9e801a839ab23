"""The registry's attentions as PyTorch functions."""

import math

import torch
from torch import Tensor

from attnflow import attention as registry
from attnflow._checks import at_least, positive
from attnflow.attention import similarities
from attnflow.torch.fused import (
    BLOCK,
    by_query_blocks,
    fused_attention,
    prepared,
    scores_of,
)


def attend(
    law: str | registry.Attention,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    mask: Tensor | None = None,
    scale: float | None = None,
    bias: float | Tensor | None = None,
    softcap: float | None = None,
    block: int = BLOCK,
) -> Tensor:
    """Values mixed by a named attention: (batch, heads, T, width) of queries (batch, heads, T, d),
    keys and values (batch, key heads, S, d).

    causal, mask, scale: as in `fused_attention`. A row that sees no key gives 0; where the sum of a
    row may vanish (`needs_nonzero_sum`) the result is the registry's, not a number.
    bias: for attentions with a sink (its logit) or joint heads (added to the head's scores), one
    number or one a head; 0 unless given. softcap: scores become softcap · tanh(score / softcap).

    softmax, softmax_1 and bayes_softmax without a softcap cost one fused pass: the others are
    softmax times σ(lse − b), or times heads · softmax of lse + b over heads. Everything else holds
    the weights of `block` queries at a time, O(block · S), and makes them again in the backward
    pass. Unnormalized attentions are not divided by the number of keys.

    >>> zeros, ones = torch.zeros(1, 1, 3, 2), torch.ones(1, 1, 3, 2)
    >>> out = attend("softmax_1", zeros, zeros, ones, causal=True)[0, 0, :, 0]
    >>> [round(x, 3) for x in out.tolist()]
    [0.5, 0.667, 0.75]
    """
    law = registry.get(law) if isinstance(law, str) else law
    q, k, v = prepared(q, k, v, mask)
    b = _bias(law, bias, q)
    at_least("block", block, 1)
    if softcap is not None:
        positive("softcap", softcap)
    elif law.similarity is similarities.exp and (law.sums_to_one or law.takes_bias):
        out, lse = fused_attention(q, k, v, causal=causal, mask=mask, scale=scale, block=block)
        return out if law.sums_to_one else (_gate(law, lse, b)[..., None] * out).to(out.dtype)
    size = 1 / math.sqrt(q.shape[-1]) if scale is None else scale

    def rows(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, added: Tensor | None):
        return (_weights(law, scores_of(q, k, added, size, softcap), seen, b) @ v,)

    (out,) = by_query_blocks(rows, q, k, v, causal=causal, mask=mask, block=block)
    return out.to(q.dtype)


def _gate(law: registry.Attention, lse: Tensor, bias: Tensor | None) -> Tensor:
    """By what the rows of softmax are multiplied, (batch, heads, T)."""
    b = 0.0 if bias is None else bias[:, None].to(lse.dtype)
    if law.has_sink:
        return torch.sigmoid(lse - b)
    nothing = torch.isneginf(lse).all(dim=1, keepdim=True)
    return lse.shape[1] * (lse + b).masked_fill(nothing, 0.0).softmax(dim=1)


def _weights(
    law: registry.Attention, scores: Tensor, seen: Tensor | None, bias: Tensor | None
) -> Tensor:
    b = None if bias is None else bias[:, None].to(scores.dtype)
    if seen is None:
        return law(scores, bias=b, heads=-3)
    empty = ~seen.any(-1, keepdim=True)
    if law.joins_heads:
        empty = empty.all(-3, keepdim=True)
    scores = scores.masked_fill(empty, 1.0)  # any row that has weights, to be dropped
    return law(scores, seen | empty, bias=b, heads=-3).masked_fill(empty, 0.0)


def _bias(law: registry.Attention, bias: float | Tensor | None, q: Tensor) -> Tensor | None:
    if bias is None:
        return None
    if not law.takes_bias:
        raise ValueError(f"{law.name} has no bias: only sinks and joint heads take one")
    bias = torch.as_tensor(bias, device=q.device)
    if bias.shape not in ((), (q.shape[1],)):
        raise ValueError(
            f"bias must be one number or one for each of {q.shape[1]} heads "
            f"(got shape {tuple(bias.shape)})"
        )
    return bias.expand(q.shape[1])
