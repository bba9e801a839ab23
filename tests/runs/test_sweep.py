"""Sweeps on real processes."""

import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import xarray as xr

from attnflow.runs import Experiment, Store, grid, plan, sweep
from attnflow.runs import store as stores
from attnflow.runs.local import LocalEngine
from attnflow.runs.sweeps import Job
from tests.runs.experiments import ODD, TRAIN, TRAIN_MANY, WALK, WALKS, Training, Walk, train, walk

GRID = grid(Walk(), seed=range(6), rate=(0.1, 0.2))


def found(store: Store, config):
    run = store.find(config, "walk")
    assert run is not None
    return run


def same(store: Store, configs) -> None:
    """Every config is there, whole, with what it gives when it is run alone."""
    for config in configs:
        xr.testing.assert_identical(found(store, config).data().drop_attrs(), walk(config))
    hidden = [p.name for p in store.root.iterdir() if p.name.startswith((".new", ".old"))]
    assert hidden == []


@pytest.mark.parametrize("engine", ["here", "local"])
def test_everything_is_done_once(engine, tmp_path):
    store = Store(tmp_path)
    report = sweep(GRID + GRID, WALK, store, engine=engine, workers=2, progress=False)
    assert (report.done, report.there, report.left, report.failed) == (12, 0, 0, {})
    same(store, GRID)
    assert "walked 20 steps" in next(iter(store)).log
    again = sweep([*GRID, Walk(seed=99)], WALK, store, engine="here", progress=False)
    assert (again.done, again.there) == (1, 12)
    fresh = sweep(GRID[:2], WALK, store, engine="here", fresh=True, progress=False)
    assert (fresh.done, fresh.there) == (2, 0)


@pytest.mark.parametrize("engine", ["here", "local"])
def test_a_failing_run_stops_no_other(engine, tmp_path):
    store = Store(tmp_path)
    configs = [*GRID[:3], Walk(seed=7, how="raise")]
    report = sweep(configs, WALK, store, engine=engine, workers=2, progress=False)
    assert report.done == 3
    (why,) = report.failed.values()
    assert "ArithmeticError: seed 7 cannot be done" in why
    assert next(iter(store.failures().values()))["traceback"] == why
    same(store, GRID[:3])


@pytest.mark.parametrize("engine", ["here", "local"])
def test_data_that_cannot_be_stored_are_a_failure(engine, tmp_path):
    """With the reason, and the others go on."""
    reasons = {
        "complex": "z is complex128",
        "nothing": "returned None: is its `return` missing?",
        "a number": "returned a float: a run stores an xarray.Dataset",
        "attribute None": "Invalid value for attr 'why': None",
        "attribute dict": "Invalid value for attr 'why': {'a': 1}",
        "name 3": "Invalid name 3",
        "exit": "SystemExit: 3",
    }
    assert set(reasons) == set(ODD)
    store = Store(tmp_path)
    configs = [*(Walk(how=how) for how in reasons), Walk()]
    report = sweep(configs, WALK, store, engine=engine, progress=False)
    assert report.done == 1
    for how, reason in reasons.items():
        assert reason in report.failed[store.name(Walk(how=how), "walk")]
    assert store.failures().keys() == report.failed.keys()
    assert store.check().leftovers == []


def test_a_worker_that_dies_is_replaced(tmp_path):
    marks = tmp_path / "marks"
    marks.mkdir()
    configs = grid(Walk(how=f"die once in {marks}"), seed=range(3))
    store = Store(tmp_path / "runs")
    report = sweep([*configs, Walk(how="die")], WALK, store, workers=2, progress=False)
    assert report.done == 3
    (why,) = report.failed.values()
    assert "its process died 3 times, last of signal 9" in why
    assert len(list(store)) == 3


def test_batches_are_the_separate_runs(tmp_path):
    store = Store(tmp_path)
    configs = [*GRID, *grid(Walk(length=5), seed=range(2))]
    sweep(configs, WALKS, store, engine="here", progress=False)
    same(store, configs)
    sizes = [found(store, config).data().attrs["batch"] for config in configs]
    assert sizes == [12] * 12 + [2] * 2


def test_trainings_in_one_program_are_the_separate_ones(tmp_path):
    configs = grid(Training(), rate=(0.01, 0.05, 0.1))
    together, apart = Store(tmp_path / "together"), Store(tmp_path / "apart")
    sweep(configs, TRAIN_MANY, together, engine="here", progress=False)
    sweep(configs, TRAIN_MANY, apart, engine="here", batched=False, progress=False)
    assert {run.name for run in together} == {run.name for run in apart}
    for run in together:
        other = apart.get(run.name)
        assert other is not None
        xr.testing.assert_allclose(run.data(), other.data(), rtol=1e-10)


def test_a_failing_batch_is_done_one_by_one(tmp_path):
    store = Store(tmp_path)
    report = sweep(
        [*GRID[:2], Walk(seed=3, how="raise")], WALKS, store, engine="here", progress=False
    )
    assert report.done == 2
    assert len(report.failed) == 1
    log = found(store, GRID[0]).log
    assert "not in a batch of 3" in log
    assert "ArithmeticError: not in a batch" in log
    with pytest.raises(ValueError, match="needs both"):
        Experiment("x", walk, batch=WALKS.batch)


def test_damaged_runs_are_redone(tmp_path):
    store = Store(tmp_path)
    sweep(GRID[:3], WALK, store, engine="here", progress=False)
    hurt = found(store, GRID[1])
    (hurt.path / "arrays.nc").write_bytes(b"nothing")
    report = sweep(GRID[:3], WALK, store, engine="here", progress=False)
    assert report.redone == {hurt.name: "arrays.nc is not what was written"}
    assert "1 damaged ones redone" in str(report)
    same(store, GRID[:3])


def test_a_full_disk_ends_the_sweep_with_its_reason(tmp_path, monkeypatch):
    store = Store(tmp_path)
    sweep(GRID[:2], WALK, store, engine="here", progress=False)

    def full(path):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(stores, "sync", full)
        with pytest.raises(stores.StoreError, match=r"nothing can be stored in .*No space left"):
            sweep(GRID, WALK, store, engine="here", progress=False)
    assert len(list(store)) == 2
    sweep(GRID, WALK, store, engine="here", progress=False)
    same(store, GRID)


def test_a_plan_counts_and_runs_nothing(tmp_path):
    store = Store(tmp_path)
    assert plan([Walk(how="raise")], WALK, store).seconds_a_run is None
    sweep(GRID[:4], WALK, store, engine="here", progress=False)
    planned = plan([*GRID, Walk(how="raise")], WALK, store)
    assert (planned.total, planned.left) == (13, 9)
    assert (planned.seconds_a_run or 0) > 0
    assert len(list(store)) == 4
    assert "13 runs, 4 done, 9 to do; one took" in str(planned)


def test_lines_tell_how_far_it_is(tmp_path, capsys):
    sweep(GRID, WALK, Store(tmp_path), engine="here")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 12
    assert lines[-1].startswith("walk: 12/12 runs")


DRIVER = """
import sys
from attnflow.runs import Store, grid, sweep
from tests.runs.experiments import WALK, Walk
if __name__ == "__main__":
    configs = grid(Walk(seconds=0.01), seed=range(int(sys.argv[2])))
    print(sweep(configs, WALK, Store(sys.argv[1]), workers=2, progress=False), flush=True)
"""


def driver(tmp_path, count: int) -> subprocess.Popen:
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    return subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "runs"), str(count)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.getcwd()},
        start_new_session=True,
    )


def children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return list(map(int, file.read().split()))


def until_it_stores(tmp_path, process) -> None:
    store = Store(tmp_path / "runs")
    before = len(list(store))
    while process.poll() is None and len(list(store)) == before:
        time.sleep(0.01)


def killed(tmp_path, times: int, count: int, rng: random.Random) -> None:
    """Kill the driver or one of its workers at random moments, then let a sweep go through."""
    for _ in range(times):
        process = driver(tmp_path, count)
        if rng.random() < 0.8:  # else at some moment of its start
            until_it_stores(tmp_path, process)
        time.sleep(rng.uniform(0, 0.3))
        victims = [process.pid]
        if rng.random() < 0.5 and process.poll() is None:
            victims = children(process.pid) or victims
        try:
            os.kill(rng.choice(victims), signal.SIGKILL)
            time.sleep(rng.uniform(0, 0.3))
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.communicate()
        for run in Store(tmp_path / "runs"):
            assert run.damage() is None


@pytest.mark.slow
def test_kills_lose_nothing(tmp_path):
    killed(tmp_path, 4, 200, random.Random(0))
    survives(tmp_path, 200)


@pytest.mark.slow
def test_fifty_kills_lose_nothing(tmp_path):
    killed(tmp_path, 50, 2000, random.Random(1))
    survives(tmp_path, 2000)


def survives(tmp_path, count: int) -> None:
    store = Store(tmp_path / "runs")
    before = {run.name: (run.path / "DONE").stat().st_ino for run in store}
    process = driver(tmp_path, count)
    told, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    assert f"{len(before)} were there" in told
    after = {run.name: (run.path / "DONE").stat().st_ino for run in store}
    assert len(after) == count
    assert before.items() <= after.items()  # nothing finished was done again
    store.sweep_up()
    same(store, grid(Walk(seconds=0.01), seed=range(count)))


def test_sigterm_ends_it_and_the_next_goes_on(tmp_path):
    process = driver(tmp_path, 400)
    until_it_stores(tmp_path, process)
    process.terminate()
    told, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "start again to go on" in told
    store = Store(tmp_path / "runs")
    assert 0 < len(list(store)) < 400
    assert not [p for p in store.root.iterdir() if p.name.startswith(".new")]


@pytest.mark.slow
def test_two_sweeps_of_one_grid_at_once(tmp_path):
    pair = [driver(tmp_path, 60) for _ in range(2)]
    for process in pair:
        process.communicate(timeout=120)
        assert process.returncode == 0
    store = Store(tmp_path / "runs")
    assert len(list(store)) == 60
    same(store, grid(Walk(seconds=0.01), seed=range(60)))


def test_a_killed_training_goes_on_to_the_same_bits(tmp_path):
    """Its worker is killed after 20 of 41 records; the next one continues from the checkpoint."""
    store = Store(tmp_path)
    config = Training(stop_after=20)
    report = sweep([config], TRAIN, store, workers=1, progress=False)
    assert (report.done, report.failed) == (1, {})
    run = store.find(config, "train")
    assert run is not None
    xr.testing.assert_identical(run.data(), train(config))
    assert not store.checkpoint(config, "train").path.exists()


def test_bad_calls(tmp_path):
    with pytest.raises(ValueError, match="local"):
        sweep(GRID, WALK, Store(tmp_path), engine="locol")
    with pytest.raises(ValueError, match="workers"):
        sweep(GRID, WALK, Store(tmp_path), workers=0)


def test_workers_are_as_many_as_memory_holds():
    class Large:
        memory = 10**15

    assert LocalEngine(8)._count([Job(0, (Large(),))]) == 1
    assert LocalEngine(8)._count([Job(0, (Walk(),))]) == 8
    assert np.isfinite(LocalEngine()._count([Job(0, (Walk(),))]))
