"""Ctrl-C ends a command, whatever the command is doing."""

import contextlib
import os
import signal
import sys
import threading
from typing import NoReturn

from attnflow.cli.failures import INTERRUPTED, ended, interruption_told

PATIENCE = 1.2  # seconds to end in good order
_asked = threading.Event()


def watch(command: str) -> None:
    """Ctrl-C raises KeyboardInterrupt as ever, and ends the process if that did not do so in time.

    A compiler holds the main thread for many seconds, and an exception raised in one of its
    callbacks may be lost in it; so a thread watches, woken by the signal itself. Where the
    signal is ignored (a job in the background of a shell) it stays so.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def once(*_) -> None:
        if not _asked.is_set():
            _asked.set()
            raise KeyboardInterrupt

    def guard() -> None:
        while os.read(reader, 1)[0] != signal.SIGINT:
            pass
        threading.Event().wait(PATIENCE)
        _asked.set()
        if not interruption_told.is_set():
            ended(command, KeyboardInterrupt())
        leave()

    threading.Thread(target=guard, daemon=True).start()
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGINT, once)


def asked() -> bool:
    """Whether Ctrl-C was pressed, even if the exception was lost or became another one."""
    return _asked.is_set()


def leave() -> NoReturn:
    """End at once, with the children: threads of a compiler that still run would crash the
    interpreter while it tidies up."""
    import multiprocessing

    for child in multiprocessing.active_children():
        child.kill()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(INTERRUPTED)
