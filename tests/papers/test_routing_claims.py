"""The helpers and numbers behind the routing ledger, against the library and by other roads."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import attnflow as af
from attnflow.models.head import Head
from attnflow.papers.routing import _loop, _updates, _values
from attnflow.papers.routing._ledger import Heads, random_heads, random_projected
from attnflow.papers.routing.claims import LEDGER
from tests.papers.reruns import numbers, output_of


def counterexample(name: str):
    found = LEDGER.claims[name].check().counterexample
    assert found is not None
    return found


def as_model(heads: Heads) -> Head:
    """The same head, one sequence, as the library's model."""
    start = {"scores": heads.scores, "values": heads.values, "W_O": heads.output}
    return Head(
        inputs=None,
        targets=heads.targets[None],
        start=start | {"b_O": heads.bias},
        classes=heads.output.shape[-1],
        causal=heads.causal,
    )


@pytest.mark.parametrize("causal", [True, False])
def test_the_plain_heads_are_the_librarys(causal):
    made = random_projected(causal)
    model, plain = made.model(3), made.heads
    with jax.enable_x64(True):
        routing = model.routing({name: jnp.asarray(x) for name, x in model.start.items()})
        routing = jax.tree.map(np.asarray, routing)
    np.testing.assert_allclose(routing.attention, plain.attention[3], atol=1e-14)
    np.testing.assert_allclose(routing.error, plain.errors[3], atol=1e-13)
    np.testing.assert_allclose(routing.compatibility, plain.compatibility[3], atol=1e-12)
    np.testing.assert_allclose(routing.advantage, plain.advantage[3], atol=1e-12)


def test_a_library_step_takes_attention_from_a_helpful_key():
    heads = _updates.three_keys()
    _, after = af.descend(as_model(heads), 1, optax.sgd(0.01), return_params=True)
    moved = heads.replaced(scores=after["scores"]).attention[0] - heads.attention[0]
    assert after["scores"][0, 1] > heads.scores[0, 1]
    assert heads.advantage[0, 1] > 0 > moved[1]


def test_of_two_keys_the_helpful_one_always_gains(rng):
    scores, values = rng.normal(size=(50, 2, 2)), rng.normal(size=(50, 2, 3))
    output, targets = rng.normal(size=(50, 3, 4)), rng.integers(4, size=(50, 2))
    heads = Heads(scores, values, output, np.zeros((50, 4)), targets)
    assert np.all(_updates.drift(heads)[heads.helpful] > 0)


@pytest.mark.parametrize("causal", [True, False])
def test_a_share_of_attention_is_what_the_convexity_row_moves(causal):
    """A share of the attention given away by the scores themselves."""
    heads, share, key = random_heads(causal), 0.3, 0
    goal = (1 - share) * heads.attention + share * np.eye(heads.length)[key]
    hidden = np.where(goal > 0, goal, 1.0)
    moved = heads.replaced(scores=np.log(hidden))
    np.testing.assert_allclose(moved.losses, _updates.shared(heads, key, share), rtol=1e-10)


def test_a_position_where_nothing_moves_though_every_error_is_one():
    still = _values.opposite_labels()
    model = still.model(0)
    with jax.enable_x64(True):
        params = {name: jnp.asarray(x) for name, x in model.start.items()}
        loss, slopes = jax.jit(jax.value_and_grad(model.loss))(params)
        assert max(float(jnp.abs(x).max()) for x in slopes.values()) < 1e-15
        assert float(loss) == pytest.approx(np.log(2))
        np.testing.assert_allclose(np.abs(model.routing(params).error), 1.0)


def test_no_parameters_do_better_on_equal_tokens_with_opposite_labels(rng):
    """So the values rest at the least loss possible, which is not zero."""
    still = _values.opposite_labels()
    for _ in range(50):
        moved = still.stepped(
            {name: rng.normal(size=x.shape) for name, x in still.params.items()}, 1
        )
        assert moved.heads.losses.mean() >= np.log(2) - 1e-12


def test_an_m_step_may_raise_the_loss_only_under_a_large_output():
    """One key, where the step is v − ū: beyond the norm 2 it can overshoot."""

    def rise(norm: float) -> float:
        output = norm * np.array([[1.0, -1.0]]) / np.sqrt(2)
        values = np.array([[0.1], [0.1]])
        heads = Heads(np.zeros((2, 2)), values, output, np.zeros(2), np.array([0, 1]))
        return float(
            _values.fixed_attention_losses(heads, _values.m_step(heads)) - heads.losses.sum()
        )

    assert rise(1.99) < 0 < rise(2.1)


def test_alike_errors_feed_the_most_used_key(rng):
    scores = np.tile(rng.normal(size=5), (5, 1))
    values, output = rng.normal(size=(5, 3)), rng.normal(size=(3, 4))
    heads = Heads(scores, values, output, np.zeros(4), np.zeros(5, int))
    held = _loop.change_of_compatibility(heads, errors_move=False)
    gain = _loop.change_of_advantage(heads, held)[0]
    assert np.argmax(gain) == np.argmax(heads.attention[0])
    np.testing.assert_array_equal(np.argsort(gain), np.argsort(heads.attention[0]))


# what a command prints, by the names under which the counterexample keeps the same numbers
PRINTED = {
    "cross-entropy-example": ("chances", "slopes"),
    "score-update": ("advantage", "change_of_scores"),
    "advantage-any-amount": ("advantage", "loss_before", "loss_with_0.99_on_key_1"),
    "value-update": ("printed_change", "change"),
    "m-step": ("printed_step_over_eta", "m_step"),
    "values-continue": ("loss", "gradient_norm", "errors"),
    "attention-equalized": ("advantage", "score_gradient"),
}


@pytest.mark.parametrize("name", PRINTED)
def test_the_command_of_a_counterexample_shows_its_numbers(name):
    shown = counterexample(name)
    expected = np.concatenate([np.ravel(shown[key]) for key in PRINTED[name]])
    assert numbers(output_of(shown["run"])) == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_other_commands_show_what_they_should():
    seen = numbers(output_of(counterexample("attention-reallocation")["run"]))
    advantage, moved = np.array(seen[:3]), np.array(seen[3:])
    assert advantage[1] > 0 > moved[1]
    before, after, had, has = numbers(output_of(counterexample("feedback-loop")["run"]))
    assert after > before
    assert 0 < has < had
