"""attnflow runs list|show|compare|check|export|rm: the run store."""

import dataclasses
import datetime
import functools
import json
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import tyro
from typing_extensions import Doc

from attnflow._checks import at_least, choice
from attnflow.cli.display import warnings_as_lines
from attnflow.cli.parsing import parse_options
from attnflow.cli.tables import (
    SHORT,
    as_cell,
    cell,
    console,
    counted,
    new_table,
    print_table,
    short_names,
    tell_rest,
)
from attnflow.runs.export import export, export_tensorboard
from attnflow.runs.filters import (
    Entry,
    failed,
    flat,
    left_out,
    listed,
    named,
    separate,
    telling,
    verified,
)
from attnflow.runs.query import compare, final
from attnflow.runs.run import Run
from attnflow.runs.store import Store
from attnflow.runs.text import plain

MOST_FIELDS = 6  # of a table
WHICH = "names (or their beginnings), and filters on config fields such as 'seed<8' or rate=0.1"
Chosen = tyro.conf.Positional[tuple[str, ...]]


@dataclasses.dataclass(frozen=True)
class Place:
    store: Annotated[Path, Doc("folder of the runs")] = Path("out/runs")

    def open(self) -> Store:
        if not self.store.is_dir():
            raise ValueError(f"no runs at {self.store}: name their folder with --store")
        return Store(self.store)


@dataclasses.dataclass(frozen=True)
class ListOptions(Place):
    which: Annotated[Chosen, Doc(f"{WHICH}; all if empty")] = ()
    failed: Annotated[bool, Doc("those that failed, and why")] = False
    limit: Annotated[int, Doc("rows of the table, newest first; 0: all")] = 50
    json: Annotated[bool, Doc("print a list of objects, one a run")] = False


@dataclasses.dataclass(frozen=True)
class ShowOptions(Place):
    name: Annotated[tyro.conf.Positional[str], Doc("of the run, or its beginning")] = ""
    lines: Annotated[int, Doc("of the log, from its end; 0: all")] = 20
    json: Annotated[bool, Doc("print one object")] = False


@dataclasses.dataclass(frozen=True)
class CompareOptions(Place):
    names: Annotated[Chosen, Doc("of two runs or more, or their beginnings")] = ()
    json: Annotated[bool, Doc("print one object")] = False


@dataclasses.dataclass(frozen=True)
class ExportOptions(Place):
    which: Annotated[Chosen, Doc(f"{WHICH}; all if empty")] = ()
    out: Annotated[Path | None, Doc("a file: CSV or Parquet by its ending")] = None
    tensorboard: Annotated[Path | None, Doc("a folder of TensorBoard event files")] = None


@dataclasses.dataclass(frozen=True)
class CheckOptions(Place):
    json: Annotated[bool, Doc("print one object")] = False


@dataclasses.dataclass(frozen=True)
class RemoveOptions(Place):
    which: Annotated[Chosen, Doc(WHICH)] = ()
    yes: Annotated[bool, Doc("do not ask")] = False


def run(arguments: list[str]) -> int:
    name = arguments[0] if arguments else "--help"
    if name in ("-h", "--help"):
        rows = "\n".join(f"  {each:<7}  {what}" for each, (what, _, _) in ACTIONS.items())
        print(f"usage: attnflow runs ACTION [OPTIONS]\n\nactions:\n{rows}")
        return 0
    choice("action", name, ACTIONS)
    what, options, act = ACTIONS[name]
    parsed = parse_options(options, arguments[1:], prog=f"attnflow runs {name}", description=what)
    with warnings_as_lines("runs"):
        return act(parsed)


def list_runs(options: ListOptions) -> int:
    at_least("limit", options.limit, 0)
    store = options.open()
    if options.failed:
        return _list_failed(store, options)
    entries = sorted(listed(store, options.which), key=lambda x: x.when, reverse=True)
    if options.json:
        entries, wrong = verified(entries)
        _tell_damage(wrong)
        print(json.dumps([_row(entry) for entry in entries], allow_nan=False, indent=1))
        return 0
    shown, wrong = verified(entries[: options.limit or None])
    _tell_damage(wrong)
    varied = _columns(entries, shown)
    rows = [_row(entry) for entry in shown]
    losses = any(row["loss"] is not None for row in rows)
    table = new_table("run", "experiment", *varied, *["loss"] * losses, "seconds", "when")
    for row, name in zip(rows, short_names(shown, entries), strict=True):
        fields = [cell(row["config"], each) for each in varied]
        loss = [as_cell(row["loss"])] * losses
        when = row["when"].replace("T", " ")
        table.add_row(name, row["experiment"], *fields, *loss, as_cell(row["seconds"]), when)
    print_table(table, bool(rows))
    tell_rest(len(entries), len(shown), "runs", store)
    return 0


def _tell_damage(wrong: Mapping[str, str]) -> None:
    if wrong:
        warnings.warn(left_out(wrong), stacklevel=2)


def _columns(entries: list[Entry], shown: list[Entry]) -> list[str]:
    names, total = telling(entries, shown, MOST_FIELDS)
    if total > len(names):
        print(
            f"{total - len(names)} more fields differ between these runs: --json has them, and "
            "experiment=NAME chooses one experiment",
            file=sys.stderr,
        )
    return names


def _row(entry: Entry) -> dict[str, Any]:
    when = datetime.datetime.fromtimestamp(entry.when).isoformat(timespec="seconds")
    own = {"run": entry.name, "experiment": entry.experiment, "config": entry.config}
    seconds = _try(lambda: entry.seconds)
    loss = _try(lambda: final(entry.run).get("loss"))
    return plain(own | {"loss": loss, "seconds": seconds, "when": when})


def _list_failed(store: Store, options: ListOptions) -> int:
    found = failed(store, options.which)
    entries = [entry for entry, _ in found.values()]
    if options.json:
        records = [
            {"run": x.name, "experiment": x.experiment, "config": x.config, "traceback": traceback}
            for x, traceback in found.values()
        ]
        print(json.dumps(records, indent=1))
        return 0
    shown = entries[: options.limit or None]
    varied = _columns(entries, shown)
    table = new_table("run", "experiment", *varied, "why")
    for entry, name in zip(shown, short_names(shown, entries), strict=True):
        why = (found[entry.name][1].strip().splitlines() or [""])[-1]
        table.add_row(name, entry.experiment, *(cell(entry.config, x) for x in varied), why)
    print_table(table, bool(shown))
    tell_rest(len(entries), len(shown), "failed runs", store)
    return 0


def show(options: ShowOptions) -> int:
    at_least("lines", options.lines, 0)
    store = options.open()
    name = named(store, options.name, failed=True)
    about = _about(store, name, options.lines)
    if options.json:
        print(json.dumps(plain(about), allow_nan=False, indent=1))
        return 0
    say = functools.partial(console().print, soft_wrap=True)
    say(f"run {name} of experiment {about['experiment'] or '(none)'}: {about['state']}")
    for part in ("config", "environment", "final"):
        if about[part]:
            say(f"\n{part}")
            width = max(map(len, about[part]))
            for key, value in about[part].items():
                say(f"  {key:<{width}}  {as_cell(value)}")
    for part in ("log", "failure"):
        if about[part]:
            say(f"\n{part}\n{about[part].rstrip()}")
    return 0


def _about(store: Store, name: str, lines: int) -> dict[str, Any]:
    """What can be read of a run, whatever is damaged."""
    run, failure = store.get(name), store.failures().get(name)
    stored = (_try(lambda: run.stored) if run else failure) or {}
    wrong = run.damage() if run else None
    log = (_try(lambda: run.log) if run else None) or ""
    return {
        "run": name,
        "experiment": stored.get("experiment"),
        "state": f"damaged ({wrong})" if wrong else "whole" if run else "failed",
        "config": flat(stored.get("config") or {}),
        "environment": _try(lambda: run.environment) if run else None,
        "final": _try(lambda: final(run)) if run else None,
        "log": "\n".join(log.splitlines()[-lines:]),
        "failure": failure["traceback"] if failure else None,
    }


def compare_runs(options: CompareOptions) -> int:
    found = compare(options.open(), options.names)
    if options.json:
        print(json.dumps(plain(dataclasses.asdict(found)), allow_nan=False, indent=1))
        return 0
    table = new_table("", *(name[:SHORT] for name in found.names))
    for rows in (found.fields, found.finals):
        for name, values in rows.items():
            table.add_row(name, *(cell(values, run) for run in found.names))
        table.add_section()
    print_table(table, True)
    return 0


def export_runs(options: ExportOptions) -> int:
    if options.out is None and options.tensorboard is None:
        raise ValueError("say where to: --out FILE.csv, --out FILE.parquet or --tensorboard FOLDER")
    store = options.open()
    for write, path in ((export, options.out), (export_tensorboard, options.tensorboard)):
        if path is not None:
            print(f"{counted(write(store, options.which, path), 'runs')}: {path}")
    return 0


def remove(options: RemoveOptions) -> int:
    if not options.which:
        raise ValueError("say which runs: names, or filters such as rate=0.1")
    store = options.open()
    tests, names = separate(options.which)
    chosen = (
        [entry.name for entry in listed(store, options.which)]
        if tests
        else list(dict.fromkeys(named(store, name, failed=True) for name in names))
    )
    if not chosen:
        raise ValueError("no run passes the filters: nothing is removed")
    if not options.yes:
        for name in chosen:
            print(name)
        if not _agreed(f"remove {counted(len(chosen), 'runs')} from {store.root}? [y/N] "):
            print("nothing is removed")
            return 1
    for name in chosen:
        store.remove(Run(name, store.root / name))
        store.forget_failure(name)
        print(f"removed {name}")
    return 0


def check(options: CheckOptions) -> int:
    store = options.open()
    found = store.check()
    if options.json:
        print(json.dumps(dataclasses.asdict(found), indent=1))
        return 1 if found.damaged or found.unreadable else 0
    for name, why in found.damaged.items():
        print(f"{name}  {why}")
    for name in found.unreadable:
        print(f"{name}  the record of its failure cannot be read")
    whole, damaged = len(found.whole), len(found.damaged)
    print(f"{counted(whole, 'runs')} {'is' if whole == 1 else 'are'} whole, {damaged} damaged")
    if damaged:
        print("a sweep over their configs redoes damaged runs; attnflow runs rm NAME removes one")
    if found.failed:
        print(f"{counted(len(found.failed), 'runs')} failed: attnflow runs list --failed")
    if found.leftovers:
        print(
            f"{counted(len(found.leftovers), 'drafts')} of killed processes: the next sweep "
            "removes them"
        )
    return 1 if found.damaged or found.unreadable else 0


def _agreed(question: str) -> bool:
    try:
        return input(question).strip().lower() in ("y", "yes")
    except EOFError:
        raise ValueError("nobody answers: --yes removes without asking") from None


def _try(read: Callable[[], Any]) -> Any:
    """None for what is damaged."""
    try:
        return read()
    except (OSError, ValueError, KeyError):
        return None


ACTIONS: dict[str, tuple[str, type, Callable[[Any], int]]] = {
    "list": ("the runs, newest first, or those that failed", ListOptions, list_runs),
    "show": ("one run: config, environment, checksums, final scalars, log", ShowOptions, show),
    "compare": ("where runs differ, and what they came to", CompareOptions, compare_runs),
    "check": ("read every file of every run: exit status 1 if one is damaged", CheckOptions, check),
    "export": ("CSV, Parquet or TensorBoard event files", ExportOptions, export_runs),
    "rm": ("remove runs", RemoveOptions, remove),
}
