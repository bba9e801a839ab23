"""Ctrl-C ends a command, whatever the command is doing."""

import _thread
import contextlib
import os
import signal
import sys
import threading
import time
from typing import Any, NoReturn

from attnflow.cli.failures import INTERRUPTED, ended, interruption_told

PATIENCE = 0.9  # seconds to end in good order
PAUSE = 0.02  # before it is tried again
COMPILER = ("jax", "jaxlib", "equinox")
_asked, _raised, _lost = threading.Event(), threading.Event(), threading.Event()


def watch(command: str) -> None:
    """Ctrl-C raises KeyboardInterrupt as ever, and ends the process if that did not do so in time.

    A compiler holds the main thread for many seconds, and an exception raised in one of its
    callbacks may be lost in it or break it: there none is raised. So a thread watches, woken by the
    signal itself, and tries again. Where the signal is ignored (a job in the background of a shell)
    it stays so.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def once(_, frame: Any) -> None:
        _asked.set()
        if _raised.is_set():
            return
        if frame is not None and _in_compiler(frame.f_code.co_filename):
            _lost.set()
            return
        _raised.set()
        raise KeyboardInterrupt

    def guard() -> None:
        while os.read(reader, 1)[0] != signal.SIGINT:
            pass
        end = time.monotonic() + PATIENCE
        while _lost.wait(max(0.0, end - time.monotonic())):
            _lost.clear()
            time.sleep(PAUSE)
            _thread.interrupt_main()
        _asked.set()
        if not interruption_told.is_set():
            ended(command, KeyboardInterrupt())
        leave()

    sys.unraisablehook = _without_interrupts
    threading.Thread(target=guard, daemon=True).start()
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGINT, once)


def _in_compiler(filename: str) -> bool:
    loaded = (sys.modules.get(name) for name in COMPILER)
    return any(
        filename.startswith(os.path.dirname(module.__file__ or "?") + os.sep)
        for module in loaded
        if module is not None
    )


def _without_interrupts(what: Any) -> None:
    """An exception raised where nobody can catch it, such as in a collection of garbage."""
    if issubclass(what.exc_type, KeyboardInterrupt):
        _raised.clear()
        _lost.set()
    else:
        sys.__unraisablehook__(what)


def asked() -> bool:
    """Whether Ctrl-C was pressed, even if the exception was lost or became another one."""
    return _asked.is_set()


def leave(status: int = INTERRUPTED) -> NoReturn:
    """End at once, with the children: threads of a compiler that still run would crash the
    interpreter while it tidies up."""
    if "multiprocessing" in sys.modules:
        import multiprocessing

        for child in multiprocessing.active_children():
            child.kill()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(status)
