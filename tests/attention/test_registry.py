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


@pytest.mark.parametrize("bias", [None, np.array([0.3, -1.0])])
def test_a_sink_takes_its_share(bias, rng):
    rows = rng.normal(size=(2, 5))
    sinks = 1.0 if bias is None else np.exp(bias)[:, None]
    expected = np.exp(rows) / (sinks + np.exp(rows).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(attention.get("softmax_1")(rows, bias=bias), expected)


def test_joint_heads_compete(rng):
    rows, bias = rng.normal(size=(4, 3, 5)), rng.normal(size=3)
    grown = np.exp(rows + bias[:, None])
    expected = grown / grown.sum(axis=(1, 2), keepdims=True) * 3
    law = attention.get("bayes_softmax")
    np.testing.assert_allclose(law(rows, bias=bias), expected)
    swapped = law(np.moveaxis(rows, 0, -1), bias=bias[:, None], axis=1, heads=0)
    np.testing.assert_allclose(np.moveaxis(swapped, -1, 0), expected)


@pytest.mark.parametrize("sink", [900.0, -900.0])
def test_extreme_sinks_neither_overflow_nor_lose_the_row(sink):
    weights = attention.get("softmax_1")(np.array([[800.0, 0.0]]), bias=np.array([sink]))
    np.testing.assert_allclose(weights, [[1.0 if sink < 0 else np.exp(-100), 0.0]], atol=1e-300)


def test_gradients_through_the_shift_are_right(rng):
    import jax

    rows, direction = rng.normal(size=(2, 5)), rng.normal(size=(2, 5))
    for name in ("softmax", "softmax_1", "bayes_softmax"):
        law = attention.get(name)
        with jax.enable_x64(True):
            slope = jax.jvp(law, (jax.numpy.asarray(rows),), (jax.numpy.asarray(direction),))[1]
            step = (law(rows + 1e-6 * direction) - law(rows - 1e-6 * direction)) / 2e-6
            np.testing.assert_allclose(slope, step, atol=1e-8)


@pytest.mark.parametrize("name", ["softmax", "softmax_1", "bayes_softmax"])
def test_the_slope_of_a_saturated_weight_keeps_its_digits(name):
    """1 − w of 1e-26: a slope computed as w − w² would be zero or noise."""
    import jax

    with jax.enable_x64(True):
        law = attention.get(name)
        bias = np.array([-90.0]) if name == "softmax_1" else None
        row = jax.numpy.array([[60.0, 0.0]])
        slope = jax.grad(lambda x: law(x, bias=bias)[0, 0])(row)
    np.testing.assert_allclose(slope, [[np.exp(-60), -np.exp(-60)]], rtol=1e-12)


def test_a_bias_that_nobody_reads_is_refused(rng):
    with pytest.raises(ValueError, match="softmax has no bias"):
        attention.get("softmax")(rng.normal(size=(2, 5)), bias=np.zeros(2))


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
