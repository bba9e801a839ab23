"""The command line. Heavy imports happen in the command that needs them."""

import contextlib
import difflib
import importlib
import os
import sys
from typing import NoReturn

import attnflow

COMMANDS = {
    "verify": "the ledger: every statement of the papers, its verdict and margin",
    "reproduce": "the figures: data and pictures, one command each",
    "simulate": "one model along its gradient flow",
    "diagnose": "the attention of a trained transformer: sinks, dead and redundant heads, advice",
    "report": "ledger and quick figures as one self-contained HTML page",
    "runs": "the run store: list, show, compare, export, remove",
    "serve": "the explorer in the browser: simulators, ledger and runs",
}
INTERRUPTED = 130


def help_text() -> str:
    width = max(map(len, COMMANDS))
    rows = "\n".join(f"  {name:<{width}}  {what}" for name, what in COMMANDS.items())
    return (
        "attnflow: a laboratory for the training dynamics of softmax attention\n\n"
        f"usage: attnflow COMMAND [OPTIONS]\n\ncommands:\n{rows}\n\n"
        "attnflow COMMAND --help tells a command's options; attnflow --version the version."
    )


def main(argv: list[str] | None = None) -> int:
    """Exit status 0: done; 1: a verdict changed or a solve failed; 2: bad input; 130: stopped."""
    arguments = sys.argv[1:] if argv is None else argv
    name, rest = (arguments[0], arguments[1:]) if arguments else ("--help", [])
    if name in ("-h", "--help"):
        print(help_text())
        return 0
    if name == "--version":
        print(f"attnflow {attnflow.__version__}")
        return 0
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(COMMANDS)}"
        print(f"attnflow: command {name!r} is not known: {hint}", file=sys.stderr)
        return 2
    try:
        return _perform(name, rest)
    except KeyboardInterrupt:
        print(f"attnflow {name}: interrupted; what was finished is kept", file=sys.stderr)
        return INTERRUPTED


def _perform(name: str, arguments: list[str]) -> int:
    command = importlib.import_module(f"attnflow.cli.{name}")
    try:
        return command.run(arguments)
    except ValueError as error:
        print(f"attnflow {name}: {error}", file=sys.stderr)
        return 2
    except RuntimeError as error:
        print(f"attnflow {name}: {error}", file=sys.stderr)
        return 1


def entry() -> NoReturn:
    """`main` as a program. An interrupted one ends at once: the compiler's threads still run, and
    would crash the interpreter while it tidies up."""
    status = main()
    if status == INTERRUPTED:
        import multiprocessing

        for child in multiprocessing.active_children():
            child.kill()
        with contextlib.suppress(OSError):  # a reader that is gone already
            sys.stdout.flush()
        os._exit(status)
    sys.exit(status)
