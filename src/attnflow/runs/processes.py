"""Child processes that do not outlive the process that started them."""

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from typing import Any

PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


@contextlib.contextmanager
def deaf_children() -> Iterator[None]:
    """Processes that are started here never hear Ctrl-C, which a terminal sends to all: the one
    that started them does, and ends them. A child that turns a deaf ear by itself does so too late,
    when its imports are done.

    In the one that starts them Ctrl-C waits until they are started: a child whose parent stops in
    the middle of telling it what to do would complain of that.
    """
    resource_tracker.ensure_running()  # it would be started with the first child and unblock SIGINT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # children inherit it
    handler = signal.getsignal(signal.SIGINT)
    heard: list[Any] = []
    # The mask is this thread's, but the handler runs here whichever thread the signal reached.
    waits = threading.current_thread() is threading.main_thread() and callable(handler)
    if waits:
        signal.signal(signal.SIGINT, lambda *about: heard.append(about))
    try:
        yield
    finally:
        if waits:
            signal.signal(signal.SIGINT, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if heard and callable(handler):
            handler(*heard[0])


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
