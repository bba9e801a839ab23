"""Every file of a run, damaged in every way we know: it is named, left out and redone."""

import json
import os
import shutil
import warnings

import pytest
import xarray as xr

from attnflow.cli import main
from attnflow.runs import Store, grid, open, sweep
from attnflow.runs.export import export
from attnflow.runs.filters import listed
from attnflow.runs.packing import FILES
from tests.runs.experiments import WALK, Walk, walk

CONFIGS = grid(Walk(length=5), seed=range(3))


def _link(path, other):
    path.unlink()
    path.symlink_to(other)


def _folder(path, other):
    path.unlink()
    path.mkdir()


def _pipe(path, other):
    path.unlink()
    os.mkfifo(path)


def _flip(path, other):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


DAMAGE = {
    "missing": lambda path, other: path.unlink(),
    "empty": lambda path, other: path.write_bytes(b""),
    "truncated": lambda path, other: path.write_bytes(path.read_bytes()[:-3]),
    "longer": lambda path, other: path.write_bytes(path.read_bytes() + b"more"),
    "a flipped bit": _flip,
    "zeros": lambda path, other: path.write_bytes(bytes(path.stat().st_size)),
    "{}": lambda path, other: path.write_text("{}"),
    "[]": lambda path, other: path.write_text("[]"),
    "5": lambda path, other: path.write_text("5"),
    "null": lambda path, other: path.write_text("null"),
    "of another run": lambda path, other: shutil.copyfile(other, path),
    "a link": _link,
    "a folder": _folder,
    "a named pipe": _pipe,
    "no text": lambda path, other: path.write_bytes(b"\xff\xfe\x80"),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("model") / "runs")
    for config in CONFIGS:  # logs that differ, so that one in the place of another is damage
        store.add(config, walk(config), experiment="walk", log=f"{config}", seconds=config.seed)
    return store


@pytest.fixture
def store(model, tmp_path):
    shutil.copytree(model.root, tmp_path / "runs")
    return Store(tmp_path / "runs")


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("file", [*FILES, "DONE"])
def test_a_damaged_run_is_named_left_out_and_redone(store, tmp_path, capsys, file, how):
    first, second = (store.find(config, "walk") for config in CONFIGS[:2])
    DAMAGE[how](first.path / file, second.path / file)
    everything = (open, lambda store: export(store, [], tmp_path / "all.csv"))
    for read in (lambda store: listed(store, verify=True), *everything):
        with pytest.warns(UserWarning, match=f"1 run is left out as damaged: {first.name}"):
            read(store)
    found = store.check()
    assert list(found.damaged) == [first.name]
    assert len(found.whole) == 2
    assert main(["runs", "check", "--store", str(store.root)]) == 1
    said = capsys.readouterr()
    assert f"{first.name}  {found.damaged[first.name]}" in said.out
    assert main(["runs", "list", "--store", str(store.root)]) == 0
    assert first.name in capsys.readouterr().err
    report = sweep(CONFIGS, WALK, store, engine="here", progress=False)
    assert (report.done, report.there) == (1, 2)
    assert list(report.redone) == [first.name]
    assert store.check().damaged == {}
    xr.testing.assert_identical(store.find(CONFIGS[0], "walk").data(), walk(CONFIGS[0]))


def test_a_copy_under_another_name_is_no_run(store):
    run = store.find(CONFIGS[0], "walk")
    shutil.copytree(run.path, store.root / "0123456789abcdef0123")
    shutil.copytree(run.path, store.root / "copy")
    with pytest.warns(UserWarning, match="2 runs are left out as damaged"):
        assert len(listed(store)) == 3
    assert set(store.check().damaged.values()) == {"it is a copy of another run"}


def test_a_run_of_the_first_edition_is_read_and_its_copy_refused(store):
    """It kept checksums alone, and its name is the hash of the whole config."""
    run = store.find(CONFIGS[0], "walk")
    old = store.root / _first_edition(run)
    assert [each.name for each in listed(store)] == sorted(
        [old.name, *(store.find(x, "walk").name for x in CONFIGS[1:])]
    )
    assert store.find(CONFIGS[0], "walk").name == old.name
    shutil.copytree(old, store.root / "1123456789abcdef0123")
    assert store.check().damaged == {"1123456789abcdef0123": "it is a copy of another run"}


def _first_edition(run):
    from attnflow.runs.config import digest

    done = json.loads((run.path / "DONE").read_text())
    flat = {name: sha for name, (sha, _) in done["files"].items()}
    (run.path / "DONE").write_text(json.dumps(flat))
    name = digest((run.path / "config.json").read_text().strip())
    run.path.rename(run.path.parent / name)
    return name


def test_many_damaged_runs_are_counted(tmp_path):
    store = Store(tmp_path)
    for config in grid(Walk(length=5), seed=range(8)):
        (store.add(config, walk(config)).path / "log.txt").unlink()
    with pytest.warns(UserWarning, match=r"8 runs are left out .* and 3 more"):
        assert listed(store) == []


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"5", b"null", b'{"config": 3}', b"\xff"])
def test_a_damaged_record_of_a_failure_is_named(store, content):
    store.add_failure(Walk(seed=9), "Traceback", experiment="walk")
    store.add_failure(Walk(seed=8), "Traceback", experiment="walk")
    name = store.name(Walk(seed=9), "walk")
    (store.root / ".failed" / f"{name}.json").write_bytes(content)
    with pytest.warns(UserWarning, match=f"records of failures that cannot be read: {name}"):
        assert len(store.failures()) == 1
    assert store.check().unreadable == [name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sweep([Walk(seed=9)], WALK, store, engine="here", progress=False)
    assert store.check().unreadable == []


def test_other_things_in_the_folder_are_left_alone(store, capsys):
    (store.root / "notes.txt").write_text("mine")
    (store.root / "plots").mkdir()
    (store.root / "plots" / "config.json").write_text("{}")
    assert len(listed(store)) == 3
    assert main(["runs", "check", "--store", str(store.root)]) == 0
    assert "3 runs are whole" in capsys.readouterr().out
