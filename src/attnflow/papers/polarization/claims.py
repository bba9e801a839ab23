"""The statements of the polarization paper (the value–softmax model)."""

# The order of the rows is the order of these imports: that of the paper, proofs beside theorems.
# ruff: isort: off
from attnflow.papers.polarization import _equations
from attnflow.papers.polarization import _repulsion
from attnflow.papers.polarization import _rates
from attnflow.papers.polarization import _asymptotics
from attnflow.papers.polarization import _regression
from attnflow.papers.polarization import _other_losses
from attnflow.papers.polarization import _elementwise_maps
from attnflow.papers.polarization import _normalized_maps
from attnflow.papers.polarization import _extensions
from attnflow.papers.polarization import _language_figures
from attnflow.papers.polarization import _transformer_claims
from attnflow.papers.polarization._ledger import LEDGER

SECTIONS = (
    _equations,
    _repulsion,
    _rates,
    _asymptotics,
    _regression,
    _other_losses,
    _elementwise_maps,
    _normalized_maps,
    _extensions,
    _language_figures,
    _transformer_claims,
)

__all__ = ["LEDGER", "SECTIONS"]
