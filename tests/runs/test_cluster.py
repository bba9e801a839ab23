"""A Ray cluster of real processes, one of whose nodes is lost."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings

import pytest

from attnflow.runs import Store, grid, sweep
from attnflow.runs import cluster as clusters
from tests.runs.experiments import LONG, WALK, Long, Walk
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


def processes(node) -> list[int]:
    raylets = [info.process.pid for info in node.all_processes["raylet"]]
    return [pid for raylet in raylets for pid in (raylet, *descendants(raylet))]


def kill_node(node) -> None:
    """The raylet and all its children: alone it would leave a worker that finishes its task."""
    for pid in processes(node):
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


def wait_for(condition, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.05)


@pytest.mark.slow
def test_a_run_of_a_lost_node_continues_from_its_checkpoint(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(clusters, "COLLECT_SECONDS", 0.3)
    made, nodes = cluster
    store, marks = Store(tmp_path / "runs"), tmp_path / "marks"
    marks.mkdir()
    config = Long(str(marks))

    def lose():
        wait_for(store.checkpoint(config, "long").path.exists)
        (pid,) = (int(path.name) for path in marks.iterdir())
        (node,) = (node for node in nodes if pid in processes(node))
        kill_node(node)

    killer = threading.Thread(target=lose)
    killer.start()
    report = sweep([config], LONG, store, engine="ray", address=made.address, progress=False)
    killer.join()
    assert (report.done, report.failed) == (1, {})
    assert len(list(marks.iterdir())) == 2
    run = store.find(config, "long")
    assert run is not None
    assert 0 < int(run.data().began) <= config.steps
    assert not store.checkpoint(config, "long").path.exists()


DRIVER = """
import sys
from attnflow.runs import Store, cluster, sweep
from tests.runs.experiments import LONG, Long
cluster.COLLECT_SECONDS = 0.3
sweep([Long(sys.argv[2])], LONG, Store(sys.argv[1]), engine="ray", address=sys.argv[3])
"""


@pytest.mark.slow
def test_the_sweep_of_a_killed_driver_goes_on(cluster, tmp_path):
    made, _ = cluster
    store, marks = Store(tmp_path / "runs"), tmp_path / "marks"
    marks.mkdir()
    config = Long(str(marks))
    words = [sys.executable, "-c", DRIVER, str(store.root), str(marks), made.address]
    with subprocess.Popen(words, stderr=subprocess.DEVNULL) as driver:
        wait_for(store.checkpoint(config, "long").path.exists)
        driver.kill()
    report = sweep([config], LONG, store, engine="ray", address=made.address, progress=False)
    assert (report.done, report.failed) == (1, {})
    run = store.find(config, "long")
    assert run is not None
    assert int(run.data().began) > 0


@pytest.mark.slow
def test_a_run_that_kills_its_process_fails_alone(tmp_path, short_folder, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    monkeypatch.setenv("RAY_TMPDIR", short_folder)
    store = Store(tmp_path / "runs")
    configs = [*grid(Walk(), seed=range(40)), Walk(how="die"), Walk(how="nothing")]
    report = sweep(configs, WALK, store, engine="ray", workers=2, progress=False)
    assert report.done == 40
    why = report.failed[store.name(Walk(how="die"), "walk")]
    assert "died" in why
    assert "returned None" in report.failed[store.name(Walk(how="nothing"), "walk")]
    same(store, configs[:40])


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
