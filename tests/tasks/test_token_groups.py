import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnflow.tasks.token_groups import CLS, TokenGroups

SMALL = TokenGroups(vocabulary=6, groups=3, drawn=2)


@st.composite
def tasks(draw):
    groups, size = draw(st.integers(2, 5)), draw(st.integers(1, 8))
    return TokenGroups(groups * size, groups, draw(st.integers(1, size)))


@settings(max_examples=60, deadline=None)
@given(tasks(), st.integers(0, 2**32), st.integers(0, 10**6), st.integers(1, 20))
def test_every_input_is_of_its_group(task, seed, step, size):
    tokens, labels = task.batch(seed, step, size)
    assert tokens.shape == (size, task.length)
    assert (tokens[:, -1] == CLS).all()
    assert tokens[:, :-1].min() >= 1
    assert tokens.max() < task.tokens
    np.testing.assert_array_equal(
        task.group(tokens[:, :-1]), np.tile(labels[:, None], (1, task.drawn))
    )
    assert all(len(set(row)) == task.length for row in tokens.tolist())
    one, other = task.pairs(seed, step, size)
    assert (one.labels != other.labels).all()
    np.testing.assert_array_equal(task.group(other.tokens[:, 0]), other.labels)


def test_a_whole_group_is_drawn_by_default():
    task = TokenGroups()
    tokens, labels = task.batch(0, 0, 64)
    assert (task.tokens, task.length) == (41, 11)
    for row, label in zip(tokens, labels, strict=True):
        assert sorted(row[:-1]) == list(range(10 * label + 1, 10 * label + 11))
    assert (np.bincount(labels) > 0).all()


def test_batches_depend_on_seed_and_step_alone():
    task = TokenGroups()
    first = task.batch(3, 9, 32)
    task.batch(3, 8, 32)
    np.testing.assert_array_equal(first.tokens, task.batch(3, 9, 32).tokens)
    assert (first.tokens != task.batch(3, 8, 32).tokens).any()


def test_other_labels_are_equally_likely():
    one, other = TokenGroups().pairs(0, 0, 30_000)
    counts = np.bincount((other.labels - one.labels) % 4, minlength=4) / 30_000
    np.testing.assert_allclose(counts, [0, 1 / 3, 1 / 3, 1 / 3], atol=0.02)


def test_one_token_is_exchanged():
    tokens, others = np.array([[1, 2, 0]]), np.array([[5, 6, 0]])
    found = SMALL.swap(tokens, np.array([[0, 1]]), others, np.array([[1, 1]]))
    assert found.tolist() == [[[6, 2, 0], [1, 6, 0]]]
    assert tokens.tolist() == [[1, 2, 0]]


def test_shuffling_keeps_the_content_and_cls_last():
    task = TokenGroups()
    one, other = task.pairs(0, 0, 50)
    places = np.tile(np.arange(3), (50, 1))
    plain = task.swap(one.tokens, places, other.tokens, places)
    mixed = task.swap(one.tokens, places, other.tokens, places, shuffle=1)
    assert (mixed[..., -1] == CLS).all()
    np.testing.assert_array_equal(np.sort(mixed), np.sort(plain))
    assert (mixed != plain).any()
    foreign = task.group(mixed[..., :-1]) != one.labels[:, None, None]
    np.testing.assert_array_equal(foreign.sum(-1), 1)


def test_every_swap_by_hand():
    found, foreign = SMALL.every_swap(np.array([[3, 4, 0]]))
    assert foreign.tolist() == [[5, 6, 1, 2]]
    assert found[0, 0].tolist() == [[5, 4, 0], [6, 4, 0], [1, 4, 0], [2, 4, 0]]
    assert found[0, 1].tolist() == [[3, 5, 0], [3, 6, 0], [3, 1, 0], [3, 2, 0]]


@settings(max_examples=30, deadline=None)
@given(tasks(), st.integers(0, 100), st.integers(1, 5))
def test_every_swap_is_in_the_list_once(task, seed, size):
    tokens, labels = task.batch(seed, 0, size)
    found, foreign = task.every_swap(tokens)
    for b in range(size):
        outside = [t for t in range(1, task.tokens) if task.group(np.array(t)) != labels[b]]
        assert sorted(foreign[b].tolist()) == outside
        for i, j in np.ndindex(found.shape[1:3]):
            changed = np.flatnonzero(found[b, i, j] != tokens[b])
            assert changed.tolist() == [i]
            assert found[b, i, j, i] == foreign[b, j]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"vocabulary": 41}, "no multiple"),
        ({"drawn": 11}, "do not repeat"),
        ({"groups": 1}, "no telling"),
        ({"drawn": 0}, "drawn"),
    ],
)
def test_bad_tasks(fields, message):
    with pytest.raises(ValueError, match=message):
        TokenGroups(**fields)


@pytest.mark.parametrize("places", [[[2]], [[-1]]])
def test_cls_cannot_be_exchanged(places):
    tokens = np.array([[1, 2, 0]])
    with pytest.raises(ValueError, match="2 places before CLS"):
        SMALL.swap(tokens, np.array(places), tokens, np.array([[0]]))


def test_bad_places():
    tokens = np.array([[1, 2, 0]])
    with pytest.raises(ValueError, match=r"\(sequences, choices\)"):
        SMALL.swap(tokens, np.array([0]), tokens, np.array([0]))
    with pytest.raises(ValueError, match="size"):
        SMALL.batch(0, 0, 0)
