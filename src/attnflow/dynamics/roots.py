"""Where a function of the state changes its sign along runs, in NumPy."""

from collections.abc import Callable

import numpy as np

from attnflow.dynamics.dop853 import Dop853
from attnflow.dynamics.events import FINEST

SECTIONS = 32  # of an interval that holds a root, again and again


def sign_changes(
    run: Dop853, value: Callable[[np.ndarray], np.ndarray], samples: int
) -> list[np.ndarray]:
    """For each run the times at which a value of its state changes its sign; two changes within a
    sample of a step are missed."""
    steps = np.asarray(run.s)
    between = np.linspace(steps[:-1], steps[1:], samples, endpoint=False, axis=1)
    s = np.concatenate([between.reshape(-1, steps.shape[1]), steps[-1:]])
    return crossings(lambda s: value(run.at(s)), s)


def crossings(value: Callable[[np.ndarray], np.ndarray], s: np.ndarray) -> list[np.ndarray]:
    """For each run the times at which the value changes its sign between two of s (times, runs)."""
    lefts = [brackets(*pair) for pair in zip(s.T, value(s).T, strict=True)]
    found = [np.empty(len(left)) for left in lefts]
    for turn in range(max(map(len, lefts))):
        runs = [i for i, left in enumerate(lefts) if turn < len(left)]
        low, high = s[0].copy(), s[0].copy()
        for i in runs:
            left = lefts[i][turn]
            low[i], high[i] = s[left, i], s[left + 1, i]
        root = roots(value, low, high)
        for i in runs:
            found[i][turn] = root[i]
    return found


def brackets(s: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Where the sign changes before the next value; the start itself is no event."""
    sign = np.sign(values)
    changes = (sign[:-1] * sign[1:] < 0) | ((sign[:-1] == 0) & (s[:-1] > s[0]))
    return np.flatnonzero(changes & (s[1:] > s[:-1]))


def roots(
    value: Callable[[np.ndarray], np.ndarray], low: np.ndarray, high: np.ndarray
) -> np.ndarray:
    """Of a function of many times at once, (..., intervals), that changes its sign in each of these
    intervals."""
    each = np.arange(len(low))
    while (high - low > FINEST * (1 + np.abs(high))).any():
        s = np.linspace(low, high, SECTIONS + 1)
        sign = np.sign(value(s))
        changed = sign != sign[0]
        first = np.where(changed.any(axis=0), changed.argmax(axis=0), SECTIONS)
        before = np.where(sign[first, each] == 0, first, first - 1)
        first, before = (np.where(sign[0] == 0, 0, x) for x in (first, before))
        lost = ~changed.any(axis=0) & (sign[0] != 0)  # at the very end, by rounding
        low, high = s[np.where(lost, SECTIONS, before), each], s[first, each]
    return low
