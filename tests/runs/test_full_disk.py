"""Sweeps on disks that are really full, out of inodes or read-only; needs the right to mount."""

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from attnflow.runs import Experiment, Store, StoreError, grid, sweep
from tests.runs.experiments import WALK, Walk
from tests.runs.test_sweep import same

GRID = grid(Walk(), seed=range(12))


def mount(path, options: str) -> None:
    words = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {done.stderr.strip()}")


@contextlib.contextmanager
def small_disk(path: Path) -> Iterator[Callable[[str], Store]]:
    """Mounts a disk of the given options, or mounts it again with others."""
    path.mkdir()

    def of(options: str) -> Store:
        if path.is_mount():
            subprocess.run(["mount", "-o", f"remount,{options}", str(path)], check=True)
        else:
            mount(path, options)
        return Store(path / "runs")

    try:
        yield of
    finally:
        if path.is_mount():
            subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.fixture
def disk(tmp_path):
    with small_disk(tmp_path / "disk") as of:
        yield of


@pytest.mark.parametrize("engine", ["here", "local"])
@pytest.mark.parametrize("small", ["size=160k", "size=10m,nr_inodes=45"])
def test_a_full_disk_stops_the_sweep_and_loses_nothing(disk, engine, small):
    store = disk(small)
    with pytest.raises(StoreError, match=r"nothing can be stored in .*No space left on device"):
        sweep(GRID, WALK, store, engine=engine, workers=2, progress=False)
    found = store.check()
    assert found.damaged == {}
    assert 0 < len(found.whole) < 12
    disk("size=10m,nr_inodes=10000")
    report = sweep(GRID, WALK, store, engine=engine, workers=2, progress=False)
    assert (report.there, report.done) == (len(found.whole), 12 - len(found.whole))
    same(store, GRID)
    assert store.failures() == {}


def large(config: Walk) -> xr.Dataset:
    size = 200_000 if config.seed == 1 else 10
    return xr.Dataset({"x": ("i", np.arange(float(size)))})


@pytest.mark.parametrize("engine", ["here", "local"])
def test_a_run_that_does_not_fit_fails_alone(disk, engine):
    store = disk("size=1m")
    configs = grid(Walk(), seed=range(4))
    experiment = Experiment("large", large)
    report = sweep(configs, experiment, store, engine=engine, workers=1, progress=False)
    assert report.done == 3
    (why,) = report.failed.values()
    assert "No space left on device" in why
    assert "Traceback" in why
    assert store.failures().keys() == report.failed.keys()


@pytest.mark.parametrize("engine", ["here", "local"])
def test_runs_that_never_fit_stop_the_sweep(disk, engine):
    store = disk("size=1m")
    configs = grid(Walk(seed=1), rate=np.arange(1.0, 40.0))
    experiment = Experiment("large", large)
    with pytest.raises(StoreError, match="No space left on device"):
        sweep(configs, experiment, store, engine=engine, workers=1, progress=False)
    assert len(store.failures()) == 3


def test_a_store_that_becomes_read_only_stops_the_sweep(disk):
    store, stored = disk("size=10m"), []

    def each(config, seconds):
        stored.append(config)
        if len(stored) == 3:
            disk("ro")

    with pytest.raises(StoreError, match=r"nothing can be stored in .*Read-only file system"):
        sweep(GRID, WALK, store, engine="here", progress=False, each=each)
    assert len(store.check().whole) == 3
    disk("rw")
    assert sweep(GRID, WALK, store, engine="here", progress=False).done == 9


def test_a_read_only_store_is_told_before_anything_runs(disk):
    store = disk("size=10m")
    store.root.mkdir()
    disk("ro")
    ran = []
    experiment = Experiment("never", ran.append)  # pyright: ignore[reportArgumentType]
    with pytest.raises(StoreError, match="Read-only file system"):
        sweep(GRID, experiment, store, engine="here", progress=False)
    assert ran == []
