import matplotlib as mpl
import numpy as np
import pytest

from attnflow import cache

mpl.use("agg")
cache.use()  # what one test process compiled, the others need not


def pytest_collection_modifyitems(items):
    """Browser tests first: few and long, at the end they would leave a process idle."""
    items.sort(key=lambda item: "browser" not in item.nodeid)


@pytest.fixture
def rng():
    return np.random.default_rng(0)
