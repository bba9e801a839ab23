"""A flow on the host whose right-hand side is a small compiled function.

For models without a NumPy form. To compile a gradient takes a fraction of a second where a solver
around it takes several.
"""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from attnflow.dynamics.batching import Batch, for_each_run
from attnflow.dynamics.dop853 import ERRORS, TABLEAU, WEIGHTS, C
from attnflow.dynamics.events import Event
from attnflow.dynamics.system import system_of
from attnflow.dynamics.trees import Packing


class TracedSystem:
    """Of one run, or of all runs of a batch at once. States are taken one after the other."""

    def __init__(self, batch: Batch, path: str):
        with self.precision():
            numbers, fixed = eqx.partition((batch.model, batch.start), eqx.is_array)
            leaves, shape = jax.tree.flatten(fixed, is_leaf=lambda x: x is None)
            structure = jax.tree.structure(numbers)
            self.numbers = jax.device_put(jax.tree.leaves(numbers))
            self.program = _programs(tuple(leaves), shape, structure, path, batch.lead)
            start = jax.tree.map(np.asarray, self.program("init")(self.numbers))
            self.packing = Packing(jax.tree.map(lambda x: x[0], start) if batch.lead else start)
            self.start = self.packing.packed(start)

    def precision(self):
        """A context for all calls: JAX in double precision."""
        return jax.enable_x64(True)

    def init(self) -> np.ndarray:
        return self.start

    def tree(self, y: np.ndarray) -> Any:
        return self.packing.unpacked(y)

    def velocity(self, s: Any, y: np.ndarray) -> np.ndarray:
        return self._each("velocity", y, np.asarray(s))

    def stepped(self, *state: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What `dop853.numpy_step` does, in one compiled call."""
        s, y, h, f = state
        new, parts, slope = self._each("stepped", y, s, h, f)
        return new, np.moveaxis(parts, -2, 0), slope

    def jacobian(self, s: Any, y: np.ndarray) -> np.ndarray:
        return self._each("jacobian", y, np.asarray(s))

    def observe(self, y: np.ndarray) -> Any:
        return self._each("observe", y)

    def slope(self, name: str, y: np.ndarray) -> Any:
        return self._each(f"slope {name}", y)

    def knows(self, event: Event) -> bool:
        del event
        return True

    def _each(self, name: str, y: np.ndarray, *rest: np.ndarray) -> Any:
        program, own = self.program(name), self.start.shape
        lead = y.shape[: y.ndim - len(own)]
        if not lead:
            return jax.tree.map(np.asarray, program(self.numbers, y, *rest))
        if not y.size:  # the shapes alone
            state = [np.zeros(x.shape[len(lead) :]) for x in (y, *rest)]
            shapes = jax.eval_shape(program, self.numbers, *state)
            return jax.tree.map(lambda x: np.zeros(lead + x.shape), shapes)
        states = [x.reshape(-1, *x.shape[len(lead) :]) for x in (y, *rest)]
        found = [program(self.numbers, *state) for state in zip(*states, strict=True)]
        return jax.tree.map(lambda *x: np.stack(x).reshape(lead + x[0].shape), *found)


@functools.lru_cache(maxsize=64)
def _programs(fixed: tuple[Any, ...], shape: Any, numbered: Any, path: str, lead: bool):
    """Compiled functions of the model's numbers and a state as one vector, by name; other numbers
    do not compile again."""

    def compiled(function):
        def one(model, start, *state):
            flow = system_of(model, start, path)
            if not state:
                return flow.init()
            return function(flow, ravel_pytree(flow.init())[1], *state)

        def every(numbers, *state):
            given = jax.tree.unflatten(numbered, numbers), jax.tree.unflatten(shape, fixed)
            return (for_each_run(one) if lead else one)(*eqx.combine(*given), *state)

        return jax.jit(every)

    @functools.cache
    def program(name: str):
        what, _, observable = name.partition(" ")
        functions = {
            "init": None,
            "velocity": _velocity,
            "stepped": _stepped,
            "jacobian": jax.jacfwd(_velocity, argnums=2),
            "observe": lambda flow, tree, y: flow.observe(tree(y)),
            "slope": lambda flow, tree, y: flow.slope(observable, tree(y)),
        }
        return compiled(functions[what])

    return program


def _velocity(flow, tree, y, s):
    return ravel_pytree(flow.clock_field(s, tree(y), None))[0]


def _stepped(flow, tree, y, s, h, f):
    """The velocity is in a loop over the stages: it is compiled once, not twelve times."""

    def stage(slopes, what):
        i, row, c = what
        ahead = y + h * (row @ slopes)
        return slopes.at[i].set(_velocity(flow, tree, ahead, s + c * h)), None

    rows = np.pad([*TABLEAU[1:], WEIGHTS], ((0, 0), (0, 1)))  # the last slope is that of the end
    slopes = jnp.zeros((13, len(y))).at[0].set(f)
    slopes, _ = jax.lax.scan(stage, slopes, (np.arange(1, 13), rows, np.append(C[1:], 1.0)))
    return y + h * (WEIGHTS @ slopes[:12]), ERRORS @ slopes[:12], slopes[12]
