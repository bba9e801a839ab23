import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnflow.instruments import norm_phases


def names(norms, **options):
    return [phase.name for phase in norm_phases(np.arange(len(norms)), np.array(norms), **options)]


@pytest.mark.parametrize(
    ("norms", "expected"),
    [
        ([6.0, 3.0, 1.0, 2.0, 4.0, 6.0], ["heating", "forging"]),
        ([6.0, 3.0, 1.0, 4.0, 4.1, 4.15], ["heating", "forging", "cooling"]),
        ([1.0, 2.0, 3.0], ["forging"]),
        ([3.0, 2.0, 1.0], ["heating"]),
        ([3.0, 1.0, 1.0, 1.0], ["heating", "cooling"]),
        ([1.0, 1.001, 1.0], ["resting"]),
    ],
)
def test_phases(norms, expected):
    assert names(norms) == expected


@given(st.lists(st.floats(0.1, 10), min_size=2, max_size=20))
def test_phases_follow_on_each_other_over_the_whole_time(norms):
    phases = norm_phases(np.arange(len(norms)), np.array(norms))
    assert phases[0].start == 0
    assert phases[-1].end == len(norms) - 1
    assert all(a.end == b.start for a, b in itertools.pairwise(phases))


def test_units_of_time_do_not_matter():
    norms = np.array([6.0, 3.0, 1.0, 4.0, 4.1, 4.15])
    first = norm_phases(np.arange(6), norms)
    other = norm_phases(100.0 * np.arange(6), 7 * norms)
    assert [(p.name, 100 * p.start) for p in first] == [(p.name, p.start) for p in other]


def test_bad_input():
    with pytest.raises(ValueError, match="two or more times"):
        norm_phases(np.array([0.0]), np.array([1.0]))
    with pytest.raises(ValueError, match="increasing times"):
        norm_phases(np.array([0.0, 0.0]), np.array([1.0, 2.0]))
    with pytest.raises(ValueError, match="tolerance"):
        norm_phases(np.arange(3.0), np.ones(3), tolerance=2.0)
