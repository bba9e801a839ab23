"""Child processes that do not outlive the process that started them."""

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from multiprocessing.connection import wait

PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


def end_with_parent() -> None:
    """Called in a child: end within a second of the parent's death, however the parent died.

    A thread waits for the parent's end. On Linux the kernel also sends SIGKILL, which works while a
    compiler holds the interpreter; it does so when the *thread* that started the child ends, so
    start children from a thread that lives as long as they are wanted.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    threading.Thread(target=_follow, args=(parent.sentinel,), daemon=True).start()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent.pid:  # it died before the call
            os._exit(1)


def _follow(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)
