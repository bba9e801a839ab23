"""Short descents as one compiled program, fast enough to drag a slider.

`descend` returns to Python between records, for checkpoints, progress and Ctrl-C, and makes a
Dataset: about 10 ms a call. Here all records are one call and the arrays come back as they are.
"""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from attnflow.dynamics.batching import traced
from attnflow.dynamics.descent import made_of, stepped
from attnflow.models.interface import Model


def recorded_steps(steps: int, records: int) -> np.ndarray:
    """`records` steps from 0 to `steps`, even in log(1 + step); early ones may repeat, so that
    another number of steps has the same shape."""
    return np.rint(np.expm1(np.linspace(0, np.log1p(steps), records))).astype(int)


def descents(
    model: Model, make: Callable[..., Any], numbers: Sequence[dict[str, float]], steps: np.ndarray
) -> list[dict[str, np.ndarray]]:
    """Of each set of numbers, the observables at the given steps, the first of which is 0; not
    finite once a descent has diverged. `make` gives the optimizer, as in `descend`; it must be a
    function of a module, or every call compiles."""
    with jax.enable_x64(True):
        given = {name: np.array([x[name] for x in numbers], float) for name in numbers[0]}
        found = jax.tree.map(np.asarray, _run(traced(model), make, given, np.diff(steps)))
    return [{name: x[i] for name, x in found.items()} for i in range(len(numbers))]


@eqx.filter_jit
def _run(model, make, numbers, counts):
    return jax.vmap(lambda one: _descent(model, made_of(make, model, one), counts))(numbers)


def _descent(model, optimizer, counts):
    def step(_, state):
        return stepped(model, optimizer, state)

    def record(state, count):
        state = jax.lax.fori_loop(0, count, step, state)
        return state, model.observe(state[0])

    params = model.init()
    first = model.observe(params)
    _, later = jax.lax.scan(record, (params, optimizer.init(params)), counts)
    return jax.tree.map(lambda x, rest: jnp.concatenate([x[None], rest]), first, later)
