"""Runs for other programs: CSV, Parquet, TensorBoard event files."""

import importlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from attnflow._checks import choice
from attnflow.runs.files import whole
from attnflow.runs.filters import Entry, Filters, listed, swept
from attnflow.runs.packing import CLOCKS
from attnflow.runs.query import database, long
from attnflow.runs.store import Store

SUFFIX = ".attnflow"  # of the event files that are ours to replace


def export(store: Store, filters: Filters, path: Path) -> int:
    """The long table of the chosen runs (`query.table`) as a .csv or .parquet file, by the ending.
    Returns how many runs it holds."""
    path = Path(path)
    choice("export format", path.suffix, (".csv", ".parquet"))
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give the name of a file")
    entries = chosen(store, filters)
    with database(entries) as connection, whole(path) as draft:
        rows = long(connection)
        if path.suffix == ".csv":
            rows.write_csv(str(draft))
        else:
            rows.write_parquet(str(draft))
    return len(entries)


def export_tensorboard(store: Store, filters: Filters, folder: Path) -> int:
    """A folder a run, named by the fields in which the runs differ. TensorBoard counts in whole
    steps: along a `time`, rows are counted and the time itself is one of the scalars."""
    writer = _writer()
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file: give the name of a folder")
    entries = chosen(store, filters)
    varied = swept(entries)
    for entry in entries:
        _write_events(writer, entry, folder / label(entry, varied))
    return len(entries)


def chosen(store: Store, filters: Filters) -> list[Entry]:
    entries = listed(store, filters, verify=True)
    if not entries:
        raise ValueError(f"nothing to export: no run in {store.root} passes the filters")
    return entries


def label(entry: Entry, varied: Sequence[str]) -> str:
    """Such as walk/rate=0.1,seed=3-1f0c22ab: safe as a path on every system."""
    told = ",".join(f"{name}={entry.config[name]}" for name in varied if name in entry.config)
    told = re.sub(r"[^\w.,=+-]+", "_", told)[:120]
    kind = re.sub(r"[^\w.+-]+", "_", entry.experiment).strip(".") or "runs"
    return f"{kind}/{told}-{entry.name[:8]}" if told else f"{kind}/{entry.name[:8]}"


def _write_events(writer: Any, entry: Entry, folder: Path) -> None:
    scalars = entry.run.scalars
    for old in folder.glob(f"events.out.tfevents.*{SUFFIX}"):
        old.unlink()
    clock = next((name for name in CLOCKS if name in scalars.column_names), None)
    steps = np.arange(scalars.num_rows)
    if clock == "step" and pa.types.is_integer(scalars[clock].type):
        steps = scalars[clock].to_numpy()
    # spread over the time it took, so that TensorBoard's "relative" axis says something
    times = np.linspace(entry.when - entry.seconds, entry.when, scalars.num_rows)
    with writer(str(folder), filename_suffix=SUFFIX) as events:
        told = json.dumps({"experiment": entry.experiment} | entry.config, indent=1)
        events.add_text("config", f"```\n{told}\n```", walltime=entry.when)
        for name in scalars.column_names:
            kind = scalars[name].type
            numeric = pa.types.is_floating(kind) or pa.types.is_integer(kind)
            if name == "step" or not (numeric or pa.types.is_boolean(kind)):
                continue
            for value, step, time in zip(scalars[name].to_pylist(), steps, times, strict=True):
                if value is not None:
                    events.add_scalar(name, float(value), int(step), walltime=float(time))


def _writer() -> Any:
    try:
        return importlib.import_module("tensorboardX").SummaryWriter
    except ImportError as error:
        raise ValueError(
            "TensorBoard files need tensorboardX: pip install 'attnflow[tensorboard]'"
        ) from error
