"""The ledger: every statement of a paper as a check with a verdict.

A row is a function beside its statement. Its keyword arguments default to what the paper prints;
`broken` replaces some of them by something false, and a test asks that the verdict then changes:
a check that cannot fail is a defect.
"""

import dataclasses
import importlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from attnflow._checks import choice
from attnflow.papers import papers_with
from attnflow.papers.trials import reused_seconds

STORED = Path(__file__).with_name("stored.json")  # what slow rows found when they last ran
Kind = Literal["identity", "inequality", "limit", "existence", "sign"]
Verdict = Literal["holds", "holds_corrected", "refuted", "not_checkable"]


@dataclasses.dataclass(frozen=True)
class Finding:
    """What a check saw.

    margin: for an identity the worst relative error, for an inequality the worst slack (positive:
    it holds), for a limit or rate the distance of the fit from the claim, else the least distance
    from failing, in the statement's own units.
    counterexample: the numbers that refute the printed form, and under "run" how to see it again.
    """

    verdict: Verdict
    margin: float
    cases: int
    counterexample: Mapping[str, Any] | None = None
    correction: str | None = None

    @property
    def good(self) -> bool:
        return self.verdict in ("holds", "holds_corrected")


def identity(
    measured: Any, claimed: Any, *, tolerance: float = 1e-9, cases: int | None = None
) -> Finding:
    """Both sides agree to `tolerance`, relative to the largest entry of the claimed side."""
    measured, claimed = np.asarray(measured, float), np.asarray(claimed, float)
    scale = max(float(np.max(np.abs(claimed), initial=0.0)), 1e-300)
    error = float(np.max(np.abs(measured - claimed), initial=0.0)) / scale
    ok = np.isfinite(error) and error <= tolerance
    count = cases if cases is not None else (measured.shape[0] if measured.ndim else 1)
    return Finding("holds" if ok else "refuted", error, count)


def inequality(
    slack: Any, *, tolerance: float = 0.0, counterexample: Callable[[int], Mapping] | None = None
) -> Finding:
    """Every slack is above −`tolerance` (with tolerance 0: strictly positive).

    `counterexample(index)` describes the worst case by its flat index.
    """
    slack = np.asarray(slack, float)
    worst = int(np.argmin(slack))
    margin = float(slack.flat[worst])
    ok = margin > 0 if tolerance == 0 else margin >= -tolerance
    shown = None if ok or counterexample is None else counterexample(worst)
    return Finding("holds" if ok else "refuted", margin, slack.size, shown)


def corrected(printed: Finding, mended: Finding, correction: str) -> Finding:
    """The printed form fails and the mended one holds: its margin counts, with the printed form's
    counterexample."""
    if printed.good:
        return printed
    if not mended.good:
        return dataclasses.replace(mended, correction=None)
    return dataclasses.replace(
        mended,
        verdict="holds_corrected",
        cases=mended.cases + printed.cases,
        counterexample=printed.counterexample,
        correction=correction,
    )


def all_of(*findings: Finding) -> Finding:
    """The first that fails, or the largest error of all; with the cases of all."""
    cases = sum(each.cases for each in findings)
    worst = next((each for each in findings if not each.good), None)
    if worst is None:
        return Finding("holds", max(each.margin for each in findings), cases)
    return Finding(worst.verdict, worst.margin, cases, worst.counterexample)


def rerun(code: str) -> str:
    """The command that shows a counterexample again."""
    return f'python -c "import numpy as np, attnflow as af; {code}"'


@dataclasses.dataclass(frozen=True)
class Claim:
    """One row: a statement in our own words, where the paper makes it, and its check.

    slow: it trains networks or reads large models. Unless asked for, what it found when it last ran
    is shown instead, with the date."""

    paper: str
    name: str
    where: str
    statement: str
    kind: Kind
    recorded: Verdict
    check: Callable[..., Finding]
    broken: Mapping[str, Any]
    hypotheses: str = ""
    slow: bool = False

    @property
    def id(self) -> str:
        return f"{self.paper}/{self.name}"


@dataclasses.dataclass(frozen=True)
class Row:
    """A claim with what its check just found, or at the date `stored`, and `note`: why not now."""

    claim: Claim
    finding: Finding
    seconds: float
    stored: str = ""
    note: str = ""

    @property
    def changed(self) -> bool:
        return self.finding.verdict != self.claim.recorded

    def as_dict(self) -> dict[str, Any]:
        return {
            "id": self.claim.id,
            "paper": self.claim.paper,
            "where": self.claim.where,
            "statement": self.claim.statement,
            "hypotheses": self.claim.hypotheses,
            "kind": self.claim.kind,
            "verdict": self.finding.verdict,
            "recorded": self.claim.recorded,
            "margin": self.finding.margin,
            "cases": self.finding.cases,
            "counterexample": self.finding.counterexample,
            "correction": self.finding.correction,
            "seconds": round(self.seconds, 3),
            "stored": self.stored,
        }


class NeedsData(ValueError):
    """A check cannot run here because data or a package is absent; says how to get it."""


class Ledger:
    """The rows of one paper, in the order in which they are written."""

    def __init__(self, paper: str):
        self.paper = paper
        self.claims: dict[str, Claim] = {}

    def claim(
        self,
        name: str,
        *,
        where: str,
        statement: str,
        kind: Kind,
        recorded: Verdict,
        broken: Mapping[str, Any],
        hypotheses: str = "",
        slow: bool = False,
    ):
        def add(check: Callable[..., Finding]) -> Callable[..., Finding]:
            if name in self.claims:
                raise ValueError(f"{self.paper}/{name} is in the ledger already")
            self.claims[name] = Claim(
                self.paper, name, where, statement, kind, recorded, check, broken, hypotheses, slow
            )
            return check

        return add


def select(target: str = "") -> list[Claim]:
    """All claims, those of `PAPER`, or the one `PAPER/CLAIM`."""
    paper, _, name = target.partition("/")
    if target:
        choice("paper", paper, papers_with("claims"))
    chosen = []
    for each in [paper] if paper else papers_with("claims"):
        ledger: Ledger = importlib.import_module(f"attnflow.papers.{each}.claims").LEDGER
        if name:
            choice("claim", name, ledger.claims)
        chosen += [ledger.claims[name]] if name else list(ledger.claims.values())
    return chosen


def verify(claims: Iterable[Claim], processes: int = 1, slow: bool = False) -> Iterator[Row]:
    """Run the checks and give each row as it is done; slow ones only if asked, one after another.

    With more than one process the rows of different papers arrive mixed.
    """
    claims = list(claims)
    quick = [claim for claim in claims if not claim.slow]
    apart = processes > 1 and len({claim.check.__module__ for claim in quick}) > 1
    if apart:
        from attnflow.papers.workers import on_workers

        known = {claim.id: claim for claim in claims}
        for name, finding, seconds in on_workers(quick, processes):
            yield Row(known[name], finding, seconds)
    for claim in claims:
        if claim.slow and not slow:
            yield stored(claim)
        elif claim.slow or not apart:
            yield _run(claim)


def _run(claim: Claim) -> Row:
    begun, before = time.perf_counter(), reused_seconds()
    try:
        finding = claim.check()
    except NeedsData as missing:
        return dataclasses.replace(stored(claim), note=f"not run: {missing}")
    earlier = reused_seconds() - before  # a stored training counts as if it were done now
    return Row(claim, finding, time.perf_counter() - begun + earlier)


def stored(claim: Claim) -> Row:
    """What a slow claim found when it last ran."""
    kept = json.loads(STORED.read_text(encoding="utf-8")).get(claim.id)
    if kept is None:
        raise RuntimeError(f"{claim.id} has not run yet: attnflow verify {claim.id} --slow")
    return Row(claim, Finding(**kept["finding"]), kept["seconds"], kept["date"])
