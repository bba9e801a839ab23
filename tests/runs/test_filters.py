import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnflow.runs.filters import failed, flat, named, swept
from attnflow.runs.query import listed, open, parse, sql, table
from tests.runs.experiments import Walk
from tests.runs.stored import Nested, Task, add, names


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
    with pytest.warns(UserWarning, match=rf"1 run is left out .*{gone.name} \(DONE is missing"):
        assert len(listed(filled)) == 5


@pytest.mark.parametrize("content", ["{", "[]", '{"schema": 1}', None])
def test_a_damaged_config_is_left_out_and_told(filled, content):
    path = listed(filled)[0].run.path / "config.json"
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.warns(UserWarning, match=r"left out as damaged: .*config\.json"):
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
