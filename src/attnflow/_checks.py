"""Input checks of the boundary: each says what is wrong and how to mend it."""

import contextlib
import decimal
import difflib
import functools
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np

LARGE = 1e100
UNITS = ((50, "PiB"), (40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB"), (0, "bytes"))


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


def moderate(name: str, value: object) -> None:
    """No entry is so large that its square leaves floating point."""
    finite(name, value)
    if not is_traced(value) and (np.abs(np.asarray(value, dtype=float)) > LARGE).any():
        raise ValueError(
            f"{name} must be at most {LARGE:g} in size: its square would leave floating point "
            f"(got {value})"
        )


def positive_moderate(name: str, value: object) -> None:
    """Nor so small that its square vanishes."""
    positive(name, value)
    moderate(name, value)
    if not is_traced(value) and (np.asarray(value, dtype=float) < 1 / LARGE).any():
        raise ValueError(
            f"{name} must be at least {1 / LARGE:g}: its square would vanish (got {value})"
        )


def at_least(name: str, value: object, low: int, why: str = "") -> None:
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < low:
        reason = f": {why}" if why else ""
        raise ValueError(f"{name} must be a whole number of at least {low}{reason} (got {value!r})")


def below(name: str, value: float, high: float, why: str) -> None:
    if value > high:
        raise ValueError(f"{name} must be at most {high:g}: {why} (got {value:.6g})")


def seed(name: str, value: object) -> None:
    """A whole number that every generator takes."""
    at_least(name, value, 0)
    if int(value) >= 2**63:  # pyright: ignore[reportArgumentType]
        raise ValueError(f"{name} must be below 2^63: generators take 63 bits (got {value})")


def fits_memory(what: str, size: float) -> None:
    """Arrays of `size` bytes in all can be held by this machine."""
    have = machine_memory()
    if size > have:
        needed, have = _bytes(size), _bytes(have)
        raise ValueError(
            f"{what} needs about {needed} of memory; this machine has {have}: take less"
        )


@functools.cache
def machine_memory() -> int:
    """Bytes of this machine, or those that its container may use."""
    have = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError):  # no such limit
        have = min(have, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return have


def _bytes(size: float) -> str:
    if size >= 2**60:
        return f"{decimal.Decimal(size):.1e} bytes"  # whole numbers of any size
    return next(f"{size / 2**bits:.3g} {unit}" for bits, unit in UNITS if size >= 2**bits)


def can_write(name: str, path: Path, folder: bool = False) -> None:
    """A file, or files in a folder, can be made at `path`: asked before the work, by making one.

    Folders that are not there yet are not made; the nearest one above them is tried.
    """
    try:
        if not folder and path.is_dir():
            raise ValueError(f"{name} must name a file: {path} is a folder")
        place = path if folder else path.parent
        place = next(each for each in (place, *place.parents) if each.exists())
        if not place.is_dir():
            raise ValueError(f"{name}: cannot write {path}: {place} is a file, not a folder")
        handle, draft = tempfile.mkstemp(prefix=".", dir=place)
        os.close(handle)
        os.unlink(draft)
    except OSError as error:
        why = error.strerror or error
        raise ValueError(f"{name}: cannot write {path} ({why}): name another place") from None
