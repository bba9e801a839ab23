"""--timing: where the seconds of a command go."""

import builtins
import sys
import time
from collections.abc import Iterable
from typing import Any

Interval = tuple[float, float]
EVENTS = {  # of JAX's own monitoring; a reading is part of a compiling, a lowering of nothing else
    "/jax/compilation_cache/cache_retrieval_time_sec": "reading programs",
    "/jax/core/compile/backend_compile_duration": "compiling",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lowering",
    "/jax/core/compile/jaxpr_trace_duration": "tracing",
}


class Timing:
    """Seconds by what they were spent on, while it is entered; JAX tells its own part."""

    def __init__(self):
        self.begun = time.perf_counter()
        self.spent: dict[str, list[Interval]] = {name: [] for name in EVENTS.values()}
        self.spent["importing"] = []
        self.depth, self.listens = 0, False
        self.inner = builtins.__import__

    def __enter__(self) -> "Timing":
        builtins.__import__ = self._import
        return self

    def __exit__(self, *_) -> None:
        builtins.__import__ = self.inner

    def _import(self, *given, **named):
        self.depth += 1
        begun = time.perf_counter()
        try:
            return self.inner(*given, **named)
        finally:
            self.depth -= 1
            if self.depth == 0:
                self.spent["importing"].append((begun, time.perf_counter()))
                self._listen()

    def _listen(self) -> None:
        if self.listens or "jax" not in sys.modules:
            return
        self.listens = True
        from jax import monitoring

        monitoring.register_event_duration_secs_listener(self._heard)

    def _heard(self, event: str, duration_secs: float, **_: Any) -> None:
        if event in EVENTS:
            now = time.perf_counter()
            self.spent[EVENTS[event]].append((now - duration_secs, now))

    def __str__(self) -> str:
        """Each moment counts once: for the first of these that it belongs to."""
        whole, seen, told = time.perf_counter() - self.begun, [], []
        counted = 0.0
        for name, intervals in self.spent.items():
            seen += intervals
            total = length(seen)
            count = "" if name == "importing" else f" ({len(intervals)} programs)"
            if intervals:
                told.append(f"{name} {total - counted:.2f} s{count}")
            counted = total
        told = [*reversed(told), f"the rest {whole - counted:.2f} s"]
        return f"{whole:.2f} s: {', '.join(told)}"


def length(intervals: Iterable[Interval]) -> float:
    """Of their union.

    >>> length([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0)])
    4.0
    """
    total, end = 0.0, float("-inf")
    for low, high in sorted(intervals):
        total += max(0.0, high - max(low, end))
        end = max(end, high)
    return total
