"""How many steps of an optimizer it takes to a known solution."""

from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import numpy as np
import optax

from attnflow._checks import at_least, positive
from attnflow.dynamics.batching import traced
from attnflow.dynamics.descent import made_of, stepped
from attnflow.models.interface import Model


def steps_to_solution(
    model: Model,
    optimizer: Callable[..., optax.GradientTransformation],
    target: float,
    cap: int,
    *,
    tuned: Mapping[str, float],
    start: Any = None,
) -> float:
    """The first step after which parameters are within `target` of `model.solution()`; NaN if none
    of `cap` is, or one leaps to infinity. optimizer, tuned, start: as in `descend`."""
    positive("target", target)
    at_least("cap", cap, 1)
    with jax.enable_x64(True):
        numbers = {name: np.float64(x) for name, x in tuned.items()}
        start = model.init() if start is None else start
        count, left = _walk(
            traced(model), optimizer, numbers, start, np.float64(target), np.int64(cap)
        )
        return float(count) if float(left) <= target else np.nan


@eqx.filter_jit
def _walk(model, optimizer, numbers, start, target, cap):
    method, solution = made_of(optimizer, model, numbers), model.solution()

    def left(params):
        return optax.tree.norm(jax.tree.map(lambda x, y: x - y, params, solution))

    def going(carry):
        (params, _), count = carry
        return (count < cap) & (left(params) > target)

    def advance(carry):
        state, count = carry
        return stepped(model, method, state), count + 1

    begin = (start, method.init(start))
    (params, _), count = jax.lax.while_loop(going, advance, (begin, 0))
    return count, left(params)
