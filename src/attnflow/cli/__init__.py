"""The command line. Heavy imports happen in the command that needs them."""

import contextlib
import difflib
import importlib
import sys
import warnings
from typing import NoReturn

import attnflow
from attnflow.cli import interrupts
from attnflow.cli.failures import INTERRUPTED, ended, silence

COMMANDS = {
    "verify": "the ledger: every statement of the papers, its verdict and margin",
    "reproduce": "the figures: data and pictures, one command each",
    "simulate": "one model along its gradient flow",
    "diagnose": "the attention of a trained transformer: sinks, dead and redundant heads, advice",
    "report": "ledger and quick figures as one self-contained HTML page",
    "runs": "the run store: list, show, compare, export, remove",
    "serve": "the explorer in the browser: simulators, ledger and runs",
    "cache": "compiled programs on disk: where they are, how large; remove them",
}
COMPILING = ("verify", "reproduce", "simulate", "report")
AT_ONCE = ("attnflow simulate", "attnflow verify")  # nothing is left to do when they are done


def help_text() -> str:
    width = max(map(len, COMMANDS))
    rows = "\n".join(f"  {name:<{width}}  {what}" for name, what in COMMANDS.items())
    return (
        "attnflow: a laboratory for the training dynamics of softmax attention\n\n"
        f"usage: attnflow COMMAND [OPTIONS]\n\ncommands:\n{rows}\n\n"
        "attnflow COMMAND --help tells a command's options; attnflow --version the version.\n"
        f"--timing, with {', '.join(COMPILING)}: where the seconds go."
    )


def main(argv: list[str] | None = None) -> int:
    """Exit status 0: done; 1: a verdict changed, a solve failed, or the machine did (no space, no
    memory); 2: bad input; 70: a defect of attnflow; 130: interrupted; 141: the reader of the output
    is gone.

    Whatever goes wrong is told in one line on stderr. With ATTNFLOW_TRACEBACK=1 in the environment
    the traceback comes before it.
    """
    arguments = sys.argv[1:] if argv is None else argv
    try:
        status = _perform(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
        if interrupts.asked():
            raise KeyboardInterrupt
        return status
    except BaseException as error:
        return ended(_named(arguments), KeyboardInterrupt() if interrupts.asked() else error)


def _named(arguments: list[str]) -> str:
    known = bool(arguments) and arguments[0] in COMMANDS
    return f"attnflow {arguments[0]}" if known else "attnflow"


def _perform(arguments: list[str]) -> int:
    name = arguments[0] if arguments else "--help"
    if name in ("-h", "--help"):
        print(help_text())
        return 0
    if name == "--version":
        print(f"attnflow {attnflow.__version__}")
        return 0
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(COMMANDS)}"
        raise ValueError(f"command {name!r} is not known: {hint}")
    rest = arguments[1:]
    if name not in COMPILING:
        return _run(name, rest)
    if "jax" not in sys.modules:
        from attnflow import cache

        wrong = cache.use()
        if wrong is not None:
            print(f"attnflow: programs are not kept: {wrong}", file=sys.stderr)
    if "--timing" not in rest:
        return _run(name, rest)
    from attnflow.cli.timing import Timing

    with Timing() as timing:
        status = _run(name, [word for word in rest if word != "--timing"])
    print(f"attnflow {name}: {timing}", file=sys.stderr)
    return status


def _run(name: str, arguments: list[str]) -> int:
    return importlib.import_module(f"attnflow.cli.{name}").run(arguments)


def entry() -> NoReturn:
    """`main` as a program, with Ctrl-C watched; the explorer has its own way to stop."""
    with contextlib.suppress(AttributeError):  # stdout is closed, or a stand-in
        sys.stdout.reconfigure(errors="backslashreplace")  # pyright: ignore
    warnings.simplefilter("ignore", RuntimeWarning)  # overflows, say: what comes of them is checked
    command = _named(sys.argv[1:])
    try:
        if command != "attnflow serve":
            interrupts.watch(command)
        status = main()
    except KeyboardInterrupt as error:
        status = ended(command, error)
    if status == INTERRUPTED:
        interrupts.leave()
    silence(sys.stdout, 1)
    silence(sys.stderr, 2)
    if command in AT_ONCE:
        interrupts.leave(status)  # to take JAX apart takes half a second
    sys.exit(status)
