import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import entropy as scipy_entropy

from attnflow import instruments


@given(arrays(float, st.integers(1, 9), elements=st.floats(0, 1)).filter(lambda w: w.sum() > 1e-3))
def test_entropy_is_scipys_and_between_its_bounds(weights):
    weights = weights / weights.sum()
    value = float(instruments.entropy(weights))
    assert value == pytest.approx(scipy_entropy(weights), abs=1e-12)
    assert -1e-12 <= value <= np.log(len(weights)) + 1e-12


def test_entropy_of_unnormalized_rows():
    row = np.array([2.0, 2.0, 0.0])
    assert float(instruments.entropy(row, normalize=True)) == pytest.approx(np.log(2))


def test_effective_support_counts_equal_keys():
    assert float(instruments.effective_support(np.array([3.0, 3.0, 3.0, 0.0]))) == pytest.approx(3)


def test_key_mass_and_sinks(rng):
    weights = rng.dirichlet(np.ones(5), size=(2, 4))
    by_hand = weights[:, :, 2].mean(axis=1)
    np.testing.assert_allclose(instruments.key_mass(weights, 2), by_hand)
    sink = np.zeros((4, 5))
    sink[:, 0] = 1
    assert instruments.is_sink(sink)
    assert not instruments.is_sink(sink, key=1)


@pytest.mark.parametrize("namespace", ["jax.numpy", "torch"])
def test_every_array_library_agrees_with_numpy(namespace, rng):
    library = pytest.importorskip(namespace, reason=f"{namespace} is not installed")
    weights = rng.dirichlet(np.ones(5), size=4).astype(np.float32)
    for name in ("entropy", "effective_support", "key_mass"):
        f = getattr(instruments, name)
        there = f(library.asarray(weights))
        assert type(there).__module__.split(".")[0] != "numpy"
        np.testing.assert_allclose(np.asarray(there), f(weights), rtol=1e-5)
