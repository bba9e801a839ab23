"""Different speeds for different blocks of parameters, as Optax transformations.

They act on parameters that are a dict of blocks, by the blocks' names, after the optimizer: so they
mean the same for SGD and for Adam.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from attnflow._checks import at_least, choice, positive


def scale_blocks(factors: Mapping[str, float]) -> optax.GradientTransformation:
    """Updates of the named blocks times their factor; the others as they are."""
    for name, factor in factors.items():
        positive(f"factor of {name}", factor)

    def init(params):
        _known(factors, params)
        return optax.EmptyState()

    def update(updates: Any, state: Any, params: Any = None):
        del params
        scaled: Any = {name: factors.get(name, 1.0) * x for name, x in updates.items()}
        return scaled, state

    return optax.GradientTransformation(init, update)


def em_like(
    optimizer: optax.GradientTransformation,
    factor: float = 10.0,
    values: Sequence[str] = ("W_V",),
) -> optax.GradientTransformation:
    """`optimizer`, with a rate `factor` times larger for the blocks of the values."""
    return optax.chain(optimizer, scale_blocks(dict.fromkeys(values, factor)))


class Turn(NamedTuple):
    inner: optax.OptState
    count: jax.Array


def alternating(
    optimizer: optax.GradientTransformation,
    groups: Sequence[Sequence[str]] = (("W_Q", "W_K"), ("W_V", "W_O")),
    every: int = 1,
) -> optax.GradientTransformation:
    """`optimizer`, moving one group of blocks at a time, `every` steps each; blocks in no group
    move always. Momenta of resting blocks go on."""
    at_least("every", every, 1)
    turn_of = {name: turn for turn, names in enumerate(groups) for name in names}

    def init(params):
        _known(turn_of, params)
        return Turn(optimizer.init(params), jnp.zeros((), jnp.int32))

    def update(updates: Any, state: Any, params: Any = None):
        updates, inner = optimizer.update(updates, state.inner, params)
        now = state.count // every % len(groups)
        moved: Any = {
            name: jnp.where(now == turn_of[name], x, jnp.zeros_like(x)) if name in turn_of else x
            for name, x in updates.items()
        }
        return moved, Turn(inner, state.count + 1)

    return optax.GradientTransformation(init, update)


def _known(names, params) -> None:
    for name in names:
        choice("block", name, params)
