import numpy as np
import pytest

from attnflow import instruments as ins


def path():
    """Two heads: both learn feature 0 by t = 1, split on feature 1 at t = 5, one crosses at 8."""
    times = np.arange(0, 11, dtype=float)
    m = np.zeros((11, 2, 2))
    m[:, :, 0] = np.minimum(times, 2)[:, None]
    m[5:, 0, 1], m[5:, 1, 1] = 1.0, -1.0
    m[8:, 1, 1] = 1.0
    return times, m


def test_events_of_a_path():
    times, m = path()
    split = ins.split_times(times, m, threshold=1.0)
    assert split[0] == np.inf
    assert 4 < split[1] < 5
    assert split[1] == pytest.approx(4.5)
    assert ins.unspecialized_time(times, m, np.array([1.0, 0.0])) == 1.0
    assert ins.unspecialized_time(times, m, np.zeros(2)) == np.inf
    np.testing.assert_array_equal(ins.excursions(m), [[0, 0], [0, 1]])


def test_patterns_and_groups():
    m = np.array([[2.0, 1.0], [1.5, 0.9], [2.0, -1.0], [0.05, 0.0]])
    np.testing.assert_array_equal(ins.sign_patterns(m), [[1, 1], [1, 1], [1, -1], [0, 0]])
    assert ins.head_groups(m) == [[0, 1], [2], [3]]


def test_similarity():
    m = np.array([[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0], [0.0, 0.0]])
    expected = [[1, 0, -1, 0], [0, 1, 0, 0], [-1, 0, 1, 0], [0, 0, 0, 0]]
    np.testing.assert_allclose(ins.head_similarity(m), expected)


def test_a_split_from_the_start_counts_from_the_start():
    times, m = path()
    assert ins.split_times(times[6:], m[6:], threshold=1.0)[1] == 6.0
    with pytest.raises(ValueError, match="threshold"):
        ins.split_times(times, m, threshold=0.0)
