"""Compiled programs on disk: found by the next process, never in its way."""

import os
import subprocess
import sys

import pytest

from attnflow import cache

COMMAND = ["simulate", "prompt", "--steps", "20", "--json"]


@pytest.fixture(autouse=True)
def outside(monkeypatch):
    for name in (cache.VARIABLE, "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)


def outer():
    """The environment without what the tests' own cache has put there."""
    return {x: y for x, y in os.environ.items() if not x.startswith(("JAX_", "EQX_"))}


def attnflow(place, *arguments):
    every = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}  # whatever the load
    given = outer() | {cache.VARIABLE: str(place)} | every
    done = subprocess.run(
        [sys.executable, "-m", "attnflow", *arguments], capture_output=True, text=True, env=given
    )
    return done.returncode, done.stdout, done.stderr


def test_the_folder_is_of_the_user(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.folder().parent == tmp_path / "attnflow"  # pyright: ignore
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.folder().parent == tmp_path / ".cache" / "attnflow"  # pyright: ignore
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "mine"))
    assert cache.folder().parent == tmp_path / "mine" / "attnflow"  # pyright: ignore
    for off in ("off", "OFF", "0"):
        monkeypatch.setenv(cache.VARIABLE, off)
        assert cache.folder() is None


def test_what_one_process_compiled_another_finds(tmp_path):
    place = tmp_path / "programs"
    first = attnflow(place, *COMMAND)
    assert (first[0], first[2]) == (0, "")
    kept = {path: path.stat().st_mtime_ns for path in place.rglob("*-cache")}
    assert kept
    assert attnflow(place, *COMMAND) == first
    assert {path: path.stat().st_mtime_ns for path in place.rglob("*-cache")} == kept
    for path in kept:  # damage of every program
        path.write_bytes(b"not a program")
    status, out, err = attnflow(place, *COMMAND)
    assert (status, out) == first[:2]
    assert err.count("\n") == 1
    assert err.startswith("attnflow: a kept program could not be read and is compiled again")
    status, out, _ = attnflow(place, "cache")
    assert (status, out.split(" in ")[0].split(",")[0]) == (0, f"cache: {len(kept)} programs")
    status, out, _ = attnflow(place, "cache", "clear")
    assert status == 0
    assert f"removed {len(kept)} programs" in out
    assert not list(place.rglob("*-cache"))


def test_clearing_leaves_what_is_not_ours(tmp_path):
    for name in ("programs", "programs-of-mine", "replies"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "work-cache").write_text("mine")
    assert attnflow(tmp_path, "cache")[1].startswith("cache: 0 programs")
    assert attnflow(tmp_path, "cache", "clear")[0] == 0
    assert len(list(tmp_path.glob("*/work-cache"))) == 3


def test_a_folder_that_cannot_be_written_is_told_once(tmp_path):
    place = tmp_path / "file"
    place.write_text("in the way")
    status, out, err = attnflow(place, *COMMAND)
    assert status == 0
    assert out
    assert err.startswith("attnflow: programs are not kept: ")
    assert err.count("\n") == 1


def test_switched_off(tmp_path, monkeypatch):
    assert attnflow("off", "cache") == (0, "cache: off (ATTNFLOW_CACHE in the environment)\n", "")
    monkeypatch.setenv(cache.VARIABLE, "off")
    assert cache.use() is None
    assert cache.clear() == cache.Info(None)


def test_importing_changes_no_setting_of_jax(tmp_path):
    code = (
        "import os, attnflow as af; af.TwoToken, af.descend, af.SingleLocation; import jax;"
        "print(jax.config.jax_compilation_cache_dir, 'EQX_ON_ERROR' in os.environ)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=outer()
    )
    assert done.stdout.strip() == "None False"


def test_too_late():
    import jax  # noqa: F401

    with pytest.raises(RuntimeError, match="too late"):
        cache.use()
