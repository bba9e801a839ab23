"""The experiments' transformer at the size of a test."""

import dataclasses
from typing import Any

import torch

from attnflow.torch.transformer import Transformer, TransformerConfig

SMALL = TransformerConfig(vocabulary=11, outputs=11, heads=2, width=16, length=7, mlp=24)


def small(seed=0, **fields) -> Any:
    return Transformer(dataclasses.replace(SMALL, **fields), seed=seed)


def tokens(count=3, length=7, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randint(11, (count, length), generator=g)
