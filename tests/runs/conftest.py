import pytest

from attnflow.runs import Store, grid
from tests.runs.experiments import Walk, walk


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "läufe [1] it's *")


@pytest.fixture
def filled(store):
    """Two rates by three seeds."""
    for config in grid(Walk(length=5), rate=(0.2, 0.1), seed=range(3)):
        store.add(config, walk(config), experiment="walk", seconds=0.5, log="said")
    return store
