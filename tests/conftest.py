import matplotlib as mpl
import numpy as np
import pytest

from attnflow import cache

mpl.use("agg")
cache.use()  # what one test process compiled, the others need not


@pytest.fixture
def rng():
    return np.random.default_rng(0)
