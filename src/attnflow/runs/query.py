"""Reading across runs: tables by SQL, and one Dataset of many runs."""

import dataclasses
import json
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xarray as xr

from attnflow._checks import choice
from attnflow.runs.filters import OWN, Entry, Filters, listed, parse
from attnflow.runs.store import DamagedRun, Run, Store

__all__ = ["Comparison", "compare", "fields", "final", "listed", "open", "parse", "sql", "table"]


def fields(entries: Iterable[Entry]) -> list[str]:
    """Of all their configs, in the order of their first appearance."""
    return list(dict.fromkeys(name for entry in entries for name in entry.config))


def swept(entries: Sequence[Entry]) -> list[str]:
    """The fields that are not the same in all of them."""
    return [
        name
        for name in fields(entries)
        if len({_text(entry.config.get(name)) for entry in entries}) > 1
    ]


def free(name: str, taken: Iterable[str]) -> str:
    """A field of a config beside other names, which keep theirs: `loss` becomes `config.loss`."""
    return f"config.{name}" if name.lower() in {each.lower() for each in taken} else name


def final(run: Run) -> dict[str, Any]:
    """The last of every scalar."""
    file = pq.ParquetFile(run.path / "scalars.parquet")
    if not file.metadata.num_columns or not file.metadata.num_rows:
        return {}
    last = file.read_row_group(file.num_row_groups - 1).slice(-1 % _rows(file))
    return {name: last[name][-1].as_py() for name in last.column_names}
