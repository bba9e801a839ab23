"""The statements of the specialization paper (single-location task)."""

# The order of the rows is the order of these imports: that of the paper.
# ruff: isort: off
from attnflow.papers.specialization import _reduction
from attnflow.papers.specialization import _phases
from attnflow.papers.specialization import _gradients
from attnflow.papers.specialization import _balance
from attnflow.papers.specialization import _hessian
from attnflow.papers.specialization import _hierarchy
from attnflow.papers.specialization import _same_samples
from attnflow.papers.specialization import _bayes
from attnflow.papers.specialization import _expressivity
from attnflow.papers.specialization import _performance
from attnflow.papers.specialization import _continuous
from attnflow.papers.specialization import _pruning
from attnflow.papers.specialization import _pretrained
from attnflow.papers.specialization import _similarity
from attnflow.papers.specialization._ledger import LEDGER

SECTIONS = (
    _reduction,
    _phases,
    _gradients,
    _balance,
    _hessian,
    _hierarchy,
    _same_samples,
    _bayes,
    _expressivity,
    _performance,
    _continuous,
    _pruning,
    _pretrained,
    _similarity,
)

__all__ = ["LEDGER", "SECTIONS"]
