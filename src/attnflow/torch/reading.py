"""How scores become weights, read off the arguments of an attention function of transformers."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from attnflow.torch.fused import HIDDEN
from attnflow.torch.modules import AttentionModule
from attnflow.torch.statistics import Attention
from attnflow.torch.swap import PREFIX


class UnreadableAttention(ValueError):
    """An attention whose weights cannot be computed from what its function is given."""


def read_attention(
    site: AttentionModule,
    implementation: str,
    query: Tensor,
    key: Tensor,
    mask: Any,
    options: Mapping[str, Any],
) -> Attention:
    """How scores become weights, from the arguments of an attention function of transformers."""
    if mask is not None and not isinstance(mask, Tensor):
        raise UnreadableAttention(
            f"its mask is a {type(mask).__name__}: use the attention 'sdpa' or 'eager' to measure"
        )
    causal = options.get("is_causal")
    causal = getattr(site.module, "is_causal", True) if causal is None else causal
    flash = "flash" in str(implementation)
    causal = bool(causal) and query.shape[2] > 1 and (mask is None or flash)
    function, sink = "softmax", options.get("s_aux")
    if str(implementation).startswith(PREFIX):
        function = str(implementation).removeprefix(PREFIX)
        sink = getattr(site.module, "attnflow_bias", sink)
    window = options.get("sliding_window") if causal else None
    bias = options.get("position_bias")
    seen = None
    if mask is not None and mask.ndim == 2:
        seen = mask[:, None, None, -key.shape[2] :].bool()
    elif mask is not None and mask.dtype == torch.bool:
        seen = mask[..., : key.shape[2]]
    elif mask is not None:
        mask = mask[..., : key.shape[2]]
        seen = mask > HIDDEN
        if bool(((mask != 0) & seen).any()):
            bias = mask if bias is None else bias + mask
    return Attention(
        causal=causal,
        window=window,
        mask=seen,
        bias=None if bias is None else bias.detach(),
        softcap=options.get("softcap"),
        sink=None if sink is None else sink.detach(),
        scale=options.get("scaling"),
        function=function,
    )
