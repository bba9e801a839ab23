"""A flow on the host whose right-hand side is a small compiled function.

For models without a NumPy form. To compile a gradient takes a fraction of a second where a solver
around it takes several.
"""

import functools
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from attnflow.dynamics.batching import prng_key, traced
from attnflow.dynamics.events import Event
from attnflow.dynamics.starts import Start
from attnflow.dynamics.system import system_of
from attnflow.dynamics.trees import Packing
from attnflow.models.interface import Model


class TracedSystem:
    """Rows of states are taken one by one."""

    def __init__(self, model: Model, start: Start, path: str):
        with self.precision():
            given = (traced(model), start._replace(key=prng_key(start.key)))
            numbers, fixed = eqx.partition(given, eqx.is_array)
            leaves, shape = jax.tree.flatten(fixed, is_leaf=lambda x: x is None)
            self.numbers = jax.device_put(jax.tree.leaves(numbers))
            self.program = _programs(tuple(leaves), shape, jax.tree.structure(numbers), path)
            self.packing = Packing(jax.tree.map(np.asarray, self.program("init")(self.numbers)))

    def precision(self):
        """A context for all calls: JAX in double precision."""
        return jax.enable_x64(True)

    def init(self) -> np.ndarray:
        return self.packing.packed(self.packing.example)

    def tree(self, y: np.ndarray) -> Any:
        return self.packing.unpacked(y)

    def velocity(self, s: Any, y: np.ndarray) -> np.ndarray:
        program = self.program("velocity")
        if y.ndim == 1:
            return np.asarray(program(self.numbers, y, s))
        return np.stack([program(self.numbers, *row) for row in zip(y, s, strict=True)])

    def observe(self, y: np.ndarray) -> Any:
        return self._of_rows("observe", y)

    def slope(self, name: str, y: np.ndarray) -> Any:
        return self._of_rows(f"slope {name}", y)

    def knows(self, event: Event) -> bool:
        del event
        return True

    def _of_rows(self, name: str, y: np.ndarray) -> Any:
        program = self.program(name)
        if y.ndim == 1:
            return jax.tree.map(np.asarray, program(self.numbers, y))
        return jax.tree.map(lambda *x: np.stack(x), *[program(self.numbers, row) for row in y])


@functools.lru_cache(maxsize=64)
def _programs(fixed: tuple[Any, ...], shape: Any, numbered: Any, path: str):
    """Compiled functions of the model's numbers and a state as one vector, by name; other numbers
    do not compile again."""

    def system(numbers):
        given = jax.tree.unflatten(numbered, numbers), jax.tree.unflatten(shape, fixed)
        model, start = eqx.combine(*given)
        return system_of(model, start, path)

    def velocity(numbers, y, s):
        flow = system(numbers)
        return ravel_pytree(flow.clock_field(s, _tree(flow, y), None))[0]

    def observe(numbers, y):
        flow = system(numbers)
        return flow.observe(_tree(flow, y))

    @functools.cache
    def program(name: str):
        what, _, observable = name.partition(" ")
        if what == "init":
            return jax.jit(lambda numbers: system(numbers).init())
        if what == "slope":

            def slope(numbers, y):
                flow = system(numbers)
                return flow.slope(observable, _tree(flow, y))

            return jax.jit(slope)
        return jax.jit({"velocity": velocity, "observe": observe}[what])

    return program


def _tree(flow: Any, y: Any) -> Any:
    return ravel_pytree(flow.init())[1](y)
