"""What ends a command early: an exit status and one line for every error."""

import contextlib
import errno
import os
import select
import sys
import threading
import traceback

FAILED, BAD_INPUT, BUG, INTERRUPTED, CLOSED_PIPE = 1, 2, 70, 130, 141
TRACEBACK = "ATTNFLOW_TRACEBACK"
MOST = 500  # characters of a line: compilers quote whole programs
WAYS_OUT = {
    errno.ENOSPC: "free some space, or name another place",
    errno.EDQUOT: "free some space, or name another place",
    errno.EACCES: "name a place that you may use",
    errno.EPERM: "name a place that you may use",
    errno.EROFS: "name a place that can be written",
    errno.ENOENT: "check the name",
    errno.ENOTDIR: "check the name",
    errno.EISDIR: "name a file",
    errno.ENAMETOOLONG: "take a shorter name",
    errno.EMFILE: "close some files, or raise the limit with ulimit -n",
}


interruption_told = threading.Event()


def ended(command: str, error: BaseException) -> int:
    """Tell the error in a line on stderr and return the exit status."""
    status, line = verdict(error)
    if line:
        if os.environ.get(TRACEBACK) and status != INTERRUPTED:
            tell("".join(traceback.format_exception(error)).rstrip())
        tell(f"{command}: {line}")
    if status == INTERRUPTED:
        interruption_told.set()
    return status


def verdict(error: BaseException) -> tuple[int, str]:
    """Exit status and what to say; nothing where a parser has spoken or nobody reads."""
    said = _one_line(str(error))
    match error:
        case KeyboardInterrupt():
            return INTERRUPTED, "interrupted; what was finished is kept"
        case SystemExit(code=code):
            # the console of rich leaves by itself when its reader is gone
            gone = isinstance(error.__context__, BrokenPipeError)
            return (CLOSED_PIPE if gone else code if isinstance(code, int) else int(bool(code))), ""
        case BrokenPipeError() if _reader_is_gone():
            return CLOSED_PIPE, ""
        case OSError():
            return FAILED, _of_machine(error)
        case MemoryError():
            what = f" ({said[0].lower()}{said[1:]})" if said else ""
            return FAILED, f"memory ran out{what}: choose smaller sizes"
        case ValueError():
            return BAD_INPUT, said
        case RuntimeError() | FloatingPointError():
            return FAILED, said
        case OverflowError():
            return FAILED, f"a number left the range of the machine ({said}): choose smaller ones"
        case _:
            name = type(error).__name__
            return BUG, (
                f"{name} ({said}): this is a defect of attnflow; {TRACEBACK}=1 shows where it "
                "happened"
            )


def _of_machine(error: OSError) -> str:
    what = error.strerror or _one_line(str(error)) or type(error).__name__
    place = f" {error.filename}" if error.filename is not None else ""
    out = WAYS_OUT.get(error.errno or 0, "check the place and its permissions")
    if error.errno == errno.ENOSPC and not place:
        return f"cannot write ({what}): {out}"
    return f"cannot use{place or ' a file'} ({what}): {out}"


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MOST else line[: MOST - 1] + "…"


def _reader_is_gone() -> bool:
    """Whether it was stdout that broke, and not the pipe of a worker."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(event & select.POLLERR for _, event in poll.poll(0))
    except (AttributeError, OSError, ValueError):  # no file behind stdout, or no such call here
        return False


def tell(line: str) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):  # stderr may be gone as well
        print(line, file=sys.stderr, flush=True)


def silence(stream: object, number: int) -> None:
    """Write what is left in a standard stream, or drop it: the interpreter would try once more when
    it ends, and complain."""
    try:
        stream.flush()  # pyright: ignore[reportAttributeAccessIssue]
    except (OSError, ValueError, AttributeError):
        with contextlib.suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, number)
            os.close(nowhere)
