"""Induction: symbols at random, then one of them again, and what followed it is to be told."""

import dataclasses
from typing import Annotated, NamedTuple

import numpy as np
from typing_extensions import Doc

from attnflow._checks import at_least

BOS = 0


class Sequences(NamedTuple):
    """tokens and targets (sequence, position): a target is the token that follows; weights
    (position): what the cross-entropy of a position counts in the loss."""

    tokens: np.ndarray
    targets: np.ndarray
    weights: np.ndarray


@dataclasses.dataclass(frozen=True)
class Induction:
    """BOS, t_1 … t_k without repeats, then the query t'_i for a random i, and the answer t_(i+1).

    t' is t itself, or a symbol of its own (t + vocabulary). After t_k comes the query, so that for
    i = k the answer is the query symbol. Tokens are numbered: BOS 0, t from 1 on. The loss of a
    sequence is that of the answer plus λ times the mean of those at all positions before.

    Batches are made from (seed, step) alone: the same ones in any order.

    >>> task = Induction(vocabulary=5, context=3)
    >>> tokens, targets, weights = task.batch(seed=0, step=7, size=2)
    >>> tokens.shape, task.length, task.tokens
    ((2, 5), 5, 6)
    """

    vocabulary: Annotated[int, Doc("symbols of the context")] = 50
    context: Annotated[int, Doc("k, symbols before the query")] = 10
    same_target: Annotated[bool, Doc("the query is the symbol itself, not one of its own")] = True
    random_weight: Annotated[float, Doc("λ, weight of the positions before the query")] = 0.2

    def __post_init__(self):
        at_least("vocabulary", self.vocabulary, 1)
        at_least("context", self.context, 1)
        if self.context > self.vocabulary:
            raise ValueError(
                f"context symbols do not repeat: {self.context} of them need a vocabulary of at "
                f"least as many (got {self.vocabulary})"
            )
        if not 0 <= self.random_weight <= 1:
            raise ValueError(f"random_weight must lie in [0, 1] (got {self.random_weight})")

    @property
    def tokens(self) -> int:
        """Token numbers in use: what a model needs as vocabulary and outputs."""
        return 1 + self.vocabulary * (1 if self.same_target else 2)

    @property
    def length(self) -> int:
        """Positions of an input."""
        return self.context + 2

    @property
    def random_positions(self) -> range:
        """Where no prediction can be better than a guess, BOS apart: the next symbol is a fresh
        one. The last context symbol is not among them: the query follows, which is a known one."""
        return range(1, self.context)

    @property
    def weights(self) -> np.ndarray:
        before = np.full(self.length - 1, self.random_weight / (self.length - 1), np.float32)
        return np.append(before, np.float32(1))

    def batch(self, seed: int, step: int, size: int) -> Sequences:
        """The answer is the last target. Cost: one sort of `vocabulary` numbers a sequence."""
        for name, value, low in (("seed", seed, 0), ("step", step, 0), ("size", size, 1)):
            at_least(name, value, low)
        rng = np.random.default_rng([seed, step])
        symbols = rng.random((size, self.vocabulary)).argsort(axis=1)[:, : self.context] + 1
        chosen = rng.integers(self.context, size=size)
        each = np.arange(size)
        query = symbols[each, chosen] + (0 if self.same_target else self.vocabulary)
        tokens = np.column_stack([np.full(size, BOS), symbols, query])
        answer = tokens[each, chosen + 2]  # t_(i+1) stands one after t_i, which BOS has shifted
        targets = np.column_stack([tokens[:, 1:], answer])
        return Sequences(tokens, targets, self.weights)
