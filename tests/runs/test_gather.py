import builtins
import dataclasses
import json

import numpy as np
import pytest
import xarray as xr

import attnflow.runs
from attnflow.runs import filters as filters_module
from attnflow.runs import store as store_module
from attnflow.runs.query import listed, open
from tests.runs.experiments import Walk, walk
from tests.runs.stored import Nested, add


def test_swept_fields_become_dimensions(filled):
    data = attnflow.runs.open(filled)
    assert data.loss.dims == ("rate", "seed", "step")
    assert data.path.dims == ("rate", "seed", "step", "axis")
    assert data.rate.values.tolist() == [0.1, 0.2]
    for rate in (0.1, 0.2):
        for seed in range(3):
            config = Walk(seed, rate, 5)
            one = data.sel(rate=rate, seed=seed)
            np.testing.assert_array_equal(one.path, walk(config).path)
            assert one.run.item() == filled.name(config, "walk")
    assert data.step.dims == ("step",)
    assert json.loads(data.attrs["config"]) == {"how": "", "length": 5, "seconds": 0.0}
    assert data.attrs["experiment"] == "walk"


def test_a_dataset_of_runs_can_be_saved(filled, tmp_path):
    data = open(filled)
    data.to_netcdf(tmp_path / "all.nc", engine="h5netcdf")
    xr.testing.assert_equal(xr.load_dataset(tmp_path / "all.nc"), data)


def test_what_is_no_grid_has_one_dimension(filled):
    filled.remove(listed(filled, ["rate=0.1", "seed=1"])[0].run)
    data = open(filled)
    assert data.loss.dims == ("run", "step")
    assert data.sizes["run"] == 5
    assert data.rate.dims == ("run",)
    for name in data.run.values:
        one = data.sel(run=name)
        config = Walk(one.seed.item(), one.rate.item(), 5)
        np.testing.assert_array_equal(one.loss, walk(config).loss)


def test_one_run_has_no_new_dimension(filled):
    data = open(filled, ["rate=0.1", "seed=1"])
    assert data.loss.dims == ("step",)
    np.testing.assert_array_equal(data.loss, walk(Walk(1, 0.1, 5)).loss)


def test_configs_of_two_types_with_the_same_fields(filled):
    config = dataclasses.make_dataclass("Twin", [], bases=(Walk,), frozen=True)(1, 0.1, 5)
    filled.add(config, walk(config), experiment="walk")
    assert open(filled, ["seed=1", "rate=0.1"]).loss.dims == ("run", "step")
    assert open(filled).loss.dims == ("run", "step")


def test_dimensions_of_every_kind(store):
    for flag in (True, False):
        for name in (None, "a"):
            for loss in ("square", "log"):
                for sizes in ((1, 2), (3,)):
                    add(store, Nested(flag=flag, name=name, loss=loss, sizes=sizes))
    data = open(store)
    assert data.loss.dims == ("flag", "config.loss", "name", "sizes", "step")
    assert data.flag.values.tolist() == [False, True]
    assert data["config.loss"].values.tolist() == ["log", "square"]
    assert data.name.values.tolist() == ["a", "null"]
    assert data.sizes["sizes"] == 2
    assert data["sizes"].values.tolist() == ["[1, 2]", "[3]"]


def test_coordinates_that_differ_are_kept_for_each_run(store):
    for seed in range(2):
        add(store, Nested(seed=seed), time=("step", np.arange(3) * (seed + 1.0)))
    for run in list(store):
        data = run.data().set_coords("time")
        seed = run.config["seed"]
        store.remove(run)
        store.add(Nested(seed=seed), data)
    data = open(store)
    assert data.time.dims == ("seed", "step")
    assert data.sel(seed=1).time.values.tolist() == [0, 2, 4]


def test_a_dimension_called_run_stays(store):
    for seed in range(2):
        data = xr.Dataset({"loss": (("run", "step"), np.full((2, 3), seed))})
        store.add(Walk(seed=seed), data)
    found = open(store)
    assert found.loss.dims == ("seed", "run", "step")
    assert found.stored_run.dims == ("seed",)


def test_what_cannot_be_one_dataset_names_the_filter(filled):
    other = Walk(length=7)
    filled.add(other, walk(other), experiment="walk")
    with pytest.raises(ValueError, match=r"length along step \(.*such as length=5"):
        open(filled)
    assert open(filled, "length=5").sizes["seed"] == 3
    add(filled, Nested(), "nested")
    with pytest.raises(ValueError, match=r"experiment \(.*such as experiment=walk"):
        open(filled)


def test_other_ticks_and_other_variables_are_told(store):
    for seed in range(3):
        data = xr.Dataset({"loss": ("time", [1.0, 2.0])}, {"time": [0.0, 1.0 + (seed == 2)]})
        store.add(Walk(seed=seed), data)
    with pytest.raises(ValueError, match=r"differ in values of time .* such as seed=0"):
        open(store)
    store.add(Walk(seed=3), xr.Dataset({"gain": ("time", [1.0, 2.0])}, {"time": [0.0, 1.0]}))
    with pytest.raises(ValueError, match="differ in variables"):
        open(store)


def test_open_hides_no_builtin():
    assert attnflow.runs.open is open
    for module in (store_module, filters_module):
        assert vars(module).get("open", builtins.open) is builtins.open
