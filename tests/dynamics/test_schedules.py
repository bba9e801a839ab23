import jax.numpy as jnp
import numpy as np
import optax
import pytest

from attnflow.dynamics.schedules import alternating, em_like, scale_blocks

PARAMS = {"W_Q": jnp.ones(2), "W_V": jnp.ones(2)}
SLOPES = {"W_Q": jnp.array([1.0, 2.0]), "W_V": jnp.array([3.0, 4.0])}


def steps(optimizer, count):
    state, seen = optimizer.init(PARAMS), []
    for _ in range(count):
        updates, state = optimizer.update(SLOPES, state, PARAMS)
        seen.append(updates)
    return seen


@pytest.mark.parametrize("inner", [optax.sgd(0.1), optax.adam(0.1)])
def test_em_like_only_speeds_up_the_values(inner):
    (plain,), (fast,) = steps(inner, 1), steps(em_like(inner, 10.0), 1)
    np.testing.assert_array_equal(fast["W_Q"], plain["W_Q"])
    np.testing.assert_allclose(fast["W_V"], 10 * plain["W_V"])


def test_turns_are_taken():
    turns = steps(alternating(optax.sgd(0.1), (("W_Q",), ("W_V",)), every=2), 5)
    moving = [[name for name in PARAMS if bool(jnp.any(x[name] != 0))] for x in turns]
    assert moving == [["W_Q"], ["W_Q"], ["W_V"], ["W_V"], ["W_Q"]]


def test_bad_factors_and_names_are_refused():
    with pytest.raises(ValueError, match="factor of W_V must be positive"):
        scale_blocks({"W_V": 0.0})
    with pytest.raises(ValueError, match="block 'W_X' is not known"):
        scale_blocks({"W_X": 2.0}).init(PARAMS)
    with pytest.raises(ValueError, match="every"):
        alternating(optax.sgd(0.1), every=0)
