"""A command that gets Ctrl-C as from a terminal: with all its processes, at a given moment."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

# What a shell starts in the background ignores Ctrl-C, and so do its children: the tests too.
PROGRAM = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
{before}
from attnflow.cli import entry
if __name__ == "__main__":
    entry()
"""


@dataclasses.dataclass(frozen=True)
class Ended:
    status: int
    seconds: float
    told: str
    left: tuple[int, ...]  # processes that outlived it

    @property
    def well(self) -> bool:
        return (
            self.status == 130
            and self.told.count("\n") == 1
            and "interrupted; what was finished is kept" in self.told
            and not self.left
        )


def interrupted(
    words: list[str],
    *,
    after: float = 0.0,
    line: str | None = None,
    workers: int = 0,
    before: str = "",
    limit: float = 60.0,
) -> Ended | None:
    """Ctrl-C `after` seconds after its start, or after a line of its output that contains `line`,
    or after it has started as many processes as `workers`; None if it ended before. `before` is
    run before its imports."""
    command = [sys.executable, "-c", PROGRAM.format(before=before), *words]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, text=True, stdout=pipe, stderr=pipe, start_new_session=True)
    try:
        assert process.stdout is not None
        if line is not None:
            next((each for each in process.stdout if line in each), None)
        while len(_children(process.pid)) < workers and process.poll() is None:
            time.sleep(0.02)
        time.sleep(after)
        if process.poll() is not None:
            return None
        children = _children(process.pid)
        asked = time.perf_counter()
        os.killpg(process.pid, signal.SIGINT)
        _, told = process.communicate(timeout=limit)
        seconds = time.perf_counter() - asked
        return Ended(process.returncode, seconds, told, _alive(children))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def _children(pid: int) -> list[int]:
    """Of a process, and theirs."""
    found = []
    for each in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, each.read_text().split()):
                found += [child, *_children(child)]
    return found


def _alive(pids: list[int], patience: float = 10.0) -> tuple[int, ...]:
    """Those that do not end."""
    deadline = time.monotonic() + patience
    while True:
        left = tuple(pid for pid in pids if _runs(pid))
        if not left or time.monotonic() > deadline:
            return left
        threading.Event().wait(0.05)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
