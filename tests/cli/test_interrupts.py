"""Ctrl-C ends every command with one line, status 130 and no process left behind."""

import sys
from pathlib import Path

import pytest

from attnflow.cli import main
from tests.cli.interrupted import Ended, interrupted

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")
LIMIT = 10.0  # seconds; the aim is 2, on an idle machine

# A lesson for the compiler: it holds the main thread where no exception can reach it.
DEAF = """
import ctypes, threading
import attnflow.cli.verify as command
def busy(_):
    print("busy", flush=True)
    {what}
command.select = busy
"""
IN_C = "ctypes.CDLL(None).sleep(60) or ctypes.CDLL(None).sleep(60)"
SWALLOWED = """
    import time
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            pass
"""
TURNED = """
    import time
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        raise RuntimeError("INTERNAL: CallbackException")
"""
UNRAISABLE = """
    import gc, time
    def collected(*_):
        if collected.now:
            collected.now = False
            time.sleep(60)
    collected.now = True
    gc.callbacks.append(collected)
    gc.collect()
    time.sleep(60)
"""
LOST = """
    import time
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        return []
"""


def well(found: Ended | None) -> None:
    assert found is not None, "it ended before Ctrl-C"
    assert found.well, found
    assert found.seconds < LIMIT


@pytest.mark.parametrize("what", [IN_C, SWALLOWED, TURNED, LOST, UNRAISABLE])
def test_an_interrupt_that_does_not_arrive(what):
    """A C call that goes on after the signal, a loop that swallows the exception, a callback that
    turns it into another one, one that ends as if nothing had been asked, and a collection of
    garbage, in which no exception can be raised."""
    before = DEAF.format(what=what)
    well(interrupted(["verify"], line="busy", after=0.2, before=before))


def test_while_the_command_is_imported():
    before = "import builtins; print('importing', flush=True)"
    well(interrupted(["verify"], line="importing", after=0.4, before=before))


@pytest.mark.parametrize("after", [0.0, 0.3, 3.0])
def test_workers_end_with_the_ledger(after):
    well(interrupted(["verify"], workers=2, after=after))


def test_a_figure_leaves_no_half_written_file(tmp_path):
    words = ["reproduce", "conditioning/preconditioning", "--out", str(tmp_path)]
    well(interrupted(words, line="1 figure", after=1.0))
    assert not [path for path in Path(tmp_path).rglob(".*") if path.is_file()]


LONG = [
    "simulate two_token --c0 30 --c1 30 --t1 1e12 --points 500000",
    "simulate value_softmax --projections 0.3 0.1 --t1 1e12 --points 500000",
    "simulate sink_matrix --t1 1e12 --points 300000",
    "simulate tied_value_softmax --dimension 200 --points 2000",
    "simulate prompt --samples 2000 --steps 100000000",
    "simulate single_location --heads 8 --tokens 30",
    "simulate head --length 20000 --steps 100000000",
    "simulate head --task diversity --length 800 --steps 1000000",
    "reproduce specialization",
    "report",
]


@pytest.mark.slow
@pytest.mark.parametrize("after", [0.5, 2.0, 5.0, 9.0])
@pytest.mark.parametrize("line", LONG)
def test_at_any_moment(tmp_path, line, after):
    out = ["--out", str(tmp_path)] if line.split()[0] in ("reproduce", "report") else []
    well(interrupted([*line.split(), *out], after=after))


def test_in_the_import_of_a_command(capsys, monkeypatch):
    def raised(name):
        raise KeyboardInterrupt

    monkeypatch.setattr("importlib.import_module", raised)
    assert main(["verify"]) == 130
    assert capsys.readouterr().err.count("\n") == 1
