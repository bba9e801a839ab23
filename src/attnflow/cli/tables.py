"""Runs as tables on the terminal."""

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from attnflow.runs.filters import Entry
from attnflow.runs.store import Store
from attnflow.runs.text import brief

SHORT = 8  # digits of a name in a table, or more where they are needed


def short_names(shown: Sequence[Entry], entries: Iterable[Entry]) -> list[str]:
    """Beginnings of names that are unique among the entries."""
    names = [entry.name for entry in entries]
    digits = SHORT
    while len({name[:digits] for name in names}) < len(names):
        digits += 1
    return [entry.name[:digits] for entry in shown]


def cell(values: dict[str, Any], key: str) -> str:
    return as_cell(values[key]) if key in values else ""


def as_cell(value: Any) -> str:
    return "" if value is None else brief(value)


def counted(number: int, what: str) -> str:
    return f"{number} {what if number != 1 else what.removesuffix('s')}"


def tell_rest(total: int, shown: int, what: str, store: Store) -> None:
    rest = f"; the newest {shown} are shown, --limit 0 shows all" if shown < total else ""
    print(f"{counted(total, what)} in {store.root}{rest}", file=sys.stderr)


def new_table(*columns: str) -> Table:
    table = Table()
    for column in columns:
        table.add_column(column, no_wrap=column in ("run", "when"), overflow="fold")
    return table


def console() -> Console:
    width = None if Console().is_terminal else 160
    return Console(width=width, markup=False, highlight=False, emoji=False)


def print_table(table: Table, wanted: bool) -> None:
    if wanted:
        console().print(table)
