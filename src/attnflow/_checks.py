"""Input checks of the boundary: each says what is wrong and how to mend it."""

import difflib
from collections.abc import Iterable

import numpy as np


def choice(name: str, value: object, options: Iterable[str]) -> None:
    options = sorted(options)
    if value in options:
        return
    near = difflib.get_close_matches(str(value), options, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(options)}"
    raise ValueError(f"{name} {value!r} is not known: {hint}")


def is_traced(value: object) -> bool:
    """A JAX tracer, whose value cannot be looked at: models built inside a compiled function."""
    return any(base.__name__ == "Tracer" for base in type(value).__mro__)


def inside(name: str, value: object, low: float, high: float, why: str) -> None:
    """Every entry of `value` lies strictly between `low` and `high`."""
    if is_traced(value):
        return
    array = np.asarray(value, dtype=float)
    bad = ~((array > low) & (array < high))  # the negation also catches NaN
    if bad.any():
        got = float(np.atleast_1d(array)[np.atleast_1d(bad)][0])
        raise ValueError(f"{name} must lie in ({low:g}, {high:g}): {why} (got {got:g})")


def finite(name: str, value: object) -> None:
    if is_traced(value):
        return
    array = np.asarray(value, dtype=float)
    if not np.isfinite(array).all():
        bad = float(np.atleast_1d(array)[np.atleast_1d(~np.isfinite(array))][0])
        raise ValueError(f"{name} must be finite (got {bad})")


def positive(name: str, value: object) -> None:
    if is_traced(value):
        return
    array = np.asarray(value, dtype=float)
    if not (np.isfinite(array) & (array > 0)).all():
        raise ValueError(f"{name} must be positive and finite (got {value})")


def at_least(name: str, value: object, low: int, why: str = "") -> None:
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < low:
        reason = f": {why}" if why else ""
        raise ValueError(f"{name} must be a whole number of at least {low}{reason} (got {value!r})")
