"""Dormand and Prince's method of order 8(5,3) in NumPy, with the state anywhere on the way.

Between two steps a state comes from one more step, as long as needed, out of the earlier of them:
as exact as the steps themselves, and for many times at once. (SciPy has the method, with an
interpolant that loses two digits; to import it takes longer than to follow most flows.)

Coefficients: Hairer, Nørsett and Wanner, Solving Ordinary Differential Equations I, section II.5.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

Field = Callable[[Any, np.ndarray], np.ndarray]  # s (...), y (..., n) -> dy/ds (..., n)

FIRST = 1e-4  # length of the first step where the size of its slope tells nothing
SAFETY, SHRINK, GROW = 0.9, 0.2, 8.0

C = np.array([
    0, 0.05260015195876773, 0.0789002279381516, 0.1183503419072274, 0.2816496580927726, 1 / 3,
    0.25, 4 / 13, 127 / 195, 0.6, 6 / 7, 1,
])  # fmt: skip
A = (
    {},
    {0: 0.05260015195876773},
    {0: 0.0197250569845379, 1: 0.0591751709536137},
    {0: 0.02958758547680685, 2: 0.08876275643042054},
    {0: 0.2413651341592667, 2: -0.8845494793282861, 3: 0.924834003261792},
    {0: 1 / 27, 3: 0.17082860872947386, 4: 0.12546768756682242},
    {0: 19 / 512, 3: 0.17025221101954405, 4: 0.06021653898045596, 5: -9 / 512},
    {0: 0.03709200011850479, 3: 0.17038392571223998, 4: 0.10726203044637328,
     5: -0.015319437748624402, 6: 0.008273789163814023},
    {0: 0.6241109587160757, 3: -3.3608926294469414, 4: -0.868219346841726,
     5: 27.59209969944671, 6: 20.154067550477894, 7: -43.48988418106996},
    {0: 0.47766253643826434, 3: -2.4881146199716677, 4: -0.590290826836843,
     5: 21.230051448181193, 6: 15.279233632882423, 7: -33.28821096898486,
     8: -0.020331201708508627},
    {0: -0.9371424300859873, 3: 5.186372428844064, 4: 1.0914373489967295,
     5: -8.149787010746927, 6: -18.52006565999696, 7: 22.739487099350505,
     8: 2.4936055526796523, 9: -3.0467644718982196},
    {0: 2.273310147516538, 3: -10.53449546673725, 4: -2.0008720582248625,
     5: -17.9589318631188, 6: 27.94888452941996, 7: -2.8589982771350235,
     8: -8.87285693353063, 9: 12.360567175794303, 10: 0.6433927460157636},
)  # fmt: skip
B = {0: 0.054293734116568765, 5: 4.450312892752409, 6: 1.8915178993145003, 7: -5.801203960010585,
     8: 0.3111643669578199, 9: -0.1521609496625161, 10: 0.20136540080403034,
     11: 0.04471061572777259}  # fmt: skip
E5 = {0: 0.01312004499419488, 5: -1.2251564463762044, 6: -0.4957589496572502,
      7: 1.6643771824549864, 8: -0.35032884874997366, 9: 0.3341791187130175,
      10: 0.08192320648511571, 11: -0.022355307863886294}  # fmt: skip
B3 = {0: 31 / 127, 8: 0.7338466882816118, 11: 3 / 136}  # of order 3, to be compared with B


def _row(entries: dict[int, float]) -> np.ndarray:
    row = np.zeros(12)
    row[list(entries)] = list(entries.values())
    return row


ROWS = tuple(_row(entries)[:stage] for stage, entries in enumerate(A))
WEIGHTS = _row(B)
ERRORS = np.stack([_row(E5), WEIGHTS - _row(B3)])


class Dop853:
    """A solution as far as it has been followed: `s[i]`, `y[i]` and the slope `f[i]` there.

    runs: as many problems of one size, one after the other in y, with common steps that are short
    enough for each.
    """

    def __init__(
        self, field: Field, s: float, y: np.ndarray, rtol: float, atol: float, runs: int = 1
    ):
        self.field, self.rtol, self.atol, self.runs = field, rtol, atol, runs
        self.s, self.y, self.f = [s], [y], [field(np.float64(s), y)]
        self.h = self._first()
        self.steps = 0  # tried

    def _first(self) -> float:
        scale = self.atol + self.rtol * np.abs(self.y[0])
        size, slope = np.linalg.norm(self.y[0] / scale), np.linalg.norm(self.f[0] / scale)
        with np.errstate(all="ignore"):
            h = 0.01 * size / slope
        return float(h) if np.isfinite(h) and h > 0 else FIRST

    def to(self, end: float, most: int) -> bool:
        """Whether it arrived, within so many steps."""
        while self.s[-1] < end:
            if self.steps >= most or not self.step(end):
                return False
        return True

    def step(self, end: float = np.inf) -> bool:
        """One step, at most to `end`; whether there is a length at which it succeeds."""
        s, y, f = self.s[-1], self.y[-1], self.f[-1]
        grow = GROW
        while True:
            last = s + self.h >= end
            h = end - s if last else self.h
            if h < 10 * np.spacing(s):
                return False
            new, stages = _stepped(self.field, s, y, h, f)
            error = self._error(y, new, h, stages)
            self.steps += 1
            if error <= 1:
                slope = self.field(np.float64(s + h), new)
                if np.isfinite(slope).all():
                    break
            grow = 1.0
            self.h = h * (max(SHRINK, SAFETY * error**-0.125) if 1 < error < np.inf else SHRINK)
        if not last:  # a step cut short says little of the next one's length
            self.h = h * min(grow, SAFETY * max(error, 1e-30) ** -0.125)
        self.s.append(end if last else s + h)
        self.y.append(new)
        self.f.append(slope)
        return True

    def _error(self, y, new, h: float, stages: np.ndarray) -> float:
        """In units of what is allowed."""
        scale = self.atol + self.rtol * np.maximum(np.abs(y), np.abs(new))
        parts = (ERRORS @ stages / scale).reshape(2, self.runs, -1)
        fifth, third = np.sum(parts**2, axis=2)
        mean = np.sqrt((fifth + 0.01 * third) * parts.shape[2])
        return float(np.max(h * fifth / np.where(fifth == 0, 1.0, mean)))

    def at(self, s) -> np.ndarray:
        """The states at these times of the way so far; O(1) calls of the field."""
        s = np.asarray(s, float)
        left = np.searchsorted(self.s, s, side="right") - 1
        start = np.asarray(self.s)[left]
        y, f = np.asarray(self.y)[left], np.asarray(self.f)[left]
        return _stepped(self.field, start, y, s - start, f)[0]


def _stepped(field: Field, s, y, h, f) -> tuple[np.ndarray, np.ndarray]:
    """y(s + h) from y(s) and the slope f there, and the twelve slopes on the way."""
    h = np.asarray(h)[..., None]
    slopes = np.empty((12, y.size))
    slopes[0] = f.ravel()
    for stage in range(1, 12):
        ahead = y + h * (ROWS[stage] @ slopes[:stage]).reshape(y.shape)
        slopes[stage] = field(s + C[stage] * h[..., 0], ahead).ravel()
    return y + h * (WEIGHTS @ slopes).reshape(y.shape), slopes
