import numpy as np
import pytest

from attnflow.tasks.markov import StickyChain


def test_the_chain_has_its_transitions():
    chain = StickyChain(symbols=4, stay=0.4, length=50_000, sequences=2)
    now, then = chain.draw()
    assert now.shape == (2, 50_000)
    np.testing.assert_array_equal(now[:, 1:], then[:, :-1])
    counts = np.zeros((4, 4))
    np.add.at(counts, (now.ravel(), then.ravel()), 1)
    np.testing.assert_allclose(
        counts / counts.sum(axis=1, keepdims=True), chain.transition, atol=0.015
    )


def test_the_entropy_rate_is_that_of_a_row():
    assert StickyChain().entropy_rate == pytest.approx(-0.3 * np.log(0.3) - 0.7 * np.log(0.1))
    assert StickyChain(stay=1.0).entropy_rate == 0
    assert StickyChain(symbols=2, stay=0.5).entropy_rate == pytest.approx(np.log(2))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"stay": 1.5}, r"\[0, 1\]"),
        ({"stay": float("nan")}, r"\[0, 1\]"),
        ({"symbols": 1}, "nothing to predict"),
        ({"length": 1}, "look back"),
    ],
)
def test_bad_chains_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        StickyChain(**fields)
