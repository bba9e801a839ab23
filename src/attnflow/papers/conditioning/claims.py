"""The statements of the conditioning paper (prompt attention)."""

# The order of the rows is the order of these imports: that of the paper, proofs beside theorems.
# ruff: isort: off
from attnflow.papers.conditioning import _gradient
from attnflow.papers.conditioning import _overparameterized
from attnflow.papers.conditioning import _theorem_1
from attnflow.papers.conditioning import _decoupled
from attnflow.papers.conditioning import _separation
from attnflow.papers.conditioning import _local
from attnflow.papers.conditioning import _sparse
from attnflow.papers.conditioning import _convergence
from attnflow.papers.conditioning import _experiments
from attnflow.papers.conditioning import _vision_claims
from attnflow.papers.conditioning import _wikitext_claims
from attnflow.papers.conditioning import _pretrained
from attnflow.papers.conditioning import _controls
from attnflow.papers.conditioning import _remedy
from attnflow.papers.conditioning._ledger import LEDGER

SECTIONS = (
    _gradient,
    _overparameterized,
    _theorem_1,
    _decoupled,
    _separation,
    _local,
    _sparse,
    _convergence,
    _experiments,
    _vision_claims,
    _wikitext_claims,
    _pretrained,
    _controls,
    _remedy,
)

__all__ = ["LEDGER", "SECTIONS"]
