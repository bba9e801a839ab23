import matplotlib as mpl
import numpy as np
import pytest

mpl.use("agg")


@pytest.fixture
def rng():
    return np.random.default_rng(0)
