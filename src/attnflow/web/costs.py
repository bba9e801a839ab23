"""How long a view will take, from those computed before: which is why nobody has to declare it."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping

FIELD = 3.0  # seconds that a field may add when it changes: a program is compiled anew
KEPT = 100  # measured questions of a view


class Costs:
    """Expected seconds of a question: those of a measured one, and `FIELD` for what differs.

    The default values count as measured, and as quick: a view begins with them."""

    def __init__(self) -> None:
        self.measured: dict[str, OrderedDict[tuple, float]] = {}

    def learn(self, view: str, query: Iterable[tuple[str, str]], seconds: float) -> None:
        known = self.measured.setdefault(view, OrderedDict())
        key = tuple(sorted(query))
        known.pop(key, None)
        known[key] = seconds
        while len(known) > KEPT:
            known.popitem(last=False)

    def expected(self, view: str, query: Iterable[tuple[str, str]]) -> float:
        asked = dict(query)
        known = self.measured.get(view, {})
        start = min(FIELD, known.get((), FIELD)) + FIELD * len(asked)
        near = (seconds + FIELD * distance(asked, dict(key)) for key, seconds in known.items())
        return min([start, *near])


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
    return abs(a - b) / (abs(a) + abs(b)) if abs(a) + abs(b) > 0 else 0.0
