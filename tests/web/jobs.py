"""Jobs that test processes import."""

import os
import time

KEPT: list[bytearray] = []


def do(job, given):
    if job == "sleep":
        time.sleep(given["seconds"])
    if job == "grow":
        KEPT.append(bytearray(os.urandom(1) * (500 << 20)))
    if job == "die":
        os._exit(3)
    more = f" {len(os.sched_getaffinity(0))}" if job == "cores" else ""
    return 200, f"{job} {os.getpid()}{more}".encode()
