"""One attention head under cross-entropy: blockwise, by counting symbols, and in closed form."""

from attnflow.models.head.gradients import (
    Change,
    Pulls,
    closed_gradients,
    first_order,
    pulls,
    scores_and_values,
)
from attnflow.models.head.head import BIASES, WEIGHTS, CrossEntropyHead, Head, Routing
from attnflow.models.head.symbols import SymbolHead
from attnflow.models.head.task import ChainTask, DiversityTask, HeadTask, ToyTask

__all__ = [
    "BIASES",
    "WEIGHTS",
    "ChainTask",
    "Change",
    "CrossEntropyHead",
    "DiversityTask",
    "Head",
    "HeadTask",
    "Pulls",
    "Routing",
    "SymbolHead",
    "ToyTask",
    "closed_gradients",
    "first_order",
    "pulls",
    "scores_and_values",
]
