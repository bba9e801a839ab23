"""Reading across runs: lists, SQL tables, differences, one Dataset."""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from attnflow._checks import choice
from attnflow.runs.filters import (
    OWN,
    Entry,
    Filters,
    as_text,
    fields,
    free,
    listed,
    named,
    parse,
    swept,
)
from attnflow.runs.gather import open
from attnflow.runs.run import Run
from attnflow.runs.store import Store

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

__all__ = ["Comparison", "compare", "final", "listed", "open", "parse", "sql", "table"]


def sql(store: Store, query: str, filters: Filters = ()) -> pa.Table:
    """The answer of DuckDB to a query over two views of the chosen runs: `runs` (run, experiment,
    fields of the config) and `scalars` (run, step or time, every scalar).

    sql(store, "select rate, min(loss) from runs join scalars using (run) group by rate")
    """
    import duckdb

    with database(listed(store, filters, verify=True)) as connection:
        try:
            answer = connection.sql(query)
            if answer is None:
                raise ValueError("query: it gives no table")
            return answer.to_arrow_table()
        except duckdb.Error as error:
            raise ValueError(f"query: {error}") from error


def table(store: Store, filters: Filters = (), columns: Sequence[str] = ()) -> pa.Table:
    """A row for each step (or time) of each chosen run: run, experiment, fields of the config,
    step, scalars; or only the `columns` named. A field with the name of a scalar is config.FIELD.
    """
    with database(listed(store, filters, verify=True)) as connection:
        return long(connection, columns).to_arrow_table()


def long(connection: "DuckDBPyConnection", columns: Sequence[str] = ()) -> "DuckDBPyRelation":
    """`table`, not yet computed."""
    scalars = connection.sql("select * from scalars").columns[1:]
    selected = {name: f"runs.{_quoted(name)}" for name in OWN}
    for name in connection.sql("select * from runs").columns[len(OWN) :]:
        selected[free(name, scalars)] = f"runs.{_quoted(name)}"
    for name in scalars:
        selected[f"scalar.{name}" if name in OWN else name] = f"numbered.{_quoted(name)}"
    for name in columns:
        choice("column", name, selected)
    asked = ", ".join(f"{selected[name]} as {_quoted(name)}" for name in columns or selected)
    return connection.sql(
        f"select {asked} from runs left join numbered using (run) order by run, file_row_number"
    )


@contextlib.contextmanager
def database(entries: Sequence[Entry]) -> Iterator["DuckDBPyConnection"]:
    """The views `runs`, `scalars`, and `numbered`: scalars with their `file_row_number`."""
    import duckdb  # a fifth of a second, only for those who need it

    with duckdb.connect(
        config={"autoinstall_known_extensions": False, "python_enable_replacements": False}
    ) as connection:
        connection.register("runs", _runs_table(entries))
        paths = {entry.name: str(entry.run.path / "scalars.parquet") for entry in entries}
        try:
            _scalars_view(connection, paths)
        except duckdb.Error:  # a run without any scalar has a file without columns
            some = {name: x for name, x in paths.items() if pq.read_metadata(x).num_columns}
            _scalars_view(connection, some)
        yield connection


def _scalars_view(connection: "DuckDBPyConnection", paths: dict[str, str]) -> None:
    if not paths:
        connection.execute(
            "create or replace view numbered as "
            "select null::varchar as run, null::bigint as file_row_number where false"
        )
    else:
        connection.register("files", pa.table({"_file": [*paths.values()], "run": [*paths]}))
        among = ", ".join("'" + path.replace("'", "''") + "'" for path in paths.values())
        connection.execute(
            "create or replace view numbered as "
            "select files.run, found.* exclude (_file) from "
            f"read_parquet([{among}], union_by_name=true, filename='_file', file_row_number=true) "
            "found join files using (_file)"
        )
    connection.execute(
        "create or replace view scalars as select * exclude (file_row_number) from numbered"
    )


def _runs_table(entries: Sequence[Entry]) -> pa.Table:
    columns: dict[str, Any] = {name: [entry.field(name) for entry in entries] for name in OWN}
    columns = {name: pa.array(values, pa.string()) for name, values in columns.items()}
    for name in fields(entries):
        columns[free(name, OWN)] = _column([entry.config.get(name) for entry in entries])
    return pa.table(columns)


def _column(values: list[Any]) -> pa.Array:
    """Lists, and values of several kinds, become JSON text."""
    if not any(isinstance(value, list | dict) for value in values):
        with contextlib.suppress(pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            return pa.array(values)
    return pa.array([None if value is None else as_text(value) for value in values])


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def final(run: Run) -> dict[str, Any]:
    """The last of every scalar."""
    with pq.ParquetFile(run.path / "scalars.parquet") as file:
        if not file.metadata.num_columns or not file.metadata.num_rows:
            return {}
        last = file.read_row_group(file.num_row_groups - 1)
    return {name: last[name][-1].as_py() for name in last.column_names}


@dataclasses.dataclass(frozen=True)
class Comparison:
    """By name, then by run: fields of the configs that are not the same in all, and the last of
    every scalar. What a run does not have is not there."""

    names: list[str]
    fields: dict[str, dict[str, Any]]
    finals: dict[str, dict[str, Any]]


def compare(store: Store, names: Sequence[str]) -> Comparison:
    """Two or more runs, by their names or unique beginnings of them."""
    wanted = list(dict.fromkeys(named(store, name) for name in names))
    if len(wanted) < 2:
        raise ValueError(f"compare takes two runs or more (got {len(wanted)})")
    by_name = {entry.name: entry for entry in listed(store, wanted, verify=True)}
    if len(by_name) < len(wanted):
        raise ValueError(f"run {next(x for x in wanted if x not in by_name)} is damaged")
    entries = [by_name[name] for name in wanted]
    different = ["experiment"] if len({entry.experiment for entry in entries}) > 1 else []
    different += [free(name, OWN) for name in swept(entries)]
    ends = {entry.name: final(entry.run) for entry in entries}
    return Comparison(
        wanted,
        {x: {each.name: each.field(x) for each in entries if each.has(x)} for x in different},
        {
            x: {name: end[x] for name, end in ends.items() if x in end}
            for x in dict.fromkeys(x for end in ends.values() for x in end)
        },
    )
