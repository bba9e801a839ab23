"""What a newcomer waits for: commands from the shell, each in a new process.

"first": nothing has been compiled on this machine yet; "later": the best of three more.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from attnflow import cache
from benchmarks.timing import timed

Row = tuple[str, str, str, str]
SCRIPT = Path(__file__).with_name("scipy_script.py")
COMMANDS = {  # what was asked, first and later, in seconds
    "simulate two_token --p 0 --c0 6 --c1 3": "2.5, 1.8",
    "simulate value_softmax --projections 0.3 0.1 -0.2 --t1 1e12": "2.5, 1.8",
    "verify u_shape/unique-trough": "4, 2.5",
    "simulate single_location": "",
    "simulate prompt": "",
    "simulate head": "",
}


def first_answers() -> list[Row]:
    script = min(timed(lambda: _run([str(SCRIPT)], {})) for _ in range(4))
    rows = [("the flow as a SciPy script, from the shell", "", f"{script:.2f} s", "")]
    for command, asked in COMMANDS.items():
        first, later = seconds(command)
        flow = "two_token" in command
        rows.append(
            (
                f"attnflow {command}",
                f"asked {asked} s" if asked else "",
                f"first {first:.2f} s, later {later:.2f} s",
                f"{first / script:.1f} and {later / script:.1f} of the script" if flow else "",
            )
        )
    return rows


def whole_ledger() -> list[Row]:
    first, later = seconds("verify", repeats=1)
    return [
        (
            "attnflow verify: the whole ledger",
            "asked 75, 40 s",
            f"first {first:.0f} s, later {later:.0f} s",
            "",
        )
    ]


def seconds(command: str, repeats: int = 3) -> tuple[float, float]:
    with tempfile.TemporaryDirectory() as folder:
        words, kept = ["-m", "attnflow", *command.split()], {cache.VARIABLE: folder}
        first = timed(lambda: _run(words, kept))
        return first, min(timed(lambda: _run(words, kept)) for _ in range(repeats))


def _run(words: list[str], more: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, *words], env=os.environ | more, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(done.stderr)


SECTIONS = {"first": first_answers, "ledger": whole_ledger}

if __name__ == "__main__":
    for name in sys.argv[1:] or SECTIONS:
        for row in SECTIONS[name]():
            print(" | ".join(row), flush=True)
