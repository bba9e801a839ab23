import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnflow.tasks.induction import BOS, Induction


@st.composite
def tasks(draw):
    vocabulary = draw(st.integers(1, 30))
    context = draw(st.integers(1, vocabulary))
    return Induction(vocabulary, context, draw(st.booleans()), draw(st.floats(0, 1)))


@settings(max_examples=60, deadline=None)
@given(tasks(), st.integers(0, 2**32), st.integers(0, 10**6), st.integers(1, 20))
def test_every_sequence_is_one_of_the_task(task, seed, step, size):
    tokens, targets, weights = task.batch(seed, step, size)
    assert tokens.shape == targets.shape == (size, task.length)
    assert weights.shape == (task.length,)
    assert (tokens[:, 0] == BOS).all()
    np.testing.assert_array_equal(targets[:, :-1], tokens[:, 1:])
    shift = 0 if task.same_target else task.vocabulary
    for row, answer in zip(tokens.tolist(), targets[:, -1].tolist(), strict=True):
        symbols, query = row[1:-1], row[-1]
        assert len(set(symbols)) == task.context
        assert set(symbols) <= set(range(1, task.vocabulary + 1))
        i = symbols.index(query - shift)
        assert answer == (symbols[i + 1] if i + 1 < task.context else query)
    assert max(tokens.max(), targets.max()) < task.tokens


def test_the_published_sizes():
    same, other = Induction(), Induction(same_target=False)
    assert (same.length, same.tokens, other.tokens) == (12, 51, 101)
    assert list(same.random_positions) == list(range(1, 10))
    np.testing.assert_allclose(same.weights, [0.2 / 11] * 11 + [1])
    assert Induction(random_weight=0).weights.tolist() == [0] * 11 + [1]


def test_a_context_of_one():
    """Nothing else can come: the query after the only symbol is also its answer."""
    tokens, targets, _ = Induction(1, 1).batch(0, 0, 2)
    assert tokens.tolist() == [[0, 1, 1]] * 2
    assert targets.tolist() == [[1, 1, 1]] * 2
    tokens, targets, _ = Induction(1, 1, same_target=False).batch(0, 0, 1)
    assert (tokens.tolist(), targets.tolist()) == ([[0, 1, 2]], [[1, 2, 2]])


def test_all_symbols_and_places_are_equally_likely():
    task = Induction(vocabulary=6, context=3)
    tokens, targets, _ = task.batch(1, 2, 60_000)
    for place in range(1, 4):
        counts = np.bincount(tokens[:, place], minlength=7)[1:]
        np.testing.assert_allclose(counts / 60_000, 1 / 6, atol=0.01)
    chosen = (tokens[:, 1:4] == tokens[:, -1:]).argmax(1)
    np.testing.assert_allclose(np.bincount(chosen) / 60_000, 1 / 3, atol=0.01)
    itself = (targets[:, -1] == tokens[:, -1]).mean()
    assert itself == pytest.approx(1 / 3, abs=0.01)


def test_batches_depend_on_seed_and_step_alone():
    task = Induction()
    late, early = task.batch(3, 9, 32), task.batch(3, 8, 32)
    again = task.batch(3, 9, 32)
    np.testing.assert_array_equal(late.tokens, again.tokens)
    np.testing.assert_array_equal(late.targets, again.targets)
    assert (late.tokens != early.tokens).any()
    assert (late.tokens != task.batch(4, 9, 32).tokens).any()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"vocabulary": 5, "context": 6}, "do not repeat: 6"),
        ({"context": 0}, "context"),
        ({"vocabulary": 0}, "vocabulary"),
        ({"random_weight": -0.1}, r"\[0, 1\]"),
        ({"random_weight": float("nan")}, r"\[0, 1\]"),
    ],
)
def test_bad_tasks(fields, message):
    with pytest.raises(ValueError, match=message):
        Induction(**fields)


def test_bad_batches():
    with pytest.raises(ValueError, match="size"):
        Induction().batch(0, 0, 0)
    with pytest.raises(ValueError, match="seed"):
        Induction().batch(-1, 0, 4)
    with pytest.raises(ValueError, match="step"):
        Induction().batch(0, -1, 4)
