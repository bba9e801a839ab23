"""Nested dicts and tuples of arrays, without JAX."""

from collections.abc import Callable
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
        self.ranks = [np.ndim(leaf) for leaf in leaves(example)]

    def packed(self, tree: Any) -> np.ndarray:
        if self.plain:
            return np.asarray(tree, float)
        parts = [np.asarray(leaf, float) for leaf in leaves(tree)]
        lead = parts[0].shape[: parts[0].ndim - self.ranks[0]]
        return np.concatenate([part.reshape(*lead, -1) for part in parts], axis=-1)

    def unpacked(self, vector: np.ndarray) -> Any:
        if self.plain:
            return vector
        place = 0

        def build(tree: Any) -> Any:
            nonlocal place
            if isinstance(tree, dict):
                found = {key: build(tree[key]) for key in sorted(tree)}
                return {key: found[key] for key in tree}
            if isinstance(tree, tuple | list):
                return type(tree)(build(item) for item in tree)
            shape = np.shape(tree)
            size = int(np.prod(shape))
            piece = vector[..., place : place + size].reshape(vector.shape[:-1] + shape)
            place += size
            return piece

        return build(self.example)
