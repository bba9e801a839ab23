import numpy as np
import pytest
from scipy.linalg import eigh
from scipy.special import softmax

from attnflow import instruments


@pytest.fixture
def batch(rng):
    scores = 3 * rng.normal(size=(6, 9))
    weights = softmax(scores, axis=-1)
    return scores, weights, instruments.important_keys(weights, 0.3)


def test_separation_by_hand():
    scores = np.array([3.0, 2.5, 0.0, -1.0])
    mask = np.array([True, True, False, False])
    found = instruments.separation(scores, mask)
    assert (float(found.delta), float(found.gamma), float(found.size)) == (2.5, 0.5, 2.0)
    assert float(instruments.log10_ratio(scores)) == pytest.approx(4 / np.log(10))


def test_weights_keep_the_bounds_of_their_separation(batch):
    scores, weights, mask = batch
    low, high = instruments.extreme_weights(weights, mask)
    lower, upper = instruments.weight_bounds(instruments.separation(scores, mask), 9)
    assert low >= lower
    assert high <= upper


def test_leakage_is_the_generalized_eigenvalue_and_sampling_stays_below(rng):
    keys = rng.normal(size=(4, 12, 5))
    mask = np.zeros((4, 12), bool)
    mask[:, :3] = True
    basis, complement = instruments.signal_subspace(keys, mask, 0.5)
    np.testing.assert_allclose(basis.T @ complement, 0, atol=1e-12)
    assert basis.shape[1] + complement.shape[1] == 5
    exact = instruments.leakage(keys, mask, complement)
    for k in range(4):
        top, rest = keys[k, :3] @ complement, keys[k, 3:] @ complement
        by_hand = eigh(top.T @ top, rest.T @ rest, eigvals_only=True)[-1]
        assert exact[k] == pytest.approx(np.sqrt(by_hand), rel=1e-9)
    directions = rng.normal(size=(200, complement.shape[1]))
    sampled = instruments.leakage_sampled(keys, mask, complement, directions)
    assert (sampled <= exact * (1 + 1e-12)).all()
    assert (sampled > 0.3 * exact).all()


def test_a_direction_that_only_important_keys_see_leaks_without_bound():
    keys = np.array([[[1.0, 1.0], [1.0, 0.0]]])
    mask = np.array([[True, False]])
    assert np.isinf(instruments.leakage(keys, mask, np.eye(2)))[0]


def test_value_margins_by_hand():
    weights, values = np.array([0.5, 0.5, 0.0]), np.array([1.0, 3.0, 9.0])
    mask = np.array([True, True, False])
    assert float(instruments.value_margins(weights, values, mask)) == 1.0


def test_the_local_operator_is_the_sum_of_its_blocks(rng):
    keys, values = rng.normal(size=(7, 5, 4)), rng.normal(size=(7, 5))
    weights = softmax(rng.normal(size=(7, 5)), axis=-1)
    curvature = rng.uniform(0.5, 2, size=7)
    by_hand = np.zeros((4, 4))
    for K, a, u, c in zip(keys, weights, values, curvature, strict=True):
        J = np.diag(a) - np.outer(a, a)
        by_hand += c * K.T @ J @ np.outer(u, u) @ J @ K
    factors = instruments.local_factors(keys, weights, values, curvature)
    np.testing.assert_allclose(factors.T @ factors, by_hand, atol=1e-12)
    np.testing.assert_allclose(
        instruments.operator_spectrum(factors), np.linalg.eigvalsh(by_hand), atol=1e-12
    )
    error = rng.normal(size=4)
    predicted = instruments.predicted_error(factors, error, 0.1, [0, 3])
    stepped = np.linalg.matrix_power(np.eye(4) - 0.1 * by_hand, 3) @ error
    np.testing.assert_allclose(predicted, [np.linalg.norm(error), np.linalg.norm(stepped)])


def test_lanczos_agrees_with_the_dense_spectrum(rng, monkeypatch):
    factors = rng.normal(size=(60, 30)) * np.geomspace(1, 0.1, 30)
    dense = instruments.operator_extremes(factors)
    monkeypatch.setattr("attnflow.instruments.curvature.DENSE", 10)
    np.testing.assert_allclose(instruments.operator_extremes(factors), dense, rtol=1e-6)
    assert instruments.operator_extremes(factors[:20])[0] == 0.0


@pytest.mark.parametrize(
    ("mask", "message"),
    [([False, False], "no important key"), ([True, True], "no unimportant key")],
)
def test_one_sided_masks_are_refused(mask, message):
    with pytest.raises(ValueError, match=message):
        instruments.separation(np.array([0.0, 1.0]), np.array(mask))


def test_bad_shares_are_refused():
    with pytest.raises(ValueError, match="share must lie in"):
        instruments.important_keys(np.array([0.5, 0.5]), 0.0)
    with pytest.raises(ValueError, match="no key is important"):
        instruments.signal_subspace(np.ones((1, 2, 2)), np.zeros((1, 2), bool))
