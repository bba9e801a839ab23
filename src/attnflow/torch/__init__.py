"""Instruments and remedies for real PyTorch transformers (extra `[torch]`)."""

from attnflow.torch.measure import QUANTITIES, Budget
from attnflow.torch.modules import AttentionModule, attention_modules
from attnflow.torch.records import recover
from attnflow.torch.statistics import (
    Attention,
    Statistics,
    attention_rows,
    attention_statistics,
    statistics_from_lse,
)
from attnflow.torch.watch import Watcher, to_tensorboard, to_wandb, watch
from attnflow.torch.weights import interaction_norms

__all__ = [
    "QUANTITIES",
    "Attention",
    "AttentionModule",
    "Budget",
    "Statistics",
    "Watcher",
    "attention_modules",
    "attention_rows",
    "attention_statistics",
    "interaction_norms",
    "recover",
    "statistics_from_lse",
    "to_tensorboard",
    "to_wandb",
    "watch",
]
