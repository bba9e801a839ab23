"""How long a call takes."""

import time
from collections.abc import Callable


def timed(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def best(call: Callable[[], object], repeats: int = 5) -> tuple[float, float]:
    """(first call with its compilation, best of the later ones)."""
    first = timed(call)
    return first, min(timed(call) for _ in range(repeats))
