"""A Ray cluster of real processes, one of whose nodes is lost."""

import contextlib
import os
import signal
import tempfile
import threading
import time
import warnings

import pytest

from attnflow.runs import Store, grid, sweep
from tests.runs.experiments import WALK, Walk
from tests.runs.test_sweep import same

pytest.importorskip("ray", reason="the extra [ray] is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray leaves sockets and files to the collector


@pytest.fixture
def short_folder():
    """Ray's sockets have names of at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as name:
        yield name


@pytest.fixture
def cluster(monkeypatch, short_folder):
    """A head without cores and two nodes of one core each."""
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    monkeypatch.setenv("RAY_TMPDIR", short_folder)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ray.cluster_utils import Cluster

        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
        nodes = [made.add_node(num_cpus=1) for _ in range(2)]
        made.wait_for_nodes()
        yield made, nodes
        made.shutdown()


def descendants(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        found = list(map(int, file.read().split()))
    return found + [deeper for child in found for deeper in descendants(child)]


def kill_node(node) -> None:
    """The raylet and all its children: alone it would leave a worker that finishes its task."""
    raylets = [info.process.pid for info in node.all_processes["raylet"]]
    for pid in [pid for raylet in raylets for pid in (raylet, *descendants(raylet))]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_a_lost_node_loses_no_result(cluster, tmp_path):
    made, nodes = cluster
    store = Store(tmp_path / "runs")
    configs = grid(Walk(seconds=0.2), seed=range(30))

    def lose():
        while len(list(store)) < 5:
            time.sleep(0.05)
        kill_node(nodes[0])

    killer = threading.Thread(target=lose)
    killer.start()
    report = sweep(configs, WALK, store, engine="ray", address=made.address, progress=False)
    killer.join()
    assert (report.done, report.failed, report.left) == (30, {}, 0)
    assert len(list(store)) == 30
    same(store, configs)


@pytest.mark.slow
def test_a_cluster_of_its_own(tmp_path, short_folder, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    monkeypatch.setenv("RAY_TMPDIR", short_folder)
    store = Store(tmp_path / "runs")
    configs = [*grid(Walk(), seed=range(4)), Walk(how="raise")]
    report = sweep(configs, WALK, store, engine="ray", workers=1, progress=False)
    assert report.done == 4
    assert "cannot be done" in next(iter(report.failed.values()))
    same(store, configs[:4])


def test_no_cluster_there(tmp_path):
    with pytest.raises(ValueError, match="no Ray cluster answers"):
        sweep([Walk()], WALK, Store(tmp_path), engine="ray", address="127.0.0.1:1", progress=False)
