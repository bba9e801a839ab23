"""How long a view will take, from those computed before: which is why nobody has to declare it."""

import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

FIELD = 3.0  # seconds that a field may add when it changes: a program is compiled anew
KEPT = 40  # measured questions of a view: each is compared with what is asked


class Costs:
    """Expected seconds of a question: those of a measured one, and `FIELD` for what differs.

    The default values count as measured, and as quick: a view begins with them."""

    def __init__(self) -> None:
        self.measured: dict[str, OrderedDict[tuple, float]] = {}
        self.usual: dict[str, dict[str, str]] = {}

    def compare_with(self, forms: Iterable[Mapping[str, Any]]) -> None:
        """From now on, a fractional number that is near its default makes a small difference."""
        self.usual = {
            form["name"]: {
                field["name"]: str(field["default"])
                for field in form["fields"]
                if field["kind"] == "slider" and not field["whole"]
            }
            for form in forms
        }

    def learn(self, view: str, query: Iterable[tuple[str, str]], seconds: float) -> None:
        known = self.measured.setdefault(view, OrderedDict())
        key = tuple(sorted(query))
        known.pop(key, None)
        known[key] = seconds
        while len(known) > KEPT:
            known.popitem(last=False)

    def expected(self, view: str, query: Iterable[tuple[str, str]]) -> float:
        usual = self.usual.get(view, {})
        asked = usual | dict(query)
        known = dict(self.measured.get(view, {}))
        known[()] = min(FIELD, known.get((), FIELD))
        return min(
            seconds + FIELD * distance(asked, usual | dict(key)) for key, seconds in known.items()
        )


def distance(one: Mapping[str, str], other: Mapping[str, str]) -> float:
    """Fields that differ; two numbers differ by less than a whole field if they are close.

    >>> distance({"p": "0.5", "d": "3"}, {"p": "0.5"})
    1.0
    >>> distance({"seed": "3"}, {"seed": "5"})
    0.25
    """
    return sum(_apart(one.get(name), other.get(name)) for name in one.keys() | other.keys())


def _apart(one: str | None, other: str | None) -> float:
    if one == other:
        return 0.0
    try:
        a, b = float(one or ""), float(other or "")
    except ValueError:
        return 1.0
    size = abs(a) + abs(b)
    if not math.isfinite(size):
        return 1.0
    return abs(a - b) / size if size > 0 else 0.0
