"""Instruments and remedies for real PyTorch transformers (extra `[torch]`)."""

from attnflow.torch.attention import attend
from attnflow.torch.diagnosis import Diagnosis, Limits, diagnose
from attnflow.torch.fused import fused_attention
from attnflow.torch.groups import param_groups
from attnflow.torch.history import Dates, dates
from attnflow.torch.loading import checkpoints, load_model
from attnflow.torch.masking import mask_heads
from attnflow.torch.measure import QUANTITIES, Budget
from attnflow.torch.modules import AttentionModule, attention_modules
from attnflow.torch.pruning import Pruned, load_pruned, prune_heads, save_pruned
from attnflow.torch.ranking import PruningOrder, rank_heads
from attnflow.torch.records import recover
from attnflow.torch.statistics import (
    Attention,
    Statistics,
    attention_rows,
    attention_statistics,
    fused_statistics,
    statistics_from_lse,
)
from attnflow.torch.surgery import sink_logits, sink_surgery
from attnflow.torch.swap import register_with_transformers, restore_attention, swap_attention
from attnflow.torch.tempering import set_temperature, temperature
from attnflow.torch.texts import example_batch, token_batches
from attnflow.torch.training import TrainingError, Until, train
from attnflow.torch.transformer import Transformer, TransformerConfig
from attnflow.torch.watcher import Watcher, to_tensorboard, to_wandb, watch
from attnflow.torch.weights import interaction_norms

__all__ = [
    "QUANTITIES",
    "Attention",
    "AttentionModule",
    "Budget",
    "Dates",
    "Diagnosis",
    "Limits",
    "Pruned",
    "PruningOrder",
    "Statistics",
    "TrainingError",
    "Transformer",
    "TransformerConfig",
    "Until",
    "Watcher",
    "attend",
    "attention_modules",
    "attention_rows",
    "attention_statistics",
    "checkpoints",
    "dates",
    "diagnose",
    "example_batch",
    "fused_attention",
    "fused_statistics",
    "interaction_norms",
    "load_model",
    "load_pruned",
    "mask_heads",
    "param_groups",
    "prune_heads",
    "rank_heads",
    "recover",
    "register_with_transformers",
    "restore_attention",
    "save_pruned",
    "set_temperature",
    "sink_logits",
    "sink_surgery",
    "statistics_from_lse",
    "swap_attention",
    "temperature",
    "to_tensorboard",
    "to_wandb",
    "token_batches",
    "train",
    "watch",
]
