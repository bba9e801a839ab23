"""Attentions whose queries and keys pass a feature map φ before their product is taken.

sim(q, k) = φ(q)·φ(k): what is left is an attention of the registry, of φ(q) and φ(k).
"""

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor, nn

from attnflow import attention as registry
from attnflow._checks import choice
from attnflow.attention import similarities

RATIO = 4  # hidden over input width of the learned feature map


class LearnedMap(nn.Module):
    """One two-layer network that queries and keys of all heads share."""

    def __init__(self, width: int):
        super().__init__()
        self.up = nn.Linear(width, RATIO * width)
        self.down = nn.Linear(RATIO * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(nn.functional.gelu(self.up(x)))


class FixedMap(nn.Module):
    """A function of single numbers."""

    def __init__(self, function: Callable[[Tensor], Tensor]):
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


@dataclasses.dataclass(frozen=True)
class Kernel:
    """`feature(head width)` makes the map; `law` is the attention of φ(q) and φ(k); their product
    is divided by √d if `scaled`."""

    law: str
    feature: Callable[[int], nn.Module] | None = None
    scaled: bool = True


def _elu_plus_one(width: int) -> nn.Module:
    return FixedMap(similarities.elu_plus_one)


def _nothing(width: int) -> nn.Module:
    return FixedMap(torch.zeros_like)


# elu_elu is without 1/√d: so the published code has it, though it is printed with it.
KERNELS = {
    "uniform": Kernel("softmax", _nothing),
    "elu_elu": Kernel("linear", _elu_plus_one, scaled=False),
    "elu_elu_normalized": Kernel("identity_normalized", _elu_plus_one, scaled=False),
    "mlp": Kernel("linear", LearnedMap),
    "mlp_normalized": Kernel("linear_normalized", LearnedMap),
}


def kernel(name: str) -> Kernel:
    """A feature map and its law, or an attention of the registry without a map.

    >>> kernel("mlp_normalized").law, kernel("softmax_1").law
    ('linear_normalized', 'softmax_1')
    """
    choice("attention", name, [*KERNELS, *registry.names()])
    return KERNELS.get(name) or Kernel(name)
