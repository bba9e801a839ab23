"""Phases of a norm in training: it may fall before it grows."""

from typing import NamedTuple

import numpy as np

from attnflow._checks import inside


class Phase(NamedTuple):
    """`heating`: the norm falls from its start; `forging`: it grows; `cooling`: it still grows, but
    slowly; `resting`: it never moved."""

    name: str
    start: float
    end: float


def norm_phases(
    times: np.ndarray, norms: np.ndarray, *, tolerance: float = 0.01, slow: float = 0.1
) -> list[Phase]:
    """Of norms (time,) recorded at increasing times. There is heating if the norm falls by more
    than `tolerance` of its start to its least value; cooling begins when its speed falls below
    `slow` of the greatest speed of its growth for good. A norm that ends falling ends in heating.

    >>> import numpy as np
    >>> [phase.name for phase in norm_phases(np.arange(5), np.array([2.0, 1.0, 3.0, 5.0, 5.01]))]
    ['heating', 'forging', 'cooling']
    """
    inside("tolerance", tolerance, 0.0, 1.0, "it is a share of the first norm")
    inside("slow", slow, 0.0, 1.0, "it is a share of the greatest speed")
    times, norms = np.asarray(times, float), np.asarray(norms, float)
    if times.ndim != 1 or times.shape != norms.shape or len(times) < 2:
        raise ValueError("phases need two or more times with one norm each")
    if not (np.diff(times) > 0).all() or not np.isfinite(norms).all():
        raise ValueError("phases need increasing times and finite norms")
    least = int(np.argmin(norms))
    phases = []
    if norms[least] >= (1 - tolerance) * norms[0]:
        least = 0
    else:
        phases.append(Phase("heating", times[0], times[least]))
    if least == len(times) - 1:
        return phases
    if norms[least:].max() <= (1 + tolerance) * norms[least]:
        return [*phases, Phase("cooling" if phases else "resting", times[least], times[-1])]
    speed = np.diff(norms[least:]) / np.diff(times[least:])
    fast = np.flatnonzero(speed > slow * speed.max())
    turn = least + int(fast[-1]) + 1
    phases.append(Phase("forging", times[least], times[turn]))
    if turn < len(times) - 1:
        phases.append(Phase("cooling", times[turn], times[-1]))
    return phases
