"""The ledger, and what its rows share."""

from attnflow.papers.ledger import Finding, Ledger

LEDGER = Ledger("specialization")


def rerun(code: str) -> str:
    """The command that shows a counterexample again."""
    return f'python -c "import numpy as np, attnflow as af; {code}"'


def all_of(*findings: Finding) -> Finding:
    """The first that fails, or the largest error of all; with the cases of all."""
    cases = sum(each.cases for each in findings)
    worst = next((each for each in findings if not each.good), None)
    if worst is None:
        return Finding("holds", max(each.margin for each in findings), cases)
    return Finding(worst.verdict, worst.margin, cases, worst.counterexample)
