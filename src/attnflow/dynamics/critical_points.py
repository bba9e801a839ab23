"""Every critical point of the interaction norm along a two-token flow."""

import itertools
import math
from typing import Any, NamedTuple

import numpy as np

from attnflow._checks import at_least, choice
from attnflow.dynamics.events import Critical

LARGE_GAPS = 60.0


class Phase(NamedTuple):
    name: str
    start: float
    end: float


class CriticalPoints(NamedTuple):
    """Critical times of |M|², its values there, and the phases they separate.

    `heating`: the norm falls from its start; `forging`: it rises; `reheating`: it falls again.
    """

    times: np.ndarray
    norm2: np.ndarray
    phases: tuple[Phase, ...]

    @property
    def shape(self) -> str:
        """ "monotone", "U" (one trough) or "W" (two troughs)."""
        return {0: "monotone", 1: "U", 3: "W"}.get(len(self.times), f"{len(self.times)} turns")


def two_token_critical_points(
    model: Any,
    *,
    points: int = 2000,
    rtol: float = 1e-12,
    solver: str = "explicit",
    engine: str = "auto",
) -> CriticalPoints:
    """All critical points of |M|² of a `TwoToken` flow, to `rtol`.

    Complete, up to the resolution `points` on the path's own clock: the flow is followed until both
    logit gaps are negative. That region cannot be left, and d|M|²/dt = −2 Σ ξ_i ∂ℒ/∂ξ_i is positive
    in it. Gaps up to about 600 can be followed; beyond, the times themselves overflow.

    engine: "host" (no compiler), "compiled", or "auto": the host unless another solver is asked
    for.
    """
    choice("engine", engine, ("auto", "host", "compiled"))
    at_least("points", points, 2)
    if engine == "host" or (engine == "auto" and solver == "explicit"):
        from attnflow.dynamics.host import norm_turns

        times, heights, falling = norm_turns(model.reduced(None), points, rtol)
    else:
        times, heights, falling = _compiled_turns(model, points, rtol, solver)
    edges = [0.0, *times.tolist(), math.inf]
    phases = []
    for start, end in itertools.pairwise(edges):
        name = ("reheating" if start > 0 else "heating") if falling else "forging"
        phases.append(Phase(name, start, end))
        falling = not falling
    return CriticalPoints(times, heights, tuple(phases))


def _compiled_turns(model, points: int, rtol: float, solver: str):
    import jax

    from attnflow.dynamics.batching import traced
    from attnflow.dynamics.compiled import SOLVERS, solve
    from attnflow.dynamics.compiled_events import locate
    from attnflow.dynamics.flow import raise_on_failure
    from attnflow.dynamics.starts import Start

    tolerances = (np.float64(rtol), np.float64(0.1 * rtol))
    gaps = abs(model.c0) + abs(model.c1) + 1
    # Of the right order, so that few attempts are needed; but the times of a path that is too long
    # overflow where gaps are large, and then it is approached from below.
    length = gaps / (1 - model.p) ** 3 if gaps < LARGE_GAPS else 1 / (1 - model.p) ** 2
    with jax.enable_x64(True):
        lifted = traced(model)
        while True:
            grid = np.linspace(0, length, points)
            solved = solve(
                lifted, Start(), grid, tolerances, SOLVERS[solver], 100_000, "arc", lead=False
            )
            raise_on_failure(solved, grid[-1], lead=False)
            if (solved["observed"]["xi"][-1] < 0).all():
                break
            length *= 1.5
        found = locate(
            Critical("norm2"),
            lifted,
            Start(),
            grid,
            solved["states"],
            tolerances,
            "arc",
            lead=False,
        )
    norm2 = solved["observed"]["norm2"]
    times, heights = found["norm2_critical_time"][1], found["norm2_critical_value"][1]
    return times, heights, bool(norm2[1] < norm2[0])
