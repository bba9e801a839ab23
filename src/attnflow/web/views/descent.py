"""Descents that a slider can drag: other numbers of an optimizer, or of steps, compile nothing."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from attnflow.dynamics.descent import descend
from attnflow.models.interface import Model


def recorded_steps(steps: int, records: int) -> np.ndarray:
    """`records` steps from 0 to `steps`, even in log(1 + step); early ones may repeat."""
    return np.rint(np.expm1(np.linspace(0, np.log1p(steps), records))).astype(int)


def descents(
    model: Model, make: Callable[..., Any], numbers: Sequence[dict[str, float]], steps: np.ndarray
) -> list[dict[str, np.ndarray]]:
    """Of each set of numbers, the observables at the given steps, NaN once they have diverged.
    `make` gives the optimizer; it must be a function of a module, or every call compiles."""
    kept, places = np.unique(steps, return_inverse=True)
    tuned = {name: [x[name] for x in numbers] for name in numbers[0]}
    found = descend(
        model, steps[-1], make, tuned=tuned, record=kept, keep_diverged=True, progress=False
    )
    return [
        {str(name): x.values[i, places] for name, x in found.data_vars.items()}
        for i in range(len(numbers))
    ]
