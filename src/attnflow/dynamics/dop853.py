"""Dormand and Prince's method of order 8(5,3) in NumPy, with the state anywhere on the way.

Between two steps a state comes from one more step, as long as needed, out of the earlier of them:
as exact as the steps themselves, and for many times at once. (SciPy has the method, with an
interpolant that loses two digits; to import it takes longer than to follow most flows.)

Coefficients: Hairer, Nørsett and Wanner, Solving Ordinary Differential Equations I, section II.5.
"""

import functools
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


TABLEAU = np.stack([_row(entries) for entries in A])
ROWS = tuple(row[:stage] for stage, row in enumerate(TABLEAU))
WEIGHTS = _row(B)
ERRORS = np.stack([_row(E5), WEIGHTS - _row(B3)])


class Dop853:
    """Solutions as far as they have been followed, several runs of one size at once: `s[i]` (runs),
    `y[i]` (runs, n) and the slope `f[i]` there after i attempts at a step.

    Each run has steps of its own length; an attempt that fails leaves its run where it was.
    stepped: what `numpy_step` does for this field, if somebody else can do it.
    """

    def __init__(
        self,
        field: Field,
        y: np.ndarray,
        rtol: float,
        atol: float,
        stepped: Callable[..., tuple[np.ndarray, np.ndarray, np.ndarray]] | None = None,
    ):
        self.stepped = stepped or functools.partial(numpy_step, field)
        self.rtol, self.atol = rtol, atol
        s = np.zeros(len(y))
        self.s, self.y, self.f = [s], [y], [field(s, y)]
        self.h = self._first()
        self.grow = np.full(len(y), GROW)
        self.stuck = np.zeros(len(y), bool)  # no step is short enough
        self.steps = 0  # tried

    def _first(self) -> np.ndarray:
        scale = self.atol + self.rtol * np.abs(self.y[0])
        size, slope = (np.linalg.norm(x / scale, axis=-1) for x in (self.y[0], self.f[0]))
        with np.errstate(all="ignore"):
            h = 0.01 * size / slope
        return np.where(np.isfinite(h) & (h > 0), h, FIRST)

    def to(self, end: float, most: int = 10_000) -> bool:
        """Whether all arrived, within so many steps."""
        while ((self.s[-1] < end) & ~self.stuck).any() and self.steps < most:
            self.step(end)
        return bool((self.s[-1] >= end).all())

    def until(self, done: Callable[[np.ndarray], np.ndarray], most: int = 10_000) -> bool:
        """Each run until `done` of its state; whether all arrived, within so many steps."""
        while (waiting := ~done(self.y[-1]) & ~self.stuck).any() and self.steps < most:
            self.step(np.where(waiting, np.inf, self.s[-1]))
        return bool(done(self.y[-1]).all())

    def step(self, end: Any) -> None:
        """One attempt, at most to `end` (of each run, or of all)."""
        s, y, f = self.s[-1], self.y[-1], self.f[-1]
        left = end - s
        last = self.h * (1 + 1e-10) >= left  # no crumb is left over
        h = np.where(last, left, self.h)
        self.stuck |= (h < 10 * np.spacing(s)) & (left > 0)
        h = np.where(self.stuck, 0.0, h)
        new, parts, slope = self.stepped(s, y, h, f)
        error = self._error(y, new, h, parts)
        error[~np.isfinite(slope).all(axis=-1)] = np.inf
        good = error <= 1
        self.steps += 1
        factor = np.full(len(h), SHRINK)
        known = np.isfinite(error)
        factor[known] = SAFETY * np.maximum(error[known], 1e-30) ** -0.125
        factor = np.where(good, np.minimum(self.grow, factor), np.maximum(SHRINK, factor))
        self.h = np.where(good & last, self.h, h * factor)  # a step cut short says little
        self.grow = np.where(good, GROW, 1.0)
        self.s.append(np.where(good, np.where(last & ~self.stuck, end, s + h), s))
        self.y.append(np.where(good[:, None], new, y))
        self.f.append(np.where(good[:, None], slope, f))

    def _error(self, y, new, h: np.ndarray, parts: np.ndarray) -> np.ndarray:
        """In units of what is allowed."""
        scale = self.atol + self.rtol * np.maximum(np.abs(y), np.abs(new))
        fifth, third = np.sum((parts / scale) ** 2, axis=-1)
        mean = np.sqrt((fifth + 0.01 * third) * y.shape[-1])
        return h * fifth / np.where(fifth == 0, 1.0, mean)

    def at(self, s) -> np.ndarray:
        """The states (times, runs, n) at these times of the way so far, the same for all runs or
        (times, runs); O(1) calls of the field."""
        steps = np.asarray(self.s)
        s, run = np.asarray(s, float), np.arange(steps.shape[1])
        s = np.broadcast_to(s[:, None] if s.ndim == 1 else s, (len(s), len(run)))
        left = np.stack([np.searchsorted(steps[:, i], s[:, i], side="right") for i in run], axis=1)
        start = steps[left - 1, run]
        y, f = np.asarray(self.y)[left - 1, run], np.asarray(self.f)[left - 1, run]
        return self.stepped(start, y, s - start, f)[0]


def numpy_step(field: Field, s, y, h, f) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """y(s + h) from y(s) and the slope f there; its error as two sums (2, ...) of the slopes on the
    way, to be multiplied by h; and the slope at the end."""
    size = np.asarray(h)[..., None]
    slopes = np.empty((12, y.size))
    slopes[0] = f.ravel()
    for stage in range(1, 12):
        ahead = y + size * (ROWS[stage] @ slopes[:stage]).reshape(y.shape)
        slopes[stage] = field(s + C[stage] * h, ahead).ravel()
    new = y + size * (WEIGHTS @ slopes).reshape(y.shape)
    return new, (ERRORS @ slopes).reshape(2, *y.shape), field(s + h, new)
