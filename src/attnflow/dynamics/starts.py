"""Where a run begins, which blocks of parameters move, and how fast."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from attnflow._checks import choice, finite, positive_moderate
from attnflow.dynamics.trees import leaves, mapped
from attnflow.models.interface import Model


class Start(NamedTuple):
    """From `params`, or from `model.init(key)`. rates: by block, a factor of its velocity (None:
    all move alike). Each may lead with an axis of runs."""

    key: Any = None
    params: Any = None
    rates: Mapping[str, Any] | None = None

    @property
    def is_model_own(self) -> bool:
        return self.key is None and self.params is None and self.rates is None


def begun(
    model: Model,
    key: Any,
    start: Any,
    frozen: Iterable[str],
    rates: Mapping[str, float] | None,
) -> tuple[Start, int | None]:
    """The start that was asked for, and how many runs it is for if its arrays lead with them."""
    frozen = (frozen,) if isinstance(frozen, str) else tuple(frozen)
    if start is None and not frozen and rates is None:
        return Start(key), None
    if start is not None and key is not None:
        raise ValueError("give a start or a key for a random one, not both")
    example = model.init()
    runs = None
    if start is not None:
        start = _arrays("start", start, example)
        runs = _runs("start", start, example)
        finite("start", np.concatenate([np.ravel(x) for x in leaves(start)]))
    return Start(key, start, _rates(model, example, frozen, rates or {})), runs


def paced(velocity: Any, rates: Mapping[str, Any] | None) -> Any:
    """The velocity with the factor of each block."""
    if rates is None:
        return velocity
    return {
        name: mapped(lambda x, rate=rates[name]: rate * x, block)
        for name, block in velocity.items()
    }


def _arrays(where: str, given: Any, example: Any) -> Any:
    """A tree like the example, of float64 arrays; lists of numbers are arrays too."""
    if isinstance(example, Mapping):
        if not isinstance(given, Mapping) or set(given) != set(example):
            raise ValueError(f"{where} must have the blocks {', '.join(example)}")
        return {x: _arrays(f"{where}: {x}", given[x], example[x]) for x in example}
    if isinstance(example, tuple | list):
        if not isinstance(given, tuple | list) or len(given) != len(example):
            raise ValueError(f"{where} must have {len(example)} parts")
        pairs = enumerate(zip(given, example, strict=True))
        return type(example)(_arrays(f"{where}[{i}]", *pair) for i, pair in pairs)
    try:
        return np.asarray(given, np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{where} must be numbers (got {given!r})") from None


def _runs(where: str, given: Any, example: Any) -> int | None:
    """None for arrays as the model has them, the length of one more axis before theirs; an error
    for all else."""
    counts = set()
    for array, own in zip(leaves(given), leaves(example), strict=True):
        shape, wanted = np.shape(array), np.shape(own)
        if shape == wanted:
            counts.add(None)
        elif shape[1:] == wanted and shape[0]:
            counts.add(shape[0])
        else:
            raise ValueError(
                f"{where} must have the shapes {_shapes(example)}, or an axis of runs before each "
                f"(got {_shapes(given)})"
            )
    if len(counts) != 1:
        raise ValueError(f"{where}: every block needs the same number of runs")
    return counts.pop()


def _shapes(tree: Any) -> str:
    if isinstance(tree, Mapping):
        return ", ".join(f"{name} {_shapes(block)}" for name, block in tree.items())
    if isinstance(tree, tuple | list):
        return f"[{', '.join(map(_shapes, tree))}]"
    return " × ".join(map(str, np.shape(tree))) or "1"


def _rates(
    model: Model, example: Any, frozen: tuple[str, ...], rates: Mapping[str, float]
) -> dict[str, np.ndarray] | None:
    if not frozen and not rates:
        return None
    if not isinstance(example, Mapping):
        raise ValueError(f"frozen, rates: {type(model).__name__} has a single block of parameters")
    for name in frozen:
        choice("frozen", name, example)
        if name in rates:
            raise ValueError(f"rates: {name!r} is frozen")
    for name, rate in rates.items():
        choice("rates", name, example)
        positive_moderate(f"rates[{name!r}]", rate)
    if set(frozen) == set(example):
        raise ValueError("frozen: some block must move")
    chosen = {name: 0.0 if name in frozen else rates.get(name, 1.0) for name in example}
    return mapped(lambda x: np.asarray(x, np.float64), chosen)
