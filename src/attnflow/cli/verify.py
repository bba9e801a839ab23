"""attnflow verify [PAPER[/CLAIM]]: run the ledger and compare it with the recorded verdicts."""

import dataclasses
import datetime
import json
import os
import sys
import time
from typing import Annotated, Any

import tyro
from rich.console import Console
from typing_extensions import Doc

from attnflow.cli.parsing import parse_options
from attnflow.papers.ledger import STORED, Claim, Row, select, verify
from attnflow.runs.files import whole
from attnflow.runs.text import brief, plain

MARKS = {
    "holds": ("✓", "green"),
    "holds_corrected": ("~", "yellow"),
    "refuted": ("✗", "red"),
    "not_checkable": ("?", "blue"),
}


@dataclasses.dataclass(frozen=True)
class Options:
    target: Annotated[tyro.conf.Positional[str], Doc("PAPER or PAPER/CLAIM; all if empty")] = ""
    json: Annotated[bool, Doc("print a list of objects, one a claim")] = False
    slow: Annotated[bool, Doc("also run the claims that train networks or read large models")] = (
        False
    )
    record: Annotated[bool, Doc("keep what the slow claims found, to be shown from now on")] = False


def run(arguments: list[str]) -> int:
    options = parse_options(
        Options,
        arguments,
        prog="attnflow verify",
        description="Check every statement of the papers, as printed and as corrected.",
    )
    if options.record and not options.slow:
        raise ValueError("--record keeps what the slow claims find: say --slow too")
    claims = select(options.target)
    shown = Console(stderr=options.json)
    rows = run_all(claims, shown, options.slow)
    if options.record:
        for row in rows:
            if row.claim.slow and not row.stored:
                store(row)
    if options.json:
        print(json.dumps([plain(row.as_dict()) for row in rows], allow_nan=False, indent=1))
    changed = [row for row in rows if row.changed]
    for row in changed:
        print(
            f"changed: {row.claim.id} is recorded as {row.claim.recorded}, "
            f"found {row.finding.verdict} (margin {row.finding.margin:.3g})",
            file=sys.stderr,
        )
    return 1 if changed else 0


def run_all(claims: list[Claim], console: Console, slow: bool = False) -> list[Row]:
    """Every row, printed as it is done and returned in the order of the ledger."""
    begun = time.perf_counter()
    rows = {}
    for row in verify(claims, os.cpu_count() or 1, slow):
        rows[row.claim.id] = row
        print_row(console, row)
    ordered = [rows[claim.id] for claim in claims]
    summarize(console, ordered, time.perf_counter() - begun)
    return ordered


def print_row(console: Console, row: Row) -> None:
    mark, color = MARKS[row.finding.verdict]
    label = row.finding.verdict.replace("_", " ")
    console.print(
        f"[{color}]{mark} {label:<15}[/] {row.claim.id:<38} margin {row.finding.margin:>9.2g}"
        f"  {row.finding.cases:>6} cases {row.seconds:>6.2f} s",
        highlight=False,
        soft_wrap=True,
    )
    if row.stored:
        why = row.note or f"attnflow verify {row.claim.id} --slow runs it again"
        console.print(f"    found on {row.stored}; {why}", style="dim", highlight=False)
    plainly: Any = {"style": "dim", "highlight": False, "markup": False, "soft_wrap": True}
    if row.finding.correction:
        console.print(f"    true is: {row.finding.correction}", **plainly)
    if row.finding.counterexample:
        facts = dict(row.finding.counterexample)
        command = facts.pop("run", None)
        console.print(f"    counterexample: {brief(facts)}", **plainly)
        if command:
            console.print(f"    see it: {command}", **plainly)


def summarize(console: Console, rows: list[Row], seconds: float) -> None:
    counts = {verdict: sum(row.finding.verdict == verdict for row in rows) for verdict in MARKS}
    told = ", ".join(f"{count} {verdict.replace('_', ' ')}" for verdict, count in counts.items())
    console.print(
        f"{len(rows)} claim{'s' * (len(rows) != 1)}: {told}; {seconds:.1f} s", highlight=False
    )


def store(row: Row) -> None:
    """Keep what a slow claim found, for those who do not run it."""
    kept = json.loads(STORED.read_text(encoding="utf-8"))
    kept[row.claim.id] = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "seconds": round(row.seconds, 1),
        "finding": plain(dataclasses.asdict(row.finding)),
    }
    text = json.dumps(dict(sorted(kept.items())), indent=1, ensure_ascii=False, allow_nan=False)
    with whole(STORED) as draft:
        draft.write_text(text + "\n", encoding="utf-8")
