"""Options from words; what is wrong with the words is one line."""

import contextlib
import dataclasses
import difflib
import io
import re
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import tyro

from attnflow._checks import choice

C = TypeVar("C")
KINDS = {int: "a whole number", float: "a number", Path: "a path", str: "a text"}


def parse_options(cls: type[C], args: Sequence[str], prog: str, description: str) -> C:
    """The dataclass `cls`, filled from the command line.

    The parser draws a box around its errors and leaves the process; of the box only the option
    that it blames is taken, and ValueError says the rest.
    """
    hidden = [word for word in args if word.startswith("--tyro-")]  # the parser's own
    if hidden:
        raise ValueError(_unknown(hidden[0], options_of(cls), prog))
    box = io.StringIO()
    try:
        with contextlib.redirect_stderr(box):
            parsed, unknown = tyro.cli(
                cls,
                args=list(args),
                prog=prog,
                description=description,
                config=(tyro.conf.FlagCreatePairsOff,),
                return_unknown_args=True,
            )
    except SystemExit as stop:
        if not stop.code:
            raise  # help was asked for
        raise ValueError(_blamed(cls, args, _unboxed(box.getvalue()), prog)) from None
    if unknown:
        raise ValueError(_unknown(unknown[0], options_of(cls), prog))
    return parsed


def refuse_unused(options: Any, unused: Mapping[str, str]) -> None:
    """Options that were given although nothing would use them; `unused` says when they have an
    effect. Those left at their default are fine."""
    for field in dataclasses.fields(options):
        if field.name in unused and getattr(options, field.name) != field.default:
            flag = "--" + field.name.replace("_", "-")
            raise ValueError(f"{flag} has an effect only {unused[field.name]}: leave it out")


def options_of(cls: type) -> dict[str, Any]:
    """What may be written on the command line, such as --t1, and its type."""
    found = {}
    for name, hint in typing.get_type_hints(cls, include_extras=True).items():
        marks = getattr(hint, "__metadata__", ())
        names = [mark.name for mark in marks if isinstance(getattr(mark, "name", None), str)]
        kind = hint.__origin__ if marks else hint
        found["--" + (names or [name])[0].replace("_", "-")] = kind
    return found


def _unknown(word: str, options: Iterable[str], prog: str) -> str:
    flag = word.partition("=")[0].replace("_", "-")
    if flag in options:  # known, but a switch
        return f"{flag} is a switch and takes no value (got {word!r})"
    near = difflib.get_close_matches(flag, options, n=1) if flag.startswith("-") else []
    hint = f"did you mean {near[0]}?" if near else f"{prog} --help lists the options"
    shown = word if word.startswith("-") else repr(word)
    return f"{shown} is not known: {hint}"


def _blamed(cls: Any, args: Sequence[str], box: str, prog: str) -> str:
    options = options_of(cls)
    flags = [flag for flag in re.findall(r"--[a-zA-Z][\w-]*", box) if flag in options]
    if not flags:
        required = [
            x.name.upper() for x in dataclasses.fields(cls) if x.default is x.default_factory
        ]
        missing = f"{' '.join(required)} is missing" if required else box
        return f"{missing}: {prog} --help lists the options"
    flag, kind = flags[0], options[flags[0]]
    given = _given(flag, args)
    if not given:
        return f"{flag} needs a value: {_expected(kind)}"
    if typing.get_origin(kind) is typing.Literal:
        choice(flag, given[-1], typing.get_args(kind))
    return f"{flag} takes {_expected(kind)} (got {' '.join(given)!r})"


def _given(flag: str, args: Sequence[str]) -> list[str]:
    """The words after the last mention of the flag."""
    given, open_ended = [], False
    for word in args:
        name, equals, value = word.partition("=")
        if name.startswith("--"):
            ours = name.replace("_", "-") == flag
            given = [value] * bool(equals) if ours else given
            open_ended = ours and not equals
        elif open_ended:
            given.append(word)
    return given


def _expected(kind: Any) -> str:
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return f"one of {', '.join(map(str, parts))}"
    if origin in (typing.Union, types.UnionType):
        return _expected(next(part for part in parts if part is not type(None)))
    if origin is tuple:
        return {float: "numbers", int: "whole numbers"}.get(parts[0], "words")
    return KINDS.get(kind, "a value")


def _unboxed(box: str) -> str:
    return " ".join(re.sub(r"[─-╿]", " ", box).split())
