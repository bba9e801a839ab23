"""Events along a flow: critical points of an observable, crossings of a threshold.

A sign change between two output times brackets a root, which is refined on the flow itself. Two
roots between neighbouring output times cannot be told from none: raise `points` where events may
lie close together on the log clock.
"""

import dataclasses
from typing import Any

FINEST = 1e-14  # of the clock; below it an event's value is the noise of its integration


@dataclasses.dataclass(frozen=True)
class Critical:
    """Times at which a scalar observable stops rising or falling."""

    observable: str

    def value(self, system: Any, state: Any) -> Any:
        return system.slope(self.observable, state)

    @property
    def name(self) -> str:
        return f"{self.observable}_critical"


@dataclasses.dataclass(frozen=True)
class Crosses:
    """Times at which a scalar observable passes through `threshold`."""

    observable: str
    threshold: float

    def value(self, system: Any, state: Any) -> Any:
        return system.observe(state)[self.observable] - self.threshold

    @property
    def name(self) -> str:
        return f"{self.observable}_crosses_{self.threshold:g}"


Event = Critical | Crosses
