import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnflow.models.head import (
    DiversityTask,
    Head,
    ToyTask,
    closed_gradients,
    first_order,
    pulls,
    scores_and_values,
)
from tests.models.head.test_head import some_head


def differentiated(model, params):
    with jax.enable_x64(True):
        return jax.tree.map(
            np.asarray, jax.grad(model.loss)({k: jnp.asarray(v) for k, v in params.items()})
        )


@pytest.mark.parametrize(
    "build",
    [
        lambda rng: some_head(rng, causal=True),
        lambda rng: some_head(rng, causal=False),
        lambda rng: DiversityTask(length=6).model(),
        lambda rng: ToyTask().model(),
    ],
)
def test_every_block_is_that_of_automatic_differentiation(build, rng):
    model = build(rng)
    closed, truth = closed_gradients(model, model.start), differentiated(model, model.start)
    assert set(closed) == set(truth)
    for name, value in truth.items():
        np.testing.assert_allclose(closed[name], value, rtol=1e-10, atol=1e-15, err_msg=name)


def test_pulls_are_gradients_at_the_quantities_themselves(rng):
    """Scores and values as free parameters of their own: one sequence at a time."""
    model = some_head(rng)
    here = scores_and_values(model, model.start)
    at = pulls(model, model.start)
    for b in range(len(model.targets)):
        start = {"scores": here.scores[b], "values": here.values[b]}
        start |= {name: model.start[name] for name in ("W_O", "b_O")}
        free = Head(inputs=None, targets=model.targets[[b]], start=start, classes=5)
        truth = differentiated(free, start)
        share = len(model.targets)  # the mean over all sequences
        np.testing.assert_allclose(at.scores[b] * share, truth["scores"], atol=1e-14)
        np.testing.assert_allclose(at.values[b] * share, truth["values"], atol=1e-14)


@pytest.mark.parametrize("free", [False, True])
def test_the_error_of_the_first_order_shrinks_as_the_square_of_the_step(free, rng):
    model = DiversityTask(length=6).model() if free else some_head(rng)
    before, gradient = scores_and_values(model, model.start), closed_gradients(model, model.start)
    misses = []
    for rate in (1e-2, 1e-3):
        moved = {name: x - rate * gradient[name] for name, x in model.start.items()}
        after, change = scores_and_values(model, moved), first_order(model, model.start, rate)
        misses.append(np.abs(after.scores - before.scores - change.scores).max())
        np.testing.assert_allclose(after.values - before.values, change.values, atol=1e-15)
    if free:
        assert max(misses) < 1e-15  # free scores move by their gradient and nothing else
    else:
        assert misses[1] < 0.02 * misses[0]


def test_rates_by_block(rng):
    model = some_head(rng)
    assert np.all(first_order(model, model.start, {"W_V": 1.0}).scores == 0)
    assert np.any(first_order(model, model.start, {"W_V": 1.0}).values != 0)
