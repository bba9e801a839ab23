import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from attnflow import instruments
from attnflow.instruments.jacobian import BLOCK, softmax_conditioning
from tests.oracles.jacobian import batched_eigvalsh, tangent_extremes

ROWS = {
    "spread": [0.3, -0.1, 0.2, 0.05],
    "sparse": [0.0, -10.0, -20.0, -30.0],
    "sink": [0.0, -9.0, -9.0, -9.0, -9.0],
    "two leaders": [0.0, 0.0, -12.0, -12.5],
    "near tie above": [0.0, -1e-9, -1.0, -1.0],
    "near tie below": [0.0, -1.0, -20.0, -20.0 - 1e-9],
    "uniform": [0.0, 0.0, 0.0],
    "one large": [1.0, 0.0, 0.0],
    "weights of 1e-282": [0.0, -300.0, -300.0, -650.0],
    "all but one tied": [0.0, 0.0, 0.0, -3.0],
    "one far below": [0.0, -0.5, -1.0, -80.0],
    "one far above": [80.0, -0.5, -1.0, 0.0],
    "two keys": [0.0, 1.0],
    "two keys far apart": [0.0, -600.0],
}


@pytest.mark.parametrize("name", ROWS)
def test_extreme_eigenvalues_are_exact(name):
    row = np.array(ROWS[name])
    found = softmax_conditioning(row)
    low, high = tangent_extremes(row)
    assert float(found.log_min) == pytest.approx(low, abs=1e-11)
    assert float(found.log_max) == pytest.approx(high, abs=1e-11)


def test_sixty_four_keys_are_exact_too(rng):
    for spread in (0.1, 10.0):
        row = spread * rng.normal(size=64)
        found = softmax_conditioning(row)
        low, high = tangent_extremes(row, digits=60)
        assert float(found.log_kappa) == pytest.approx(high - low, abs=1e-11)


@given(arrays(float, st.tuples(st.integers(1, 4), st.integers(2, 9)), elements=st.floats(-8, 8)))
def test_batches_agree_with_eigvalsh_and_lie_between_the_bounds(rows):
    found = softmax_conditioning(rows)
    low, high = batched_eigvalsh(rows)
    np.testing.assert_allclose(np.exp(found.log_min), low, rtol=1e-8, atol=1e-15)
    np.testing.assert_allclose(np.exp(found.log_max), high, rtol=1e-8, atol=1e-15)
    assert (found.log_lower <= found.log_kappa + 1e-9).all()
    assert (found.log_kappa <= found.log_upper + 1e-9).all()
    np.testing.assert_allclose(found.log_printed, 2 * found.log_upper)


def test_a_sink_is_well_conditioned_whatever_its_tails():
    """κ(J) = n(1 − (n − 1)ε), where the printed estimate says (1/ε)²."""
    n, tail = 6, 1e-9
    weights = np.full(n, tail)
    weights[0] = 1 - (n - 1) * tail
    found = instruments.conditioning_of_weights(weights)
    assert float(np.exp(found.log_kappa)) == pytest.approx(n * (1 - (n - 1) * tail), rel=1e-9)
    assert float(found.log_printed) > np.log(1e17)


def test_blocks_change_nothing(rng):
    rows = rng.normal(size=(BLOCK + 5, 7))
    whole = softmax_conditioning(rows)
    alone = [softmax_conditioning(row) for row in rows[:: BLOCK // 3]]
    np.testing.assert_allclose(
        whole.log_kappa[:: BLOCK // 3], [float(x.log_kappa) for x in alone], rtol=1e-12
    )


@pytest.mark.parametrize("namespace", ["jax.numpy", "torch"])
def test_other_array_libraries(namespace, rng):
    library = pytest.importorskip(namespace, reason=f"{namespace} is not installed")
    rows = rng.normal(size=(3, 5)).astype(np.float32)
    there = softmax_conditioning(library.asarray(rows))
    np.testing.assert_allclose(
        np.asarray(there.log_kappa), softmax_conditioning(rows).log_kappa, rtol=1e-3
    )


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([0.5, 0.6], "sum to one"),
        ([1.5, -0.5], "must be positive"),
        ([1.0, 0.0], "must be positive"),
        ([float("nan"), 0.5], "must be positive"),
        ([1.0], "at least two weights"),
    ],
)
def test_bad_weights_are_refused(weights, message):
    with pytest.raises(ValueError, match=message):
        instruments.conditioning_of_weights(np.array(weights))
