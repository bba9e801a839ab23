"""The ledger, and what its rows share."""

from attnflow.papers.ledger import Finding, Ledger, rerun

__all__ = ["LEDGER", "all_of", "rerun"]

LEDGER = Ledger("specialization")


def all_of(*findings: Finding) -> Finding:
    """The first that fails, or the largest error of all; with the cases of all."""
    cases = sum(each.cases for each in findings)
    worst = next((each for each in findings if not each.good), None)
    if worst is None:
        return Finding("holds", max(each.margin for each in findings), cases)
    return Finding(worst.verdict, worst.margin, cases, worst.counterexample)
