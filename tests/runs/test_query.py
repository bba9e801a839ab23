import numpy as np
import pytest
import xarray as xr

from attnflow.runs.query import compare, final, listed, open, sql, table
from tests.runs.experiments import Walk, walk
from tests.runs.stored import Nested, add


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


def test_readers_leave_out_damaged_runs_and_name_them(filled):
    run = listed(filled)[2].run
    path = run.path / "scalars.parquet"
    content = bytearray(path.read_bytes())
    content[40] ^= 1
    path.write_bytes(content)
    told = rf"1 run is left out as damaged: {run.name} \(scalars.parquet is not what was written"
    for read in (table, open, lambda store: sql(store, "select run from scalars")):
        with pytest.warns(UserWarning, match=told):
            found = read(filled)
        assert run.name not in str(found["run"])
    with (
        pytest.warns(UserWarning, match=told),
        pytest.raises(ValueError, match=f"run {run.name} is damaged"),
    ):
        compare(filled, [each.name for each in filled])


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
