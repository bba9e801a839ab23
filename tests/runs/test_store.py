import json
import os

import numpy as np
import pytest
import xarray as xr

from attnflow.runs import DamagedRun, Store, StoreError
from attnflow.runs import config as configs
from attnflow.runs import store as stores
from tests.runs.experiments import Walk, walk


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "läufe mit ü")


def known(run):
    assert run is not None
    return run


def test_a_run_comes_back_as_it_was(store):
    data = walk(Walk())
    run = store.add(Walk(), data, experiment="walk", log="said", seconds=1.5)
    again = known(store.find(Walk(), "walk"))
    assert again == run
    xr.testing.assert_identical(again.data().drop_attrs(), data)
    assert again.config["length"] == 20
    assert again.log == "said"
    assert again.environment["seconds"] == 1.5
    assert again.environment["seed"] == 0
    assert "jax" in again.environment["versions"]
    assert again.scalars.column_names == ["step", "loss"]
    np.testing.assert_array_equal(again.scalars["loss"].to_numpy(), data.loss)
    assert sorted(os.listdir(run.path)) == sorted([*stores.FILES, "DONE"])
    assert store.find(Walk(seed=1), "walk") is None
    assert [each.name for each in store] == [run.name]


@pytest.mark.parametrize(
    "data",
    [
        xr.Dataset({"x": 1.5, "many": ("step", np.arange(3) * 2**40)}),
        xr.Dataset({"flag": ("step", [True, False])}),
        xr.Dataset({"large": (("a", "b"), np.random.default_rng(0).random((400, 400)))}),
        xr.Dataset({"word": ("w", ["a", "bé"])}, {"time": [0.5, 1.0]}),
        xr.Dataset({"word": ("w", np.array(["a", "bé"], dtype=object))}),
    ],
)
def test_other_kinds_of_data(store, data):
    store.add(Walk(), data)
    xr.testing.assert_equal(known(store.find(Walk())).data(), data)


def test_complex_numbers_are_refused(store):
    with pytest.raises(ValueError, match="z is complex128"):
        store.add(Walk(), xr.Dataset({"z": 1j}))


@pytest.mark.parametrize("name", [*stores.FILES, "DONE"])
@pytest.mark.parametrize("how", ["truncated", "flipped", "missing"])
def test_damage_is_seen(store, name, how):
    run = store.add(Walk(), walk(Walk()), log="said")
    path = run.path / name
    content = path.read_bytes()
    if how == "truncated":
        path.write_bytes(content[:-3])
    elif how == "flipped":
        path.write_bytes(content[:2] + bytes([content[2] ^ 4]) + content[3:])
    else:
        path.unlink()
    with pytest.raises(DamagedRun, match=f"run {run.name} is damaged"):
        store.find(Walk())
    store.add(Walk(), walk(Walk()), log="said")  # takes the place of the damaged one
    assert known(store.find(Walk())).damage() is None


def test_a_collision_is_refused(store, monkeypatch):
    monkeypatch.setattr(configs, "digest", lambda text: "same")
    store.add(Walk(), walk(Walk()))
    with pytest.raises(StoreError, match="another config with the same hash"):
        store.find(Walk(seed=1))


def test_the_first_of_two_writers_stays(store):
    first = store.add(Walk(), walk(Walk()))
    before = (first.path / "DONE").stat().st_ino
    store.add(Walk(), walk(Walk()))
    assert (first.path / "DONE").stat().st_ino == before
    assert [path.name for path in store.root.iterdir()] == [first.name]


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_full_disk_loses_nothing(store, monkeypatch, at):
    kept = store.add(Walk(seed=9), walk(Walk()))
    calls = {"n": 0}
    real = stores.sync

    def full(path):
        calls["n"] += 1
        if calls["n"] == at:
            raise OSError(28, "No space left on device")
        return real(path)

    monkeypatch.setattr(stores, "sync", full)
    with pytest.raises(StoreError, match="No space left on device"):
        store.add(Walk(), walk(Walk()))
    monkeypatch.setattr(stores, "sync", real)
    assert [run.name for run in store] == [kept.name]
    assert kept.damage() is None
    assert [path.name for path in store.root.iterdir()] == [kept.name]
    store.add(Walk(), walk(Walk()))
    assert len(list(store)) == 2


def test_removal_and_leftovers(store):
    run = store.add(Walk(), walk(Walk()))
    (store.root / ".new-dead-1").mkdir()
    store.remove(run)
    assert list(store) == []
    assert store.sweep_up() == 1
    assert list(store.root.iterdir()) == []


def test_failures_are_kept_until_the_run_is_there(store):
    store.add_failure(Walk(), "Traceback …", experiment="walk")
    (failure,) = store.failures().values()
    assert failure["traceback"] == "Traceback …"
    assert failure["config"]["seed"] == 0
    store.add(Walk(), walk(Walk()), experiment="walk")
    assert store.failures() == {}


def test_checkpoints_are_whole_or_nothing(store):
    place = store.checkpoint(Walk())
    assert place.load() is None
    place.save({"x": np.arange(3.0), "position": np.array(7)})
    found = known(place.load())
    np.testing.assert_array_equal(found["x"], np.arange(3.0))
    assert int(found["position"]) == 7
    content = place.path.read_bytes()
    place.path.write_bytes(content[: len(content) // 2])
    assert place.load() is None
    place.save({"x": np.arange(3.0)})
    store.add(Walk(), walk(Walk()))
    assert place.load() is None  # a finished run needs none


def test_marks_cover_every_file(store):
    run = store.add(Walk(), walk(Walk()))
    done = json.loads((run.path / "DONE").read_text())
    assert done["run"] == run.name
    assert set(done["files"]) == set(stores.FILES)
