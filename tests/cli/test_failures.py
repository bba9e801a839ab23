"""Every error ends in a status and one line, in the process and as a program."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from attnflow.cli import main
from attnflow.cli import verify as verify_command

PROGRAM = [sys.executable, "-m", "attnflow"]


@pytest.fixture
def failing(monkeypatch, capsys):
    """`attnflow verify` that raises: its status and what it says."""

    def call(error):
        def select(_):
            raise error

        monkeypatch.setattr(verify_command, "select", select)
        status = main(["verify"])
        out, err = capsys.readouterr()
        assert out == ""
        return status, err

    return call


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (ValueError("p is wrong: mend it"), 2, "p is wrong: mend it"),
        (ValueError("one\n\n  two"), 2, "one two"),
        (RuntimeError("the solve stopped"), 1, "the solve stopped"),
        (FloatingPointError("not finite: lower the rate"), 1, "not finite: lower the rate"),
        (MemoryError(), 1, "memory ran out: choose smaller sizes"),
        (MemoryError("Unable to allocate 7 TiB"), 1, "(unable to allocate 7 TiB)"),
        (OverflowError("int too large"), 1, "left the range of the machine (int too large)"),
        (OSError(errno.ENOSPC, "No space left", "a.png"), 1, "a.png (No space left): free some"),
        (OSError(errno.ENOSPC, "No space left"), 1, "cannot write (No space left): free some"),
        (PermissionError(errno.EACCES, "Denied", "a"), 1, "cannot use a (Denied): name a place"),
        (OSError(errno.EROFS, "Read-only", "a"), 1, "name a place that can be written"),
        (OSError("strange"), 1, "cannot use a file (strange)"),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), 1, "cannot use a file (Broken pipe)"),
        (KeyError("x"), 70, "KeyError ('x'): this is a defect of attnflow; ATTNFLOW_TRACEBACK=1"),
        (TypeError("None"), 70, "TypeError (None)"),
        (AssertionError(), 70, "AssertionError ()"),
        (KeyboardInterrupt(), 130, "interrupted; what was finished is kept"),
    ],
)
def test_an_error_is_a_status_and_a_line(failing, error, status, words):
    found, line = failing(error)
    assert found == status
    assert line.startswith("attnflow verify: ")
    assert words in line
    assert line.count("\n") == 1


def test_what_a_compiler_says_is_cut(failing):
    _, line = failing(RuntimeError("RESOURCE_EXHAUSTED: " + "x" * 5000))
    assert len(line) < 600


def test_the_traceback_can_be_had(failing, monkeypatch):
    monkeypatch.setenv("ATTNFLOW_TRACEBACK", "1")
    status, err = failing(KeyError("x"))
    assert status == 70
    assert "Traceback (most recent call last)" in err
    assert err.splitlines()[-1].startswith("attnflow verify: KeyError")


def program(arguments, **options):
    return subprocess.run(
        [*PROGRAM, *arguments.split()], stderr=subprocess.PIPE, timeout=120, **options
    )


OUTPUTS = ["--help", "simulate", "runs --help", "verify --help", "verify u_shape/lemma-3.1 --json"]


@pytest.mark.parametrize("line", OUTPUTS)
def test_a_reader_that_is_gone_is_no_error(line):
    reader, writer = os.pipe()
    os.close(reader)
    done = program(line, stdout=writer)
    os.close(writer)
    assert done.returncode == 141
    rows = [each for each in done.stderr.decode().splitlines() if not each.startswith("✓")]
    assert [row.split(",")[0] for row in rows] == ["1 claim: 1 holds"] * ("--json" in line)


def test_a_table_into_a_pipe_that_is_gone():
    """rich has its own way out."""
    reader, writer = os.pipe()
    os.close(reader)
    done = program("verify u_shape/lemma-3.1", stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("line", [*OUTPUTS[:4], "verify u_shape/lemma-3.1"])
def test_a_full_device_is_told_in_a_line(line):
    with Path("/dev/full").open("wb") as full:
        done = program(line, stdout=full)
    assert done.returncode == 1
    (told,) = done.stderr.decode().splitlines()
    assert "cannot write (No space left on device): free some space" in told


@pytest.mark.parametrize("line", ["--help", "verify u_shape/lemma-3.1"])
def test_no_stdout_at_all(line):
    shell = ["sh", "-c", 'exec "$@" >&-', "sh", *PROGRAM, *line.split()]
    done = subprocess.run(shell, stderr=subprocess.PIPE, timeout=120)
    assert b"Traceback" not in done.stderr
    assert done.returncode in (0, 1)


def test_an_output_that_knows_no_greek():
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = program("--help", stdout=subprocess.PIPE, env=environment)
    assert done.returncode == 0
    done = program("verify u_shape/lemma-3.1", stdout=subprocess.PIPE, env=environment)
    assert (done.returncode, done.stderr) == (0, b"")
