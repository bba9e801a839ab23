"""Which group do the tokens come from? Any one of them tells; and what if one is exchanged?"""

import dataclasses
from typing import Annotated, NamedTuple

import numpy as np
from typing_extensions import Doc

from attnflow._checks import at_least

CLS = 0


class Labelled(NamedTuple):
    """tokens (sequence, position), CLS last; labels (sequence)."""

    tokens: np.ndarray
    labels: np.ndarray


@dataclasses.dataclass(frozen=True)
class TokenGroups:
    """The vocabulary is cut into groups of equal size; an input holds tokens of one group, in
    random order and without repeats, then CLS; the label is the group. Tokens are numbered from 1
    on, group by group; CLS is 0. With as many tokens drawn as a group has, all inputs of a label
    are one set.

    Batches are made from (seed, step) alone.

    >>> task = TokenGroups(vocabulary=6, groups=2, drawn=2)
    >>> task.group(np.arange(1, 7)).tolist()
    [0, 0, 0, 1, 1, 1]
    """

    vocabulary: Annotated[int, Doc("tokens of all groups, without CLS")] = 40
    groups: Annotated[int, Doc("groups, which are the labels")] = 4
    drawn: Annotated[int, Doc("tokens of an input, without CLS")] = 10

    def __post_init__(self):
        at_least("groups", self.groups, 2, "one label needs no telling")
        at_least("vocabulary", self.vocabulary, self.groups, "each group needs a token")
        at_least("drawn", self.drawn, 1)
        if self.vocabulary % self.groups:
            raise ValueError(
                f"groups are of equal size: {self.vocabulary} is no multiple of {self.groups}"
            )
        if self.drawn > self.group_size:
            raise ValueError(
                f"tokens of an input do not repeat: a group has {self.group_size}, fewer than "
                f"the {self.drawn} drawn"
            )

    @property
    def tokens(self) -> int:
        """Token numbers in use: what a model needs as vocabulary."""
        return self.vocabulary + 1

    @property
    def length(self) -> int:
        """Positions of an input."""
        return self.drawn + 1

    @property
    def group_size(self) -> int:
        return self.vocabulary // self.groups

    def group(self, tokens: np.ndarray) -> np.ndarray:
        """Of every token that is not CLS."""
        return (tokens - 1) // self.group_size

    def batch(self, seed: int, step: int, size: int) -> Labelled:
        for name, value, low in (("seed", seed, 0), ("step", step, 0), ("size", size, 1)):
            at_least(name, value, low)
        rng = np.random.default_rng([seed, step])
        return self._of(rng, rng.integers(self.groups, size=size))

    def pairs(self, seed: int, step: int, size: int) -> tuple[Labelled, Labelled]:
        """Inputs and others beside them that have another label."""
        for name, value, low in (("seed", seed, 0), ("step", step, 0), ("size", size, 1)):
            at_least(name, value, low)
        rng = np.random.default_rng([seed, step])
        labels = rng.integers(self.groups, size=size)
        others = (labels + rng.integers(1, self.groups, size=size)) % self.groups
        return self._of(rng, labels), self._of(rng, others)

    def _of(self, rng: np.random.Generator, labels: np.ndarray) -> Labelled:
        order = rng.random((len(labels), self.group_size)).argsort(axis=1)[:, : self.drawn]
        tokens = 1 + labels[:, None] * self.group_size + order
        return Labelled(np.column_stack([tokens, np.full(len(labels), CLS)]), labels)

    def swap(
        self,
        tokens: np.ndarray,
        places: np.ndarray,
        others: np.ndarray,
        other_places: np.ndarray,
        *,
        shuffle: int | None = None,
    ) -> np.ndarray:
        """(sequence, choice, position): `tokens`, with the one at places[sequence, choice]
        replaced by the one of `others` at other_places[sequence, choice]. shuffle: a seed; what
        stands before CLS is then put in random order."""
        for name, array in (("places", places), ("other_places", other_places)):
            if array.shape != places.shape or array.shape[0] != len(tokens) or array.ndim != 2:
                raise ValueError(
                    f"{name} must be (sequences, choices), {len(tokens)} sequences "
                    f"(got shape {array.shape})"
                )
            if array.min() < 0 or array.max() >= self.drawn:
                raise ValueError(f"{name}: there are {self.drawn} places before CLS, from 0 on")
        found = np.repeat(tokens[:, None], places.shape[1], axis=1)
        foreign = np.take_along_axis(others, other_places, axis=1)
        np.put_along_axis(found, places[..., None], foreign[..., None], axis=2)
        if shuffle is not None:
            rng = np.random.default_rng(shuffle)
            found[..., :-1] = rng.permuted(found[..., :-1], axis=-1)
        return found

    def every_swap(self, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Every input that differs in one token, of another group: (sequence, place, choice,
        position), and the chosen tokens (sequence, choice). Memory: drawn · (vocabulary − group
        size) inputs for each."""
        own = self.group(tokens[:, :1])
        offset = np.arange(self.vocabulary - self.group_size)
        foreign = 1 + ((own + 1) * self.group_size + offset) % self.vocabulary
        shape = (len(tokens), self.drawn, foreign.shape[1], self.length)
        found = np.broadcast_to(tokens[:, None, None], shape).copy()
        place = np.arange(self.drawn)
        found[:, place, :, place] = foreign
        return found, foreign
