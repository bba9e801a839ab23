"""One contract over the whole registry, and the definitions of its members."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from attnflow import attention
from attnflow.attention import normalizations, similarities

NAMES = attention.names()
scores = arrays(float, st.integers(2, 8), elements=st.floats(-30, 30))


@pytest.mark.parametrize("name", NAMES)
@given(row=scores, seed=st.integers(0, 99))
def test_weights_follow_a_permutation_of_the_scores(name, row, seed):
    law = attention.get(name)
    if law.needs_nonzero_sum and abs(law.similarity(row).sum()) < 1e-3:
        return
    order = np.random.default_rng(seed).permutation(len(row))
    np.testing.assert_allclose(law(row[order]), law(row)[order], rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_hidden_keys_get_nothing_and_change_nothing(name, rng):
    law = attention.get(name)
    row = rng.uniform(0.1, 2, size=6)
    mask = np.array([True, True, True, True, False, False])
    weights = law(row, mask)
    assert (weights[4:] == 0).all()
    np.testing.assert_allclose(weights[:4], law(row[:4]))
    other = row.copy()
    other[4:] = 1e4  # the future does not leak
    np.testing.assert_array_equal(law(other, mask), weights)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("extreme", [1e4, -1e4])
def test_no_nan_at_extreme_scores(name, extreme):
    law = attention.get(name)
    row = np.array([extreme, 1.0, 0.5])
    with np.errstate(over="ignore", under="ignore"):
        assert np.isfinite(law(row)).all()


@pytest.mark.parametrize("name", [n for n in NAMES if attention.get(n).sums_to_one])
def test_normalized_rows_sum_to_one(name, rng):
    row = rng.uniform(0.1, 2, size=(3, 5))
    np.testing.assert_allclose(attention.get(name)(row).sum(axis=-1), 1.0)


def test_definitions(rng):
    x = rng.normal(size=7)
    np.testing.assert_allclose(similarities.sigmoid(x), 1 / (1 + np.exp(-x)))
    np.testing.assert_allclose(similarities.softplus(x), np.log1p(np.exp(x)))
    np.testing.assert_allclose(similarities.elu_plus_one(x), np.where(x > 0, 1 + x, np.exp(x)))
    np.testing.assert_allclose(attention.get("softmax")(x), np.exp(x) / np.exp(x).sum())
    np.testing.assert_allclose(normalizations.clamped_sum(x), x / max(abs(x.sum()), 1))


@pytest.mark.parametrize("name", ["sigmoid", "softplus", "elu_plus_one"])
def test_slopes_are_right_at_zero_too(name):
    import jax

    f = getattr(similarities, name)
    expected = {"sigmoid": 0.25, "softplus": 0.5, "elu_plus_one": 1.0}[name]
    assert float(jax.grad(f)(0.0)) == pytest.approx(expected)


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'softmax'"):
        attention.get("sofmax")


def test_a_name_can_be_taken_once():
    with pytest.raises(ValueError, match="registered already"):
        attention.register(attention.get("softmax"))
