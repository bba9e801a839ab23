"""Reading `torch.nn.MultiheadAttention`, which keeps its queries and keys to itself."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnflow.torch.probe import Capture
from attnflow.torch.statistics import Attention


def read_multihead(
    module: nn.MultiheadAttention, arguments: tuple[Any, ...], named: Mapping[str, Any]
) -> Capture:
    """From the arguments of its `forward`: the projections are done again, O(T · width²)."""
    names = ("query", "key", "value", "key_padding_mask", "need_weights", "attn_mask")
    given = {**dict(zip(names, arguments, strict=False)), **named}
    with torch.no_grad():
        tokens = [_batch_first(module, given[name]) for name in names[:3]]
        biases = [None] * 3 if module.in_proj_bias is None else module.in_proj_bias.chunk(3)
        pairs = zip(tokens, _weights(module), biases, strict=True)
        q, k, v = (
            F.linear(x, w, b).unflatten(-1, (module.num_heads, module.head_dim)).transpose(1, 2)
            for x, w, b in pairs
        )
    bias, seen = _mask(module, given, q)
    return Capture(q, k, v, Attention(mask=seen, bias=bias))


def _weights(module: nn.MultiheadAttention) -> tuple[Tensor, ...]:
    if module.in_proj_weight is not None:
        return module.in_proj_weight.chunk(3)
    return module.q_proj_weight, module.k_proj_weight, module.v_proj_weight


def _batch_first(module: nn.MultiheadAttention, tokens: Tensor) -> Tensor:
    if tokens.ndim == 2:
        return tokens[None]
    return tokens if module.batch_first else tokens.transpose(0, 1)


def _mask(
    module: nn.MultiheadAttention, given: Mapping[str, Any], queries: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """Added numbers, and which keys are seen. Its booleans mean the opposite: True hides."""
    bias, seen = None, None
    mask = given.get("attn_mask")
    if mask is not None:
        if mask.ndim == 3:
            mask = mask.reshape(queries.shape[0], module.num_heads, *mask.shape[1:])
        bias, seen = (None, ~mask) if mask.dtype == torch.bool else (mask, None)
    padding = given.get("key_padding_mask")
    if padding is not None:
        padding = padding if padding.ndim == 2 else padding[None]
        padding = padding if padding.dtype == torch.bool else padding < 0
        visible = ~padding[:, None, None, :]
        seen = visible if seen is None else seen & visible
    return bias, seen
