"""Attention of a transformers model, the map held whole, open to changes by a test."""

import contextlib
import math

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

NAME = "dense_by_a_test"


@contextlib.contextmanager
def dense_attention(model, change):
    """While entered, the model's weights are `change(module, logits, values)`: logits (batch,
    heads, T, S, or S + 1 with a sink's behind), masked ones −∞, must become the heads' outputs
    (batch, heads, T, width), given the values (batch, heads, S, width)."""

    def forward(module, query, key, value, attention_mask, scaling=None, softcap=None, **more):
        group = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(group, dim=1) for x in (key, value))
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        logits = query @ key.transpose(-1, -2) * scale
        if softcap is not None:
            logits = softcap * torch.tanh(logits / softcap)
        if attention_mask is not None:
            hidden = attention_mask < -1e30
            logits = logits.masked_fill(hidden[..., : key.shape[2]], -math.inf)
        if more.get("s_aux") is not None:
            sink = more["s_aux"].reshape(1, -1, 1, 1).expand(*logits.shape[:3], 1)
            logits = torch.cat([logits, sink], dim=-1)
        return change(module, logits, value).transpose(1, 2).contiguous(), None

    AttentionInterface.register(NAME, forward)
    AttentionMaskInterface.register(NAME, eager_mask)
    former = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    try:
        yield
    finally:
        model.set_attn_implementation(former)


def mixed(logits, values):
    """Softmax of the logits; a sink's share, if there is one, goes nowhere."""
    return logits.softmax(-1)[..., : values.shape[2]] @ values
