"""Jobs that test processes import."""

import os
import time
from pathlib import Path

from attnflow.web.work import perform

KEPT: list[bytearray] = []
SLEEPER = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"


def do(job, given):
    if job == "sleep":
        time.sleep(given["seconds"])
    if job == "wait":
        wait(**given)
    if job == "grow":
        KEPT.append(bytearray(os.urandom(1) * (500 << 20)))
    if job == "die":
        os._exit(3)
    more = f" {len(os.sched_getaffinity(0))}" if job == "cores" else ""
    return 200, f"{job} {os.getpid()}{more}".encode()


def wait(gate, mark="", child=""):
    """Until there is a file `gate`; `mark` is a file in which it says that it has begun."""
    if mark:
        draft = Path(f"{mark}.new")
        draft.write_text(str(os.getpid()))
        draft.replace(mark)
    if child:
        perform(f'python -c "{SLEEPER}" {child}')
    while not os.path.exists(gate):
        time.sleep(0.01)
