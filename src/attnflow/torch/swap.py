"""The registry's attentions in transformers of Hugging Face.

transformers drops the causal mask of an implementation whose mask function it does not know, and
the model then looks better than it is. Here both are registered together.
"""

import math
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnflow import attention as registry
from attnflow.torch.attention import attend
from attnflow.torch.fused import prepared
from attnflow.torch.modules import AttentionModule, attention_modules, unsupported_attention

PREFIX = "attnflow_"  # how our attention functions are called among those of transformers
NO_DROPOUT = (
    "{} has no dropout on its weights: set attention_dropout=0 (GPT-2: attn_pdrop, BERT: "
    "attention_probs_dropout_prob) in the model's config"
)
Model = TypeVar("Model", bound=nn.Module)


def register_with_transformers(*names: str) -> list[str]:
    """Make attentions of the registry (all unless named) known to transformers, with their mask
    function, as "attnflow_softmax_1" and so on; these names are returned.

    Then `attn_implementation="attnflow_softmax_1"` works when a model is built or loaded.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    found = []
    for name in names or registry.names():
        registry.get(name)
        AttentionInterface.register(PREFIX + name, _on_interface(name))
        # None where sdpa would rely on `is_causal`: `_on_interface` then does what sdpa does.
        AttentionMaskInterface.register(PREFIX + name, sdpa_mask)
        found.append(PREFIX + name)
    return found


def _on_interface(name: str) -> Callable[..., tuple[Tensor, None]]:
    def forward(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        is_causal: bool | None = None,
        softcap: float | None = None,
        s_aux: Tensor | None = None,
        position_bias: Tensor | None = None,
        sliding_window: int | None = None,  # it is in the mask
        cache: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        if cache is not None:
            raise ValueError(f"{PREFIX}{name} has no paged cache: use generate, not generate_batch")
        if attention_mask is not None and attention_mask.ndim != 4:
            raise ValueError(
                f"{type(module).__name__} makes its own masks, of shape "
                f"{tuple(attention_mask.shape)}: only masks (batch, heads, T, S) are understood"
            )
        length = query.shape[2]
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        causal = bool(causal) and length > 1 and attention_mask is None
        if causal and key.shape[2] > length:  # a static cache that is still empty
            key, value = key[:, :, :length], value[:, :, :length]
            position_bias = None if position_bias is None else position_bias[..., :length]
        if position_bias is not None:
            attention_mask = _biased(position_bias, attention_mask, causal)
            causal = False
        options = {"causal": causal, "mask": attention_mask, "scale": scaling}
        bias = _sink_of(module, name, s_aux)
        if dropout > 0 and module.training:
            if name != "softmax" or softcap is not None:
                raise ValueError(NO_DROPOUT.format(name if softcap is None else f"a capped {name}"))
            out = _with_dropout(query, key, value, **options, dropout=dropout)
        else:
            out = attend(name, query, key, value, **options, bias=bias, softcap=softcap)
        return out.transpose(1, 2).contiguous(), None

    return forward


def _biased(position_bias: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    """Position bias and mask as one mask of numbers."""
    if causal:
        mask = torch.ones_like(position_bias[:1, :1], dtype=torch.bool).tril()
    if mask is None:
        return position_bias
    if mask.dtype == torch.bool:
        return position_bias.masked_fill(~mask, -math.inf)
    return position_bias + mask


def _sink_of(module: nn.Module, name: str, s_aux: Tensor | None) -> Tensor | None:
    bias = getattr(module, "attnflow_bias", None)
    if s_aux is None:
        return bias
    if not registry.get(name).has_sink:
        raise ValueError(
            f"{type(module).__name__} has learned sinks, which {name} has no place for: "
            "swap to softmax_1, which keeps them"
        )
    if bias is not None:
        raise ValueError(
            f"{type(module).__name__} learns its sinks already: swap with learnable=False"
        )
    return s_aux


def _with_dropout(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    mask: Tensor | None,
    scale: float | None,
    dropout: float,
) -> Tensor:
    q, k, v = prepared(q, k, v, mask)
    mask = mask if mask is None or mask.dtype == torch.bool else mask.to(q.dtype)
    return F.scaled_dot_product_attention(q, k, v, mask, dropout, causal, scale=scale)


def swap_attention(model: Model, name: str, *, learnable: bool = False, start: float = 0) -> Model:
    """Let a transformers model attend by a named attention from now on; changes it in place.

    learnable: each attention gets a parameter `attnflow_bias`, one number a head that begins at
    `start`: the logit of its sink (softmax_1; -10 is nearly softmax) or what is added to its scores
    (bayes_softmax). Make the optimizer afterwards. To load weights that have it, swap first, then
    `load_state_dict`; `from_pretrained` alone leaves it aside. Without it the bias is 0.
    `restore_attention` undoes it all.
    """
    law = registry.get(name)
    if learnable and not law.takes_bias:
        raise ValueError(f"{name} has no bias to learn: softmax_1 and bayes_softmax have one")
    if start and not learnable:
        raise ValueError("start is where a learned bias begins: it needs learnable=True")
    modules = _modules(model)
    if "attnflow_former" in vars(model):
        restore_attention(model)
    (implementation,) = register_with_transformers(name)
    whole: Any = model
    former = _implementations(whole.config)
    whole.set_attn_implementation(implementation)
    whole.attnflow_former = former
    kept = [x.name for x in modules if _config(x)._attn_implementation != implementation]
    if kept:
        restore_attention(model)
        raise ValueError(f"{type(model).__name__} would not change the attention of {kept}")
    for each in modules if learnable else []:
        like = next(x for x in each.module.parameters() if x.is_floating_point())
        bias = torch.full((each.heads,), float(start), dtype=like.dtype, device=like.device)
        each.module.register_parameter("attnflow_bias", nn.Parameter(bias))
    return model


def restore_attention(model: Model) -> Model:
    """Undo `swap_attention`: the former implementation again, and no learned bias."""
    if "attnflow_former" not in vars(model):
        raise ValueError(f"the attention of this {type(model).__name__} has not been swapped")
    whole: Any = model
    whole.set_attn_implementation(whole.attnflow_former)
    del whole.attnflow_former
    for module in model.modules():
        if "attnflow_bias" in module._parameters:
            del module.attnflow_bias
    return model


def _modules(model: nn.Module) -> list[AttentionModule]:
    every = attention_modules(model)
    found = [each for each in every if each.on_interface]
    if not found or not hasattr(model, "set_attn_implementation"):
        raise ValueError(
            f"{type(model).__name__} is no model on the attention interface of transformers, and "
            "only those can be swapped; in a module of your own call attend()"
        )
    others = [each.name for each in every if not each.on_interface] + unsupported_attention(model)
    if others:
        warnings.warn(f"these keep their own attention: {', '.join(others)}", stacklevel=3)
    return found


def _config(each: AttentionModule) -> Any:
    return each.module.config


def _implementations(config: Any) -> dict[str, Any]:
    """Of a config and, by name, of those in it: what `set_attn_implementation` takes."""
    parts = {name: getattr(config, name, None) for name in config.sub_configs}
    inner = {name: _implementations(part) for name, part in parts.items() if part is not None}
    return {"": config._attn_implementation, **inner}
