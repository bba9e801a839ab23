"""Nested dicts and tuples of arrays, without JAX."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np


def leaves(tree: Any) -> list[Any]:
    """The arrays, dicts in the order of their sorted keys (as JAX has it).

    >>> leaves({"b": 2.0, "a": (0.0, 1.0)})
    [0.0, 1.0, 2.0]
    """
    if isinstance(tree, dict):
        return [leaf for key in sorted(tree) for leaf in leaves(tree[key])]
    if isinstance(tree, tuple | list):
        return [leaf for item in tree for leaf in leaves(item)]
    return [tree]


def mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    """The same tree of what the function makes of its arrays."""
    if isinstance(tree, dict):
        return {key: mapped(function, item) for key, item in tree.items()}
    if isinstance(tree, tuple | list):
        return type(tree)(mapped(function, item) for item in tree)
    return function(tree)


class Packing:
    """Trees of the shape of `example` as vectors, and back; more axes may come first."""

    def __init__(self, example: Any):
        self.example = example
        self.plain = isinstance(example, np.ndarray) and example.ndim == 1
        shapes = [np.shape(leaf) for leaf in leaves(example)]
        ends = np.cumsum([0, *(int(np.prod(shape)) for shape in shapes)]).tolist()
        self.pieces = list(zip(shapes, ends[:-1], ends[1:], strict=True))

    def packed(self, tree: Any) -> np.ndarray:
        if self.plain:
            return np.asarray(tree, float)
        parts = [np.asarray(leaf, float) for leaf in leaves(tree)]
        lead = parts[0].shape[: parts[0].ndim - len(self.pieces[0][0])]
        vector = np.empty((*lead, self.pieces[-1][2]))
        for part, (_, start, end) in zip(parts, self.pieces, strict=True):
            vector[..., start:end] = part.reshape(*part.shape[: len(lead)], -1)
        return vector

    def unpacked(self, vector: np.ndarray) -> Any:
        if self.plain:
            return vector
        lead = vector.shape[:-1]
        parts = iter(
            [vector[..., start:end].reshape(lead + shape) for shape, start, end in self.pieces]
        )
        return _filled(self.example, parts)


def _filled(tree: Any, parts: Iterator[Any]) -> Any:
    """The tree with these leaves, in the order of `leaves`."""
    if isinstance(tree, dict):
        found = {key: _filled(tree[key], parts) for key in sorted(tree)}
        return {key: found[key] for key in tree}
    if isinstance(tree, tuple | list):
        return type(tree)(_filled(item, parts) for item in tree)
    return next(parts)
