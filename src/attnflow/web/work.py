"""What a worker of the explorer can do: every computation and every look into the store.

Each job is a function of plain data that gives a status and JSON. The server itself loads none of
the heavy libraries: its first page is there at once.
"""

import functools
import json
import os
import shlex
import signal
import subprocess
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

Reply = tuple[int, bytes]
MOST_RUNS = 200  # of a page
MOST_COLUMNS = 6  # unless they are chosen
MOST_NOTES = 50
MOST_PRINTED = 20_000  # characters
LINE_SECONDS = 120  # of a counterexample
MOST_POINTS = 500  # of a curve


class Refused(Exception):
    """An answer that is no result: a status, and why."""

    def __init__(self, status: int, why: str, field: str | None = None):
        super().__init__(why)
        self.status, self.field = status, field


def do(job: str, given: dict[str, Any]) -> Reply:
    try:
        return 200, encoded(JOBS[job](**given))
    except Refused as refused:
        return refused.status, encoded({"error": str(refused), "field": refused.field})
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        return 500, encoded({"error": f"{type(error).__name__} in the explorer", "field": None})


def encoded(content: Any) -> bytes:
    """JSON of dataclasses, arrays and plain data; what is not finite becomes null."""
    import orjson

    from attnflow.runs.text import plain

    try:
        return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    except orjson.JSONEncodeError:  # whole numbers beyond 64 bits, in the config of a run
        return json.dumps(plain(content), allow_nan=False).encode()


def all_views() -> dict[str, Any]:
    from attnflow.web import views

    return {"views": [views.get(name).as_dict() for name in views.NAMES]}


def view(name: str, query: list[tuple[str, str]]) -> Any:
    from attnflow.dynamics.errors import FlowError
    from attnflow.web import views
    from attnflow.web.fields import FieldError, blamed, read_query

    if name not in views.NAMES:
        raise Refused(404, f"there is no view {name!r}")
    chosen = views.get(name)
    try:
        answer = chosen.compute(read_query(chosen.fields, query))
    except FieldError as error:
        raise Refused(400, str(error), error.field) from None
    except ValueError as error:
        raise Refused(400, str(error), blamed(chosen.fields, str(error))) from None
    except FlowError as error:
        raise Refused(422, str(error)) from None
    return answer


def compiled(name: str) -> dict[str, Any]:
    from attnflow.web import views

    views.compile_view(name)
    return {}


def ledger() -> dict[str, Any]:
    """Every claim with its recorded verdict, and what the slow ones found when they last ran."""
    from attnflow.papers.ledger import STORED, select

    kept = json.loads(STORED.read_text(encoding="utf-8"))
    rows = []
    for claim in select():
        found = kept.get(claim.id, {})
        rows.append(
            {
                "id": claim.id,
                "paper": claim.paper,
                "name": claim.name,
                "where": claim.where,
                "statement": claim.statement,
                "hypotheses": claim.hypotheses,
                "kind": claim.kind,
                "verdict": claim.recorded,
                "slow": claim.slow,
                "finding": found.get("finding"),
                "date": found.get("date", ""),
            }
        )
    return {"claims": rows}


def claim(name: str) -> dict[str, Any]:
    if _chosen(name).slow:
        raise Refused(
            422, f"this claim trains networks or reads large models: attnflow verify {name} --slow"
        )
    row = _verified(name)
    return row.as_dict() | {"note": row.note}


def counterexample(name: str) -> dict[str, Any]:
    """What the claim's own line prints. It comes from the claim: a visitor only names it."""
    _chosen(name)
    line = (_verified(name).finding.counterexample or {}).get("run")
    if line is None:
        raise Refused(422, "this claim has no counterexample to run: its check shows the numbers")
    try:
        done = perform(line)
    except subprocess.TimeoutExpired:
        raise Refused(422, "this takes longer than the explorer may: run the line itself") from None
    if done.returncode:
        why = (done.stderr.strip().splitlines() or [""])[-1][:500]
        raise Refused(422, f"the line failed: {why}")
    return {"run": line, "printed": done.stdout[:MOST_PRINTED]}


def perform(line: str) -> subprocess.CompletedProcess[str]:
    """`python -c CODE` or `attnflow …`, in a process of its own."""
    first, *words = shlex.split(line)
    if first == "attnflow":
        words = ["-m", "attnflow", *words]
    elif first != "python":
        raise ValueError(f"neither Python nor attnflow: {line}")
    command = [sys.executable, "-c", ENDS_WITH_US.format(parent=os.getpid()), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=LINE_SECONDS)


# A process that is killed with its parent, on Linux (PR_SET_PDEATHSIG is 1), and then becomes
# Python with the words given.
ENDS_WITH_US = f"""
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, {signal.SIGKILL:d})
    if os.getppid() != {{parent}}:
        sys.exit("the explorer has gone")
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def _chosen(name: str) -> Any:
    from attnflow.papers.ledger import select

    try:
        (chosen,) = select(name)
    except ValueError as error:
        raise Refused(404, str(error)) from None
    return chosen


@functools.lru_cache(maxsize=64)
def _verified(name: str) -> Any:
    """The row of a claim; of a slow one, that of its last run."""
    from attnflow.papers.ledger import verify

    (row,) = verify([_chosen(name)])
    return row


def runs(
    store: str,
    filters: list[str],
    columns: list[str],
    page: str = "1",
    size: str = "50",
    failed: str = "1",
) -> dict[str, Any]:
    """One page of the runs that pass, the newest first, and one of those that failed. A page beyond
    the last is the last."""
    from attnflow._checks import choice
    from attnflow.runs.filters import fields, listed, telling
    from attnflow.runs.store import Store

    most = _whole("size", size, MOST_RUNS)
    place = Store(store)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            entries = sorted(listed(place, filters), key=lambda x: x.when, reverse=True)
        except ValueError as error:
            raise Refused(400, str(error), "filter") from None
    known = fields(entries)
    for name in columns if entries else ():
        try:
            choice("column", name, known)
        except ValueError as error:
            raise Refused(400, str(error), "columns") from None
    shown, about = _page(entries, _whole("page", page), most)
    usual = telling(entries, shown, MOST_COLUMNS)[0] or known[:MOST_COLUMNS]
    failures, about_failures = _page(list(place.failures().items()), _whole("failed", failed), most)
    return about | {
        "columns": list(dict.fromkeys(columns)) or usual,
        "fields": known,
        "runs": [
            {
                "name": entry.name,
                "experiment": entry.experiment,
                "when": entry.when,
                "config": {x: entry.config.get(x) for x in {*usual, *columns}},
            }
            for entry in shown
        ],
        "failed": about_failures
        | {
            "runs": [
                {"name": name, "why": record["traceback"].strip().splitlines()[-1][:500]}
                for name, record in failures
            ]
        },
        "reports": reports(Path(store)),
        "notes": [str(each.message) for each in caught][:MOST_NOTES],
        "more_notes": max(0, len(caught) - MOST_NOTES),
    }


def _whole(name: str, text: str, most: int = 10**9) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and 1 <= int(text) <= most):
        raise Refused(
            400, f"{name} must be a whole number from 1 to {most} (got {text[:40]!r})", name
        )
    return int(text)


def _page(items: list[Any], number: int, size: int) -> tuple[list[Any], dict[str, int]]:
    pages = max(1, -(-len(items) // size))
    number = min(number, pages)
    about = {"total": len(items), "page": number, "pages": pages, "size": size}
    return items[(number - 1) * size : number * size], about


def reports(root: Path) -> list[str]:
    """Pages that `attnflow diagnose --out STORE/NAME.html` left in the store."""
    if not root.is_dir():
        return []
    return sorted(
        path.name for path in root.glob("[!.]*.html") if path.is_file() and not path.is_symlink()
    )


def run(store: str, name: str) -> dict[str, Any]:
    """Config and curves of one run; `name` is looked up among those that are there."""
    import numpy as np

    from attnflow.runs.filters import flat
    from attnflow.runs.store import Store

    place = Store(store)
    found = place.get(name) if name in place.names() else None
    if found is None:
        raise Refused(404, "there is no such run in this store")
    wrong = found.damage()
    if wrong is not None:
        raise Refused(422, f"this run is damaged: {wrong}")
    table = found.scalars
    rows = np.unique(np.linspace(0, max(table.num_rows - 1, 0), MOST_POINTS).astype(int))
    columns = {x: table[x].to_numpy()[rows].astype(float).tolist() for x in table.column_names}
    stored = found.stored
    return {
        "name": name,
        "experiment": stored["experiment"],
        "config": flat(stored["config"]),
        "seconds": found.environment.get("seconds"),
        "clock": next((x for x in ("step", "time") if x in columns), None),
        "scalars": columns if table.num_rows else {},
    }


JOBS = {
    "views": all_views,
    "view": view,
    "compiled": compiled,
    "ledger": ledger,
    "claim": claim,
    "counterexample": counterexample,
    "runs": runs,
    "run": run,
}
