"""Softmax attention and its log-sum-exp, both with gradients, without ever holding the map.

The log-sum-exp is what other attentions need of softmax: a sink, or heads that compete, only scale
each row by a function of it.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from attnflow._checks import at_least

BLOCK = 128  # queries at a time where there is no kernel
HIDDEN = -9e3  # models write -10,000 (a little more in bfloat16), a type's lowest number, or -inf


def fused_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    mask: Tensor | None = None,
    scale: float | None = None,
    block: int = BLOCK,
) -> tuple[Tensor, Tensor]:
    """Softmax attention (batch, heads, T, d) and its log-sum-exp (batch, heads, T).

    Of queries (batch, heads, T, d), keys and values (batch, key heads, S, d); with fewer key heads
    than heads each serves a group. causal: query i of the last T sees the keys up to its own place
    (torch counts from the first key; it is the same if T = S). mask: broadcasts to (batch, heads,
    T, S); booleans, True where a key is seen, or numbers that are added to the scores and hide the
    key from -9,000 downwards. scale: 1/√d unless given.
    A row that sees no key gives 0 and -inf, with gradients 0.

    On the CPU it is torch's kernel: O((T + S)·d) numbers of memory besides the mask (a causal mask
    is written out if 1 < T < S). Elsewhere, and for a mask that has gradients,
    `block` queries at a time, made again in the backward pass: O(block · S). That path is tested on
    the CPU only.

    >>> q, v = torch.zeros(1, 1, 3, 2), torch.tensor([[[[1.0, 0], [2, 0], [6, 0]]]])
    >>> out, lse = fused_attention(q, q, v, causal=True)
    >>> out[0, 0, :, 0].tolist(), lse.exp()[0, 0].round().tolist()
    ([1.0, 1.5, 3.0], [1.0, 2.0, 3.0])
    """
    at_least("block", block, 1)
    q, k, v = prepared(q, k, v, mask)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    if _has_kernel(q) and not (mask is not None and mask.requires_grad):
        return _by_kernel(q, k, v, causal, mask, scale)
    return _by_blocks(q, k, v, causal, mask, scale, block)


def _by_blocks(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, mask: Tensor | None, scale: float, block: int
) -> tuple[Tensor, Tensor]:
    def rows(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, added: Tensor | None):
        return _softmax_rows(scores_of(q, k, added, scale), v, seen)

    out, lse = by_query_blocks(rows, q, k, v, causal=causal, mask=mask, block=block)
    return out.to(q.dtype), lse


def by_query_blocks(
    rows: Callable[..., tuple[Tensor, ...]],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    mask: Tensor | None,
    block: int,
) -> tuple[Tensor, ...]:
    """`rows(q, k, v, seen, added)` of a few queries at a time, joined again, in at least float32.
    Each block is computed a second time in the backward pass, so that none is kept."""
    length, size = q.shape[2], k.shape[2]
    q, k, v = (x.to(_exact(x.dtype)) for x in (q, k, v))
    seen, added = _split(mask)
    parts = []
    with torch.autocast(q.device.type, enabled=False):
        # The longest first: freed memory then has room for the next.
        for start in reversed(range(0, length, block)):
            stop = min(start + block, length)
            last = max(stop + size - length, 1) if causal else size  # nobody here sees later keys
            visible = _block_of(seen, start, stop, last, length)
            if causal:
                place = torch.arange(start, stop, device=q.device)[:, None] + size - length
                past = (torch.arange(last, device=q.device) <= place)[None, None]
                visible = past if visible is None else past & visible
            bias = _block_of(added, start, stop, last, length)
            inputs = (q[:, :, start:stop], k[:, :, :last], v[:, :, :last], visible, bias)
            if torch.is_grad_enabled() and length > block:
                part = checkpoint(rows, *inputs, use_reentrant=False, preserve_rng_state=False)
            else:
                part = rows(*inputs)
            parts.append(part)
    return tuple(torch.cat(each[::-1], dim=2) for each in zip(*parts, strict=True))


def scores_of(
    q: Tensor, k: Tensor, added: Tensor | None, scale: float, softcap: float | None = None
) -> Tensor:
    scores = (scale * q) @ k.transpose(-1, -2)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    return scores if added is None else scores + added.to(scores.dtype)


def _softmax_rows(scores: Tensor, v: Tensor, seen: Tensor | None) -> tuple[Tensor, Tensor]:
    if seen is None:
        return scores.softmax(-1) @ v, torch.logsumexp(scores, dim=-1)
    empty = ~seen.any(-1, keepdim=True)
    scores = scores.masked_fill(~seen, -math.inf)
    out = scores.softmax(-1).masked_fill(empty, 0.0) @ v
    return out, torch.logsumexp(scores, dim=-1).masked_fill(empty.squeeze(-1), -math.inf)


def _by_kernel(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    added, empty, causal = _kernel_mask(mask, causal, q, k)
    wide = max(q.shape[-1], v.shape[-1])  # the kernel knows one width
    padded = [_unit_stride(F.pad(x, (0, wide - x.shape[-1]))) for x in (q, k, v)]
    out, lse = _Flash.apply(*padded, added, empty, causal, scale)  # type: ignore[reportGeneralTypeIssues]
    return out[..., : v.shape[-1]], lse


def _kernel_mask(
    mask: Tensor | None, causal: bool, q: Tensor, k: Tensor
) -> tuple[Tensor | None, Tensor | None, bool]:
    """What the kernel adds to the scores, the rows that see no key, and whether it shall hide the
    future itself."""
    length, size = q.shape[2], k.shape[2]
    seen, added = _split(mask)
    if causal and length != size:  # the kernel would count from the first key
        causal = False
        if length > 1:
            past = torch.ones(length, size, dtype=torch.bool, device=q.device).tril(size - length)
            seen = past[None, None] if seen is None else seen & past
    if seen is None:
        return None, None, causal
    seen = seen.expand(*seen.shape[:-1], size)
    if not causal:
        empty = ~seen.any(-1)
    elif seen.shape[-2] == 1:
        empty = seen[..., 0, :].cumsum(-1) == 0
    else:
        empty = ~seen.tril().any(-1)
    # A mask of another type than the queries' is read as if it were of it; float32 is right for
    # half precision.
    added = torch.zeros_like(seen, dtype=q.dtype) if added is None else added
    return added.to(_exact(q.dtype)).masked_fill(~seen, -math.inf), empty, causal


class _Flash(torch.autograd.Function):
    """torch's fused attention on the CPU, whose log-sum-exp has no gradient of its own."""

    @staticmethod
    def forward(ctx, q, k, v, added, empty, causal, scale):
        forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        out, lse = forward(q, k, v, 0.0, causal, attn_mask=added, scale=scale)
        if empty is not None:  # there the kernel gives 0 and 0
            lse = lse.masked_fill(empty, -math.inf)
        ctx.save_for_backward(q, k, v, out, lse, added, empty)
        ctx.causal, ctx.scale = causal, scale
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx, d_out, d_lse):  # type: ignore[reportIncompatibleMethodOverride]
        q, k, v, out, lse, added, empty = ctx.saved_tensors
        width = q.shape[-1]
        d_out = torch.zeros_like(out) if d_out is None else d_out
        if torch.is_grad_enabled():  # a derivative of the derivative is asked for
            d_lse = torch.zeros_like(lse) if d_lse is None else d_lse
            again = _by_blocks(q, k, v, ctx.causal, added, ctx.scale, BLOCK)
            inputs = [x for x in (q, k, v) if x.requires_grad]
            found = iter(torch.autograd.grad(again, inputs, (d_out, d_lse), create_graph=True))
            return *(next(found) if x.requires_grad else None for x in (q, k, v)), *[None] * 4
        if empty is not None:  # e^(-inf - 0) = 0: no weight, no gradient
            lse = lse.masked_fill(empty, 0.0)
            d_lse = None if d_lse is None else d_lse.masked_fill(empty, 0.0)
        if d_lse is not None:
            # The kernel makes dS = P ∘ (dO Vᵀ − rowsum(dO ∘ O)). A further column with dO = g,
            # V = 1 and O = 0 makes it dS + P ∘ g, with g the gradient of the log-sum-exp.
            d_out = torch.cat([d_out, d_lse[..., None].to(d_out.dtype)], dim=-1)
            q, k, out = (F.pad(x, (0, 1)) for x in (q, k, out))
            v = F.pad(v, (0, 1), value=1.0)
        backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        gradients = backward(
            _unit_stride(d_out),
            q,
            k,
            v,
            out,
            lse,
            0.0,
            ctx.causal,
            attn_mask=added,
            scale=ctx.scale,
        )
        return *(x[..., :width] for x in gradients), *[None] * 4


def prepared(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Checked, in one type under autocast, and with as many key heads as heads."""
    _check(q, k, v, mask)
    device = q.device.type
    if torch.is_autocast_enabled(device) and q.dtype != torch.float64:
        q, k, v = (x.to(torch.get_autocast_dtype(device)) for x in (q, k, v))
    if not q.dtype == k.dtype == v.dtype:
        raise ValueError(
            f"queries, keys and values differ in type: {q.dtype}, {k.dtype}, {v.dtype}"
        )
    group = q.shape[1] // k.shape[1]
    if group > 1:
        k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    return q, k, v


def _check(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> None:
    for name, array in (("queries", q), ("keys", k), ("values", v)):
        if array.ndim != 4 or 0 in array.shape or not array.is_floating_point():
            raise ValueError(
                f"{name} must be numbers (batch, heads, tokens, width) "
                f"(got {array.dtype} of shape {tuple(array.shape)})"
            )
    if q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise ValueError(
            f"queries {tuple(q.shape)} and keys {tuple(k.shape)} differ in batch or width"
        )
    if k.shape[:3] != v.shape[:3]:
        raise ValueError(
            f"keys {tuple(k.shape)} and values {tuple(v.shape)} do not belong together"
        )
    if q.shape[1] % k.shape[1]:
        raise ValueError(f"{k.shape[1]} key heads cannot serve {q.shape[1]} heads in equal groups")
    if mask is None:
        return
    if not (mask.dtype == torch.bool or mask.is_floating_point()):
        raise ValueError(f"mask must be booleans (True: seen) or numbers to add (got {mask.dtype})")
    whole = (*q.shape[:3], k.shape[2])
    pairs = zip(mask.shape[::-1], whole[::-1], strict=False)
    if mask.ndim > 4 or any(got not in (1, want) for got, want in pairs):
        raise ValueError(f"mask {tuple(mask.shape)} does not broadcast to {whole}")


def _split(mask: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Which keys are seen, and what is added to their scores: both of four dimensions, or None."""
    if mask is None:
        return None, None
    mask = mask[(None,) * (4 - mask.ndim)]
    if mask.dtype == torch.bool:
        return mask, None
    return mask > HIDDEN, mask.masked_fill(mask <= HIDDEN, 0.0)


def _block_of(array: Tensor | None, start: int, stop: int, last: int, length: int) -> Tensor | None:
    if array is None:
        return None
    rows = array[..., start:stop, :] if array.shape[-2] == length else array
    return rows[..., :last]


def _exact(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _unit_stride(x: Tensor) -> Tensor:
    """The kernel steps through the last axis one by one, whatever its stride is."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _has_kernel(q: Tensor) -> bool:
    name = "_scaled_dot_product_flash_attention_for_cpu"
    return q.device.type == "cpu" and hasattr(torch.ops.aten, name)
