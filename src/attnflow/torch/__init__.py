"""Instruments for real PyTorch transformers (extra `[torch]`)."""

from attnflow.torch.statistics import (
    Attention,
    Statistics,
    attention_statistics,
    statistics_from_lse,
)

__all__ = ["Attention", "Statistics", "attention_statistics", "statistics_from_lse"]
