"""What the weights alone tell: interaction norms, and how far a step moved them."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from attnflow.torch.modules import AttentionModule, head_numbers

Snapshot = Mapping[str, Mapping[str, Tensor]]


def interaction_norms(module: AttentionModule) -> Tensor:
    """‖W_QᵀW_K‖ (Frobenius) of each head: √tr(W_Q W_Qᵀ W_K W_Kᵀ), from two d × d Gram matrices.

    Of the weights alone: rotations by position leave it, norms between projection and score (as in
    Qwen 3) do not. Cost: O(heads · d² · width).
    """
    if module.query is None or module.key is None:
        raise ValueError(f"{module.name}: its query and key weights were not recognized")
    q, k = (each.matrices().float() for each in (module.query, module.key))
    k = k[head_numbers(module).to(k.device)]
    grams = (q @ q.transpose(1, 2)) * (k @ k.transpose(1, 2))
    return grams.sum((1, 2)).clamp_min(0).sqrt()


def weights_of(modules: Sequence[AttentionModule]) -> Snapshot:
    """Copies of the attention weights, to compare with later ones."""
    return {
        each.name: {part: found.matrices() for part, found in each.projections.items()}
        for each in modules
    }


def update_ratios(modules: Sequence[AttentionModule], before: Snapshot) -> dict[str, Tensor]:
    """‖change‖/‖weight‖ of query, key, value and output weights since `before`, by layer."""
    ratios = {
        part: torch.full((len(modules),), torch.nan) for part in ("query", "key", "value", "output")
    }
    for layer, each in enumerate(modules):
        for part, projection in each.projections.items():
            old = before[each.name][part].float()
            change = (projection.matrices().float() - old).norm()
            ratios[part][layer] = float(change / old.norm().clamp_min(1e-38))
    return ratios
