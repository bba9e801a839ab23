import json
import shlex

import pytest

from attnflow.cli import main
from attnflow.runs import Store, grid
from tests.runs.experiments import Walk, walk


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path / "läufe")
    for config in grid(Walk(length=5), rate=(0.1, 0.2), seed=range(3)):
        store.add(config, walk(config), experiment="walk", seconds=0.25, log="one\ntwo\nthree\n")
    store.add_failure(Walk(seed=9), "Traceback\nArithmeticError: [bold]no[/]", experiment="walk")
    return store


@pytest.fixture
def run(store, capsys):
    def run(line, status=0):
        capsys.readouterr()
        action, *rest = shlex.split(line)
        try:
            found = main(["runs", action, *rest, "--store", str(store.root)])
        except SystemExit as stop:  # the argument parser's own way out
            found = stop.code
        out, err = capsys.readouterr()
        assert found == status, err
        return out, err

    return run


def name_of(store, **fields):
    return store.name(Walk(length=5, **fields), "walk")


def test_list_as_a_table(run, store):
    out, err = run("list 'seed<2' rate=0.1")
    assert name_of(store, seed=1)[:8] in out
    assert name_of(store, seed=2)[:8] not in out
    assert "seed" in out
    assert "rate" not in out  # it is the same in all
    assert "loss" in out
    assert "0.25" in out
    assert "2 runs in" in err


def test_a_long_list_is_cut_and_says_so(run):
    out, err = run("list --limit 2")
    assert out.count("walk") == 2
    assert "6 runs in" in err
    assert "--limit 0 shows all" in err
    assert run("list --limit 0")[0].count("walk") == 6


def test_a_store_of_many_experiments_has_a_table_one_can_read(run, store):
    """Fields that only another experiment has tell nothing; of many that differ some are shown."""
    for seed in range(2):
        wide = {"seed": seed} | {f"field_{i}": seed + i for i in range(9)}
        store.add(wide, walk(Walk(seed=seed)), experiment="wide", seconds=0.25, log="")
    store.add({"lonely": 1}, walk(Walk()), experiment="single", seconds=0.25, log="")
    out, err = run("list")
    assert out.splitlines()[1].split("┃")[3:6] == [" rate ", " field_0 ", " seed "]
    assert "lonely" not in out
    assert "5 more fields differ" in err
    assert "more fields" not in run("list experiment=walk")[1]


def test_list_as_json(run, store):
    rows = json.loads(run("list seed=1 --json")[0])
    assert {row["run"] for row in rows} == {name_of(store, seed=1, rate=x) for x in (0.1, 0.2)}
    row = next(row for row in rows if row["config"]["rate"] == 0.2)
    assert row["loss"] == float(walk(Walk(1, 0.2, 5)).loss[-1])
    assert row["seconds"] == 0.25
    assert set(row) == {"run", "experiment", "config", "loss", "seconds", "when"}


def test_nothing_passes(run):
    out, err = run("list seed=77")
    assert out == ""
    assert "0 runs" in err
    assert json.loads(run("list seed=77 --json")[0]) == []


def test_failures(run, store):
    out, _ = run("list --failed")
    assert "ArithmeticError: [bold]no[/]" in out
    (row,) = json.loads(run("list --failed seed=9 --json")[0])
    assert row["run"] == store.name(Walk(seed=9), "walk")
    out, _ = run(f"show {row['run'][:12]}")
    assert "failed" in out
    assert "ArithmeticError" in out


def test_show(run, store):
    name = name_of(store, seed=2)
    out, _ = run(f"show {name} --lines 2")
    assert f"run {name} of experiment walk: whole" in out
    assert "two\nthree" in out
    assert "one" not in out.split("log")[-1]
    about = json.loads(run(f"show {name[:10]} --json")[0])
    assert about["config"]["seed"] == 2
    assert about["environment"]["seconds"] == 0.25
    assert about["final"]["step"] == 4
    assert about["failure"] is None


@pytest.mark.parametrize("file", ["config.json", "environment.json", "scalars.parquet", "log.txt"])
def test_show_tells_damage_and_the_rest(run, store, file):
    name = name_of(store, seed=2)
    (store.root / name / file).write_bytes(b"\x00nonsense")
    out, _ = run(f"show {name}")
    why = "readable" if file == "config.json" else "what was written"
    assert f"damaged ({file} is not {why})" in out
    out, err = run("list")
    assert name[:8] not in out
    assert f"1 run is left out as damaged: {name}" in err
    out, _ = run(f"rm {name} --yes")
    assert out == f"removed {name}\n"
    assert store.get(name) is None


def test_compare(run, store):
    one, other = name_of(store, seed=0), name_of(store, seed=1)
    out, _ = run(f"compare {one} {other}")
    assert "seed" in out
    assert "loss" in out
    found = json.loads(run(f"compare {one} {other} --json")[0])
    assert found["fields"] == {"seed": {one: 0, other: 1}}


def test_export(run, tmp_path):
    out, _ = run(f"export rate=0.1 --out {tmp_path}/all.csv")
    assert out == f"3 runs: {tmp_path}/all.csv\n"
    assert (tmp_path / "all.csv").read_text().count("\n") == 16
    run(f"export --out {tmp_path}/all.parquet")


def test_removal_asks(run, store, monkeypatch):
    answers = iter(["n", "", "y"])
    monkeypatch.setattr("builtins.input", lambda question: next(answers))
    for _ in range(2):
        assert "nothing is removed" in run("rm seed=0", status=1)[0]
    assert len(list(store)) == 6
    out, _ = run("rm seed=0")
    assert out.count("removed") == 2
    assert name_of(store, seed=0) in out
    assert len(list(store)) == 4


def test_removal_of_a_failure(run, store):
    run(f"rm {store.name(Walk(seed=9), 'walk')} --yes")
    assert store.failures() == {}
    assert len(list(store)) == 6


def test_removal_with_nobody_to_ask(run, store, monkeypatch):
    def nobody(_):
        raise EOFError

    monkeypatch.setattr("builtins.input", nobody)
    assert "--yes removes without asking" in run("rm seed=0", status=2)[1]
    assert len(list(store)) == 6


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("lst", "did you mean 'list'?"),
        ("list sed=3", "did you mean 'seed'?"),
        ("list 'seed<many'", "is not ordered against 'many'"),
        ("list rate=>3", "is not FIELD OPERATOR VALUE"),
        ("list xyz", "a filter has an operator"),
        ("list --limit -1", "limit must be a whole number"),
        ("show xyz", "begins with 'xyz'"),
        ("show", "begins with ''"),
        ("compare", "two runs or more (got 0)"),
        ("export", "say where to"),
        ("export --out all.xlsx", "choose one of .csv, .parquet"),
        ("rm", "say which runs"),
        ("rm seed=77 --yes", "nothing is removed"),
    ],
)
def test_bad_input_is_one_line_and_status_2(run, store, line, message):
    out, err = run(line, status=2)
    assert out == ""
    assert message in err
    assert err.count("\n") == 1
    assert len(list(store)) == 6


def test_no_store(capsys, tmp_path):
    assert main(["runs", "list", "--store", str(tmp_path / "none")]) == 2
    assert "name their folder with --store" in capsys.readouterr().err


def test_help_names_every_action(capsys):
    assert main(["runs"]) == 0
    out = capsys.readouterr().out
    assert all(action in out for action in ("list", "show", "compare", "export", "rm"))
