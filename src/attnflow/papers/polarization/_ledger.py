"""The one ledger on which every module of this paper writes its rows."""

import numpy as np

from attnflow.papers.ledger import Finding, Ledger

LEDGER = Ledger("polarization")


def vanishing(values, scale, *, tolerance: float = 1e-9) -> Finding:
    """Every value is zero, relative to `scale`."""
    values = np.asarray(values, float)
    error = float(np.max(np.abs(values) / np.asarray(scale, float)))
    return Finding("holds" if error <= tolerance else "refuted", error, values.size)


def close(measured, claimed, *, tolerance: float) -> Finding:
    """A limit or a rate: every measured value is within `tolerance` of the claim, relatively."""
    measured, claimed = np.broadcast_arrays(np.asarray(measured, float), claimed)
    error = float(np.max(np.abs(measured / claimed - 1)))
    return Finding("holds" if error <= tolerance else "refuted", error, measured.size)


def both(first: Finding, second: Finding) -> Finding:
    """Two halves of one statement: the first one that fails, else the one nearer to failing."""
    failed = [half for half in (first, second) if not half.good]
    chosen = failed[0] if failed else min(first, second, key=lambda half: half.margin)
    cases = first.cases + second.cases
    return Finding(chosen.verdict, chosen.margin, cases, chosen.counterexample, chosen.correction)
