"""The statements of the polarization paper (the value–softmax model)."""

# isort: off
# The order of the rows is the order of these imports: that of the paper, proofs beside theorems.
from attnflow.papers.polarization import _equations
from attnflow.papers.polarization._ledger import LEDGER

__all__ = ["LEDGER"]
