import builtins
import csv
import dataclasses
import json
import os
import sys
import types

import numpy as np
import pyarrow.parquet as pq
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

import attnflow.runs
from attnflow.runs import DamagedRun, Store, grid
from attnflow.runs import filters as filters_module
from attnflow.runs import store as store_module
from attnflow.runs.export import export, export_tensorboard, label
from attnflow.runs.filters import Entry, failed, flat, named, swept
from attnflow.runs.query import compare, final, listed, open, parse, sql, table
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


@dataclasses.dataclass(frozen=True)
class Task:
    width: int = 4
    kind: str = "small"


@dataclasses.dataclass(frozen=True)
class Nested:
    task: Task = Task()
    seed: int = 0
    rate: float = 0.1
    flag: bool = False
    sizes: tuple[int, ...] = (1, 2)
    name: str | None = None
    loss: str = "square"  # also the name of a scalar
    run: int = 7
    step: float = 0.5


def add(store, config, experiment="", length=3, **more):
    ticks = np.arange(length)
    data = xr.Dataset({"loss": ("step", 1.0 / (1 + ticks))}, {"step": ticks}).assign(more)
    return store.add(config, data, experiment=experiment)


def names(entries):
    return {entry.name for entry in entries}


# filters


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rate=0.1", ("rate", "=", 0.1)),
        ("rate==0.1", ("rate", "=", 0.1)),
        ("seed<8", ("seed", "<", 8)),
        ("task.width >= 16", ("task.width", ">=", 16)),
        ("experiment=walk", ("experiment", "=", "walk")),
        ("how!=", ("how", "!=", "")),
        ("how=a b", ("how", "=", "a b")),
        ('how="5"', ("how", "=", "5")),
        ("flag=true", ("flag", "=", True)),
        ("sizes=[1, 2]", ("sizes", "=", [1, 2])),
        ("name=null", ("name", "=", None)),
        ("rate>-1e-3", ("rate", ">", -1e-3)),
    ],
)
def test_filters_are_read(text, expected):
    (found,) = parse(text)
    assert (found.field, found.operator, found.value) == expected
    assert type(found.value) is type(expected[2])


@pytest.mark.parametrize("text", ["", "rate", "=3", "rate=>3", "rate=<3", "rate!3", "a b=3", "<"])
def test_what_is_no_filter_is_refused(text):
    with pytest.raises(ValueError, match="is not FIELD OPERATOR VALUE"):
        parse([text])


OPERATORS = ("=", "!=", "<", "<=", ">", ">=")
numbers = st.integers(-5, 5) | st.floats(allow_nan=False, allow_infinity=False)


@given(numbers, numbers)
def test_exactly_one_order_holds(value, other):
    accepted = {op: parse(f"x{op}{json.dumps(other)}")[0].accepts(value) for op in OPERATORS}
    assert accepted["<"] + accepted["="] + accepted[">"] == 1
    assert accepted["<="] == (accepted["<"] or accepted["="])
    assert accepted[">="] == (accepted[">"] or accepted["="])
    assert accepted["!="] != accepted["="]


plain = st.none() | st.booleans() | numbers | st.text() | st.lists(st.integers())


@given(plain, plain)
def test_equality_is_that_of_json(value, other):
    (found,) = parse("x=" + json.dumps(other))
    as_written = isinstance(value, str) and not isinstance(other, str)
    expected = json.dumps(other) == value if as_written else _same(value, other)
    assert found.accepts(value) == expected
    assert parse("x!=" + json.dumps(other))[0].accepts(value) != expected


def _same(value, other):
    return isinstance(value, bool) == isinstance(other, bool) and value == other


@given(st.recursive(plain, lambda x: st.dictionaries(st.text("ab", min_size=1), x), max_leaves=8))
def test_flat_configs_keep_every_leaf(value):
    def leaves(x):
        return sum(map(leaves, x.values())) if isinstance(x, dict) and x else 1

    found = flat({"field": value})
    assert len(found) == leaves(value)
    assert all(name.startswith("field") for name in found)


# lists


def test_runs_are_listed_with_their_config(filled):
    entries = listed(filled)
    assert [entry.name for entry in entries] == [run.name for run in filled]
    assert entries[0].experiment == "walk"
    assert entries[0].config == entries[0].run.config
    assert entries[0].seconds == 0.5
    assert entries[0].when == (entries[0].run.path / "DONE").stat().st_mtime
    assert swept(entries) == ["rate", "seed"]


@pytest.mark.parametrize(
    ("filters", "count"),
    [
        ((), 6),
        ("rate=0.1", 3),
        (["rate=0.1", "seed<2"], 2),
        (["rate<0.2", "rate>0.1"], 0),
        ("seed!=0", 4),
        ("experiment=walk", 6),
        ("experiment!=walk", 0),
        ("config.seed=1", 2),
        ("how=", 6),
        ("how=5", 0),
        ("seed=x", 0),
    ],
)
def test_filters_are_anded(filled, filters, count):
    assert len(listed(filled, filters)) == count


def test_fields_of_fields(store):
    wide = add(store, Nested(Task(width=16)))
    add(store, Nested())
    text = add(store, Nested(name="5", run=8))
    assert names(listed(store, "task.width>=16")) == {wide.name}
    assert len(listed(store, "sizes=[1,2]")) == 3
    assert names(listed(store, "name=5")) == {text.name}
    assert names(listed(store, "name>4")) == {text.name}  # texts; null has no order
    assert names(listed(store, "config.run=8")) == {text.name}
    assert names(listed(store, f"run={wide.name}")) == {wide.name}
    assert len(listed(store, "flag=false")) == 3
    assert listed(store, "flag=0") == []


def test_unknown_fields_and_orders_are_told(filled):
    with pytest.raises(ValueError, match="field 'sed' is not known: did you mean 'seed'"):
        listed(filled, "sed=3")
    with pytest.raises(ValueError, match="seed is not ordered against 'many'"):
        listed(filled, "seed<many")
    add(filled, Nested())
    assert len(listed(filled, "task.width=4")) == 1  # the others do not have it


def test_an_empty_store(store):
    assert listed(store) == []
    assert listed(store, "anything=3") == []
    assert sql(store, "select count(*) as n from scalars").to_pylist() == [{"n": 0}]
    assert table(store).num_rows == 0
    with pytest.raises(ValueError, match="no run in"):
        open(store, "anything=3")


def test_what_is_not_finished_is_not_listed(filled):
    (filled.root / ".new-abc-1").mkdir()
    (filled.root / "notes.txt").write_text("mine")
    (filled.root / "folder").mkdir()
    gone = listed(filled)[0]
    (gone.run.path / "DONE").unlink()
    assert len(listed(filled)) == 5


@pytest.mark.parametrize("content", ["{", "[]", '{"schema": 1}', None])
def test_a_damaged_config_is_left_out_and_told(filled, content):
    path = listed(filled)[0].run.path / "config.json"
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.warns(UserWarning, match="is left out: its config.json is damaged"):
        assert len(listed(filled)) == 5


def test_a_newer_config_is_left_out_and_told(filled):
    path = listed(filled)[0].run.path / "config.json"
    path.write_text(path.read_text().replace('"schema":1', '"schema":99'))
    with pytest.warns(UserWarning, match="a newer attnflow stored it"):
        assert len(listed(filled)) == 5


def test_names_and_their_beginnings(filled):
    every = sorted(run.name for run in filled)
    assert named(filled, every[0]) == every[0]
    assert named(filled, every[0][:12]) == every[0]
    assert names(listed(filled, [every[0][:12], every[3]])) == {every[0], every[3]}
    rate = listed(filled, every[0])[0].config["rate"]
    assert listed(filled, [every[0], f"rate!={rate}"]) == []
    for bad in ("xyz", ""):
        with pytest.raises(ValueError, match=r"no run in .* begins with"):
            named(filled, bad)
    os.rename(filled.root / every[1], filled.root / (every[0][:5] + "z"))
    with pytest.raises(ValueError, match="is one of 2"):
        named(filled, every[0][:5])


def test_failures_are_found_by_filters_too(store):
    for seed in range(3):
        store.add_failure(Walk(seed=seed), f"Traceback {seed}", experiment="walk")
    ((name, (entry, traceback)),) = failed(store, "seed=1").items()
    assert (entry.config["seed"], traceback) == (1, "Traceback 1")
    assert list(failed(store, name[:10])) == [name]
    with pytest.raises(ValueError, match="no run"):
        named(store, name)


# tables


def test_sql_over_runs_and_scalars(filled):
    found = sql(
        filled,
        "select rate, seed, max(loss) as top from runs join scalars using (run) "
        "group by all order by all",
        ["seed<2"],
    ).to_pylist()
    assert [(row["rate"], row["seed"]) for row in found] == [(0.1, 0), (0.1, 1), (0.2, 0), (0.2, 1)]
    for row in found:
        config = Walk(row["seed"], row["rate"], 5)
        assert row["top"] == walk(config).loss.max()


def test_the_long_table_holds_every_number(filled):
    rows = table(filled)
    assert rows.column_names[:2] == ["run", "experiment"]
    assert rows.column_names[-2:] == ["step", "loss"]
    assert rows.num_rows == 30
    for run in filled:
        mine = rows.filter(np.asarray(rows["run"]) == run.name)
        assert mine["loss"].to_pylist() == run.scalars["loss"].to_pylist()
        assert mine["step"].to_pylist() == list(range(5))
        assert set(mine["seed"].to_pylist()) == {run.config["seed"]}
    assert table(filled, "seed=0", ["seed", "loss"]).column_names == ["seed", "loss"]
    with pytest.raises(ValueError, match="column 'los' is not known: did you mean 'loss'"):
        table(filled, columns=["los"])


def test_names_that_are_taken(store):
    add(store, Nested())
    (first, *_) = table(store).to_pylist()
    assert first["loss"] == 1.0
    assert first["config.loss"] == "square"
    assert first["config.step"] == 0.5
    assert first["config.run"] == 7
    assert first["task.kind"] == "small"
    assert first["sizes"] == "[1, 2]"


def test_runs_of_several_kinds_in_one_table(store):
    add(store, Nested(), "nested")
    flow = xr.Dataset({"loss": ("time", [2.0, 1.0]), "norm": 3.0}, {"time": [0.0, 0.5]})
    store.add(Walk(), flow, experiment="flow")
    bare = xr.Dataset({"picture": (("x", "y"), np.ones((2, 2)))})
    store.add(Walk(seed=1), bare, experiment="bare")  # has no scalar at all
    rows = table(store)
    assert {"step", "time", "loss", "norm"} <= set(rows.column_names)
    counts = sql(store, "select experiment, count(*) as n from runs group by all").to_pylist()
    assert {row["experiment"]: row["n"] for row in counts} == {"nested": 1, "flow": 1, "bare": 1}
    kinds = rows["experiment"].to_pylist()
    assert [kinds.count(x) for x in ("nested", "flow", "bare")] == [3, 2, 1]
    assert final(store.find(Walk(seed=1), "bare")) == {}
    assert final(store.find(Walk(), "flow")) == {"time": 0.5, "loss": 1.0, "norm": 3.0}


@pytest.mark.parametrize(
    "query", ["selct 1", "select nothing from runs", "select * from entry", ""]
)
def test_bad_queries_are_told(filled, query):
    with pytest.raises(ValueError, match=r"^query: "):
        sql(filled, query)


def test_tables_see_no_python_variables(filled):
    store = table(filled)
    with pytest.raises(ValueError, match="does not exist"):
        sql(filled, "select * from store")
    assert store.num_rows == 30


def test_damage_stops_a_reader(filled):
    run = listed(filled)[2].run
    path = run.path / "scalars.parquet"
    content = bytearray(path.read_bytes())
    content[40] ^= 1
    path.write_bytes(content)
    for read in (table, open, lambda store: compare(store, [each.name for each in store])):
        with pytest.raises(DamagedRun, match=f"run {run.name} is damaged: scalars.parquet"):
            read(filled)


# one Dataset


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


# differences


def test_runs_are_compared(filled):
    one, other = (filled.find(Walk(seed, 0.1, 5), "walk") for seed in (0, 2))
    found = compare(filled, [one.name[:12], other.name])
    assert found.names == [one.name, other.name]
    assert found.fields == {"seed": {one.name: 0, other.name: 2}}
    assert found.finals["loss"][one.name] == walk(Walk(0, 0.1, 5)).loss[-1]
    third = add(filled, Nested(), "nested")
    found = compare(filled, [one.name, third.name])
    assert found.fields["experiment"] == {one.name: "walk", third.name: "nested"}
    assert found.fields["task.width"] == {third.name: 4}
    assert found.fields["config.run"] == {third.name: 7}
    with pytest.raises(ValueError, match=r"two runs or more \(got 1\)"):
        compare(filled, [one.name, one.name[:12]])


# other programs


def test_export_to_csv(filled, tmp_path):
    assert export(filled, "seed<2", tmp_path / "new" / "all.csv") == 4
    with (tmp_path / "new" / "all.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    expected = table(filled, "seed<2").to_pylist()
    assert [float(row["loss"]) for row in rows] == [row["loss"] for row in expected]
    assert [row["run"] for row in rows] == [row["run"] for row in expected]


def test_export_to_parquet(filled, tmp_path):
    assert export(filled, (), tmp_path / "all.parquet") == 6
    assert pq.read_table(tmp_path / "all.parquet").equals(table(filled))


def test_export_refuses(filled, tmp_path):
    for name in ("all.xlsx", "all"):
        with pytest.raises(ValueError, match=r"export format .* choose one of .csv, .parquet"):
            export(filled, (), tmp_path / name)
    with pytest.raises(ValueError, match="nothing to export"):
        export(filled, "seed=77", tmp_path / "all.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(ValueError, match="is a folder"):
        export(filled, (), tmp_path / "folder.csv")
    assert [x.name for x in tmp_path.iterdir() if x.suffix] == ["folder.csv"]


class FakeWriter:
    """Keeps what tensorboardX would write."""

    said: dict = {}  # noqa: RUF012

    def __init__(self, folder, filename_suffix):
        self.rows = self.said[folder] = []
        assert filename_suffix == ".attnflow"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def add_text(self, tag, text, walltime):
        self.rows.append((tag, text))

    def add_scalar(self, tag, value, step, walltime):
        self.rows.append((tag, value, step, walltime))


def test_what_tensorboard_gets(filled, tmp_path, monkeypatch):
    monkeypatch.setattr(FakeWriter, "said", {})
    fake = types.SimpleNamespace(SummaryWriter=FakeWriter)
    monkeypatch.setitem(sys.modules, "tensorboardX", fake)
    assert export_tensorboard(filled, "rate=0.1", tmp_path / "tb") == 3
    assert len(FakeWriter.said) == 3
    entry = listed(filled, ["rate=0.1", "seed=2"])[0]
    folder = tmp_path / "tb" / "walk" / f"seed=2-{entry.name[:8]}"
    (tag, text), *scalars = FakeWriter.said[str(folder)]
    assert tag == "config"
    assert '"seed": 2' in text
    loss = walk(Walk(2, 0.1, 5)).loss.values
    assert [(name, value, step) for name, value, step, _ in scalars] == [
        ("loss", value, step) for step, value in enumerate(loss)
    ]
    assert scalars[-1][3] - scalars[0][3] == pytest.approx(0.5)  # the seconds it took


def test_flows_count_rows_in_tensorboard(store, tmp_path, monkeypatch):
    monkeypatch.setattr(FakeWriter, "said", {})
    fake = types.SimpleNamespace(SummaryWriter=FakeWriter)
    monkeypatch.setitem(sys.modules, "tensorboardX", fake)
    flow = xr.Dataset(
        {"loss": ("time", [2.0, 1.0]), "word": ("time", ["a", "b"])}, {"time": [0.0, 0.5]}
    )
    store.add(Walk(), flow, experiment="flow")
    export_tensorboard(store, (), tmp_path)
    ((_, *scalars),) = FakeWriter.said.values()
    assert [row[:3] for row in scalars] == [
        ("time", 0.0, 0),
        ("time", 0.5, 1),
        ("loss", 2.0, 0),
        ("loss", 1.0, 1),
    ]


def test_real_event_files_are_replaced_not_added(filled, tmp_path):
    pytest.importorskip("tensorboardX")
    for _ in range(2):
        assert export_tensorboard(filled, (), tmp_path) == 6
    assert len(list(tmp_path.rglob("events.out.tfevents.*.attnflow"))) == 6


def test_tensorboard_is_an_extra(filled, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ValueError, match=r"pip install 'attnflow\[tensorboard\]'"):
        export_tensorboard(filled, (), tmp_path)


@given(st.text(max_size=40), st.text(max_size=40))
def test_labels_are_safe_paths(experiment, value):
    found = label(Entry("0123456789", None, experiment, {"how": value}, 0.0), ["how"])  # pyright: ignore[reportArgumentType]
    kind, rest = found.split("/")
    assert kind not in ("", ".", "..")
    assert rest.endswith("-01234567")
