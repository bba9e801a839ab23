"""A sticky Markov chain: each symbol repeats with a given chance, else another one follows."""

import dataclasses
from typing import Annotated

import numpy as np
from typing_extensions import Doc

from attnflow._checks import at_least, fits_memory, seed


@dataclasses.dataclass(frozen=True)
class StickyChain:
    """Symbols 0 … S − 1; the next is the same with chance `stay`, each other with an equal share of
    the rest.

    >>> round(StickyChain().entropy_rate, 3)
    1.973
    """

    symbols: Annotated[int, Doc("size of the alphabet")] = 8
    stay: Annotated[float, Doc("chance that a symbol repeats")] = 0.3
    length: Annotated[int, Doc("T, positions of a sequence")] = 2000
    sequences: Annotated[int, Doc("sequences of the batch")] = 1
    seed: Annotated[int, Doc("seed of the chain")] = 0

    def __post_init__(self):
        at_least("symbols", self.symbols, 2, "a chain of one symbol has nothing to predict")
        at_least("length", self.length, 2, "a causal head needs a position to look back to")
        at_least("sequences", self.sequences, 1)
        seed("seed", self.seed)
        shown = f"symbols = {self.symbols}, length = {self.length}, sequences = {self.sequences}"
        fits_memory(shown, 8 * (4 * self.sequences * self.length + 3 * self.symbols**2))
        if not 0 <= self.stay <= 1:
            raise ValueError(f"stay is a chance: it must lie in [0, 1] (got {self.stay})")

    @property
    def transition(self) -> np.ndarray:
        rest = (1 - self.stay) / (self.symbols - 1)
        return np.full((self.symbols, self.symbols), rest) + (self.stay - rest) * np.eye(
            self.symbols
        )

    @property
    def entropy_rate(self) -> float:
        """Nats a symbol: the least cross-entropy of any predictor of the next one."""
        row = self.transition[0]
        row = row[row > 0]
        return float(-np.sum(row * np.log(row)))

    def draw(self) -> tuple[np.ndarray, np.ndarray]:
        """Symbols and the symbols that follow them, (sequence, position)."""
        rng = np.random.default_rng(self.seed)
        shape = (self.sequences, self.length + 1)
        moved = rng.random(shape) >= self.stay
        jump = np.where(moved, rng.integers(1, self.symbols, shape), 0)
        jump[:, 0] = rng.integers(0, self.symbols, self.sequences)
        chain = np.cumsum(jump, axis=1) % self.symbols
        return chain[:, :-1], chain[:, 1:]
