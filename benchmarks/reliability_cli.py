"""Attacks on the command line: bad calls, outputs that fail, and Ctrl-C at many moments.

python -m benchmarks.reliability_cli        (about ten minutes)
"""

import contextlib
import io
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from attnflow.cli import COMMANDS, main
from benchmarks.reliability import Attack
from tests.cli.bad_calls import cases
from tests.cli.interrupted import Ended, interrupted

WRITTEN = ["--help", "simulate", "runs --help", "verify --help", "verify u_shape/lemma-3.1"]
LONG = [
    "verify",
    "simulate two_token --c0 30 --c1 30 --t1 1e12 --points 500000",
    "simulate value_softmax --projections 0.3 0.1 --t1 1e12 --points 500000",
    "simulate sink_matrix --t1 1e12 --points 300000",
    "simulate tied_value_softmax --dimension 200 --points 2000",
    "simulate prompt --samples 2000 --steps 100000000",
    "simulate single_location --heads 8 --tokens 30",
    "simulate head --length 20000 --steps 100000000",
    "reproduce specialization --out OUT",
    "report --out OUT",
]
MOMENTS = (0.5, 1.5, 3.0, 6.0, 10.0)


def bad_calls() -> Attack:
    """Each ends with status 2 and one line that names what is wrong."""
    failures, table = 0, list(dict.fromkeys(cases()))
    for line, word in table:
        words, out, err = shlex.split(line), io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main(words)
        told = err.getvalue()
        start = f"attnflow {words[0]}: " if words[0] in COMMANDS else "attnflow: "
        named = word in told or word.replace("_", "-") in told
        good = status == 2 and not out.getvalue() and told.count("\n") == 1
        if not (good and named and told.startswith(start)):
            failures += 1
            print(f"{line}: status {status}: {told}", file=sys.stderr)
    return Attack("bad calls of the command line", len(table), failures, "one line, status 2")


def written_to(line: str, output: int) -> tuple[int, list[str]]:
    command = [sys.executable, "-m", "attnflow", *line.split()]
    done = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True, timeout=300)
    return done.returncode, done.stderr.splitlines()


def lost_outputs() -> Attack:
    """A reader that is gone: nothing is said. A full device: one line and status 1."""
    failures = 0
    for line in WRITTEN:
        reader, writer = os.pipe()
        os.close(reader)
        failures += written_to(line, writer) != (141, [])
        os.close(writer)
        with Path("/dev/full").open("wb") as full:
            status, told = written_to(line, full.fileno())
        failures += not (status == 1 and len(told) == 1 and "No space left on device" in told[0])
    note = "quiet with status 141, or one line and status 1"
    return Attack("output into a closed pipe or a full device", 2 * len(WRITTEN), failures, note)


def ctrl_c() -> Attack:
    ended: list[Ended] = []
    for line in LONG:
        for moment in MOMENTS:
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                found = interrupted(line.replace("OUT", folder).split(), after=moment)
            if found is None:
                print(f"{line}: ended before {moment} s", file=sys.stderr)
                continue
            ended.append(found)
            if not found.well:
                print(f"{line} at {moment} s: {found}", file=sys.stderr)
    longest = max(each.seconds for each in ended)
    failures = sum(not each.well for each in ended)
    return Attack(
        "Ctrl-C while commands import, compile and compute",
        len(ended),
        failures,
        f"one line, status 130, no process left; at the longest {longest:.2f} s",
    )


def attacks() -> list[Attack]:
    return [bad_calls(), lost_outputs(), ctrl_c()]


if __name__ == "__main__":
    for attack in attacks():
        print(attack)
