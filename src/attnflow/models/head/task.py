"""Heads on the tasks of the routing study, from plain numbers."""

import dataclasses
from typing import Annotated

import numpy as np
from typing_extensions import Doc

from attnflow._checks import at_least, choice, fits_memory, positive_moderate, seed
from attnflow.models.head.head import BIASES, Head
from attnflow.models.head.symbols import SymbolHead
from attnflow.tasks.markov import StickyChain

DIVERSITIES = ("identical", "clustered", "uniform")


def random_start(rng: np.random.Generator, shapes: dict[str, tuple[int, ...]], scale: float):
    """Normal numbers of variance scale²/rows, biases zero."""
    return {
        name: np.zeros(shape)
        if name in BIASES
        else scale / np.sqrt(shape[0]) * rng.normal(size=shape)
        for name, shape in shapes.items()
    }


def head_shapes(width: int, key: int, value: int, classes: int) -> dict[str, tuple[int, ...]]:
    shapes = {"W_Q": (width, key), "W_K": (width, key), "W_V": (width, value)}
    shapes |= {"W_O": (value, classes)}
    return shapes | {"b_Q": (key,), "b_K": (key,), "b_V": (value,), "b_O": (classes,)}


def _check_memory(length: int, classes: int, width: int) -> None:
    """Attention maps in full, with their gradients; weights and their gradients."""
    shown = f"length = {length}, classes = {classes}, width = {width}"
    fits_memory(shown, 8 * (12 * length**2 + 4 * (length + classes) * (width + classes)))


@dataclasses.dataclass(frozen=True)
class ToyTask:
    """A handful of positions, each its own one-hot token with a class to predict; all see all.

    >>> ToyTask().model().targets.shape
    (1, 5)
    """

    length: Annotated[int, Doc("T, positions")] = 5
    classes: Annotated[int, Doc("classes of the targets")] = 3
    width: Annotated[int, Doc("d_k = d_v")] = 2
    scale: Annotated[float, Doc("size of the initial weights")] = 1.0
    seed: Annotated[int, Doc("seed of targets and start")] = 0

    def __post_init__(self):
        at_least("length", self.length, 2, "attention needs two positions to choose from")
        at_least("classes", self.classes, 2)
        at_least("width", self.width, 1)
        seed("seed", self.seed)
        positive_moderate("scale", self.scale)
        _check_memory(self.length, self.classes, self.width)

    def model(self) -> Head:
        rng = np.random.default_rng(self.seed)
        targets = rng.permutation(np.arange(self.length) % self.classes)[None]
        shapes = head_shapes(self.length, self.width, self.width, self.classes)
        start = random_start(rng, shapes, self.scale * np.sqrt(self.length))
        inputs = np.eye(self.length)[None]
        return Head(
            inputs=inputs,
            targets=targets,
            start=start,
            classes=self.classes,
            causal=False,
            maps=True,
        )


@dataclasses.dataclass(frozen=True)
class ChainTask:
    """A causal head that predicts the next symbol of a sticky Markov chain.

    >>> model = ChainTask(length=50).model()
    >>> model.targets.shape, round(float(model.floor), 3)
    ((1, 50), 1.973)
    """

    symbols: Annotated[int, Doc("size of the alphabet")] = 8
    stay: Annotated[float, Doc("chance that a symbol repeats")] = 0.3
    length: Annotated[int, Doc("T, positions of a sequence")] = 2000
    sequences: Annotated[int, Doc("sequences of the batch")] = 1
    width: Annotated[int, Doc("d_k = d_v")] = 16
    embedding: Annotated[int, Doc("width of random tokens; 0: one-hot tokens")] = 0
    scale: Annotated[float, Doc("size of the initial weights")] = 1.0
    heads: Annotated[int, Doc("heads that share the width")] = 1
    normalized: Annotated[bool, Doc("LayerNorm on the values")] = False
    residual: Annotated[bool, Doc("add the token to what the heads return")] = False
    seed: Annotated[int, Doc("seed of chain and start")] = 0

    def __post_init__(self):
        at_least("width", self.width, 1)
        at_least("embedding", self.embedding, 0)
        at_least("heads", self.heads, 1)
        positive_moderate("scale", self.scale)
        self.chain()
        tokens = self.embedding or self.symbols
        shown = f"symbols = {self.symbols}, width = {self.width}, embedding = {self.embedding}"
        fits_memory(shown, 8 * 8 * (tokens + self.symbols) * (self.width + tokens))

    def chain(self) -> StickyChain:
        return StickyChain(self.symbols, self.stay, self.length, self.sequences, self.seed)

    def model(self) -> SymbolHead:
        chain = self.chain()
        symbols, targets = chain.draw()
        rng = np.random.default_rng([self.seed, 1])
        tokens = np.eye(self.symbols)
        if self.embedding:
            tokens = rng.normal(size=(self.symbols, self.embedding))
        value = tokens.shape[1] if self.residual else self.width
        shapes = head_shapes(tokens.shape[1], self.width, value, self.symbols)
        return SymbolHead(
            symbols=symbols,
            targets=targets,
            start=random_start(rng, shapes, self.scale),
            classes=self.symbols,
            embedding=tokens,
            floor=chain.entropy_rate,
            heads=self.heads,
            normalized=self.normalized,
            residual=self.residual,
        )


@dataclasses.dataclass(frozen=True)
class DiversityTask:
    """Queries whose errors point the same way, in a few ways, or each its own: free scores and
    values, and targets that are one class, one class a cluster, or even over all classes.

    >>> len(np.unique(DiversityTask(diversity="clustered", clusters=3).model().targets))
    3
    """

    diversity: Annotated[str, Doc("identical, clustered or uniform")] = "uniform"
    clusters: Annotated[int, Doc("number of clusters, if clustered")] = 3
    length: Annotated[int, Doc("T, queries and values")] = 24
    classes: Annotated[int, Doc("classes of the targets")] = 8
    width: Annotated[int, Doc("d_v")] = 8
    scale: Annotated[float, Doc("size of the initial scores, values and W_O")] = 0.3
    seed: Annotated[int, Doc("seed of targets and start")] = 0

    def __post_init__(self):
        choice("diversity", self.diversity, DIVERSITIES)
        at_least("length", self.length, 2)
        at_least("classes", self.classes, 2)
        at_least("width", self.width, 1)
        seed("seed", self.seed)
        positive_moderate("scale", self.scale)
        _check_memory(self.length, self.classes, self.width)
        if not 1 <= self.clusters <= self.classes:
            raise ValueError(f"clusters must lie from 1 to the {self.classes} classes")

    def model(self) -> Head:
        rng = np.random.default_rng(self.seed)
        kinds = {"identical": 1, "clustered": self.clusters, "uniform": self.classes}
        targets = np.arange(self.length) % kinds[self.diversity]
        shapes = {
            "scores": (self.length, self.length),
            "values": (self.length, self.width),
            "W_O": (self.width, self.classes),
        }
        start = {name: self.scale * rng.normal(size=shape) for name, shape in shapes.items()}
        return Head(
            inputs=None,
            targets=rng.permutation(targets)[None],
            start=start,
            classes=self.classes,
            causal=False,
            maps=True,
        )


@dataclasses.dataclass(frozen=True)
class HeadTask:
    """One attention head under cross-entropy, on one of three tasks.

    >>> HeadTask(task="diversity", diversity="identical").model().loss.__name__
    'loss'
    """

    task: Annotated[str, Doc("chain (sticky Markov chain), toy, or diversity")] = "chain"
    length: Annotated[int | None, Doc("T, positions (chain 2000, toy 5, diversity 24)")] = None
    classes: Annotated[int | None, Doc("classes, or symbols of the chain (8, 3, 8)")] = None
    width: Annotated[int | None, Doc("d_k = d_v (16, 2, 8)")] = None
    scale: Annotated[float | None, Doc("size of the start (1, 1, 0.3)")] = None
    stay: Annotated[float, Doc("chain: chance that a symbol repeats")] = 0.3
    heads: Annotated[int, Doc("chain: heads that share the width")] = 1
    normalized: Annotated[bool, Doc("chain: LayerNorm on the values")] = False
    residual: Annotated[bool, Doc("chain: add the token to what the heads return")] = False
    diversity: Annotated[str, Doc("diversity: identical, clustered or uniform errors")] = "uniform"
    seed: Annotated[int, Doc("seed of task and start")] = 0

    def model(self) -> Head | SymbolHead:
        choice("task", self.task, ("chain", "toy", "diversity"))
        given = {"length": self.length, "width": self.width, "scale": self.scale, "seed": self.seed}
        given = {name: value for name, value in given.items() if value is not None}
        classes = {} if self.classes is None else {"classes": self.classes}
        if self.classes is not None:
            at_least("classes", self.classes, 2, "one class has nothing to predict")
            fits_memory(f"classes = {self.classes}", 3 * 8 * self.classes**2)
        if self.task == "toy":
            return ToyTask(**given, **classes).model()
        if self.task == "diversity":
            return DiversityTask(self.diversity, **given, **classes).model()
        if self.classes is not None:
            classes = {"symbols": self.classes}
        return ChainTask(
            **given,
            **classes,
            stay=self.stay,
            heads=self.heads,
            normalized=self.normalized,
            residual=self.residual,
        ).model()
