"""Which config is which run, also after its class has changed."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import xarray as xr

from attnflow.runs import Store, canonical
from attnflow.runs.config import digest, is_same, names

DATA = xr.Dataset({"loss": ("step", np.arange(3.0))})


def config_class(**fields):
    """A class Config with these defaults."""
    typed = [(name, Any, dataclasses.field(default=value)) for name, value in fields.items()]
    return dataclasses.make_dataclass("Config", typed, frozen=True)


Old = config_class(rate=0.1, seed=0)
New = config_class(rate=0.1, width=16, seed=0, kind="plain")


def test_a_new_field_with_a_default_renames_no_run(tmp_path):
    store = Store(tmp_path)
    run = store.add(Old(seed=3), DATA, experiment="x")
    assert store.find(New(seed=3), "x") == run
    assert store.find(New(seed=3, width=32), "x") is None
    assert store.name(New(seed=3, width=16.0), "x") == run.name


def test_nested_configs_too(tmp_path):
    def outer(inner):
        field = dataclasses.field(default_factory=inner)
        return dataclasses.make_dataclass("Outer", [("task", Any, field), ("seed", int, 0)])

    store = Store(tmp_path)
    for task in ({}, {"seed": 5}):
        run = store.add(outer(Old)(Old(**task)), DATA)
        assert store.find(outer(New)(New(**task))) == run
        assert store.find(outer(New)(New(**task, kind="other"))) is None


def test_a_changed_default_is_another_config(tmp_path):
    """Its name without defaults is that of the old run, whose config says that it is not."""
    store = Store(tmp_path)
    Changed = config_class(rate=0.2, seed=0)
    old = store.add(Old(), DATA, experiment="x")
    assert names(Changed(), "x")[0] == old.name
    assert store.find(Changed(), "x") is None
    new = store.add(Changed(), DATA.assign(loss=2 * DATA.loss), experiment="x")
    assert new.name != old.name
    for config, run in ((Old(), old), (Changed(), new), (Changed(rate=0.1), None)):
        found = store.find(config, "x")
        assert found == run or config == Changed(rate=0.1)
    assert store.check().damaged == {}


def test_a_removed_field_at_its_default_renames_no_run(tmp_path):
    store = Store(tmp_path)
    run = store.add(New(seed=3), DATA)
    assert store.find(Old(seed=3)) == run


def test_runs_of_the_first_edition_keep_their_name(tmp_path):
    store = Store(tmp_path)
    run = store.add(Old(seed=3), DATA, experiment="x")
    old = digest(canonical(Old(seed=3), "x"))
    run.path.rename(tmp_path / old)
    assert store.name(Old(seed=3), "x") == old


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, 1.0), (-0.0, 0), (np.float64(2), 2), ([1, 2.5], (1.0, 2.5)), ({"a": 1}, {"a": 1.0})],
)
def test_whole_numbers_have_one_name(tmp_path, one, other):
    store = Store(tmp_path)
    assert store.name(Old(rate=one)) == store.name(Old(rate=other))
    run = store.add(Old(rate=one), DATA)
    assert store.find(Old(rate=other)) == run


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, True), (1, "1"), (0, None), (0, False), (2**53 + 1, float(2**53)), ([1], 1), ("", None)],
)
def test_other_values_have_other_names(tmp_path, one, other):
    store = Store(tmp_path)
    store.add(Old(rate=one), DATA)
    assert store.name(Old(rate=one)) != store.name(Old(rate=other))
    assert store.find(Old(rate=other)) is None


def test_true_is_not_a_default_of_one(tmp_path):
    store = Store(tmp_path)
    Flag = config_class(flag=1)
    store.add(Flag(), DATA)
    assert store.find(Flag(flag=1.0)) is not None
    assert store.find(Flag(flag=True)) is None


def test_experiments_and_classes_have_runs_of_their_own(tmp_path):
    store = Store(tmp_path)
    run = store.add(Old(), DATA, experiment="x")
    Other = dataclasses.make_dataclass("Other", [("rate", float, 0.1)])
    assert {store.name(Old(), "x")} == {run.name}
    assert run.name not in (store.name(Old(), "y"), store.name(Other(), "x"))
    assert not is_same(run.stored, Other(), "x")
