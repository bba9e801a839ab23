"""The one ledger on which every module of this paper writes its rows."""

import numpy as np

from attnflow.papers.ledger import Finding, Ledger

LEDGER = Ledger("polarization")


def rerun(model: str, horizon: str, show: str) -> str:
    """The command that flows `model` again as `f` and prints `show`."""
    flow = f"f = af.gradient_flow(af.{model}, {horizon})"
    return f'python -c "import numpy as np, attnflow as af; {flow}; print({show})"'


def vanishing(values, *, tolerance: float = 1e-9) -> Finding:
    """Every value, already relative to its natural size, is zero."""
    values = np.asarray(values, float)
    error = float(np.max(np.abs(values)))
    return Finding("holds" if error <= tolerance else "refuted", error, values.size)


def close(measured, claimed, *, tolerance: float) -> Finding:
    """A limit or a rate: every measured value is within `tolerance` of the claim, relatively."""
    measured, claimed = np.broadcast_arrays(np.asarray(measured, float), claimed)
    error = float(np.max(np.abs(measured / claimed - 1)))
    return Finding("holds" if error <= tolerance else "refuted", error, measured.size)
