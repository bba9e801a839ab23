"""The statements of the routing document (one head under cross-entropy)."""

# The order of the rows is the order of these imports.
# ruff: isort: off
from attnflow.papers.routing import _gradients
from attnflow.papers.routing import _updates
from attnflow.papers.routing import _values
from attnflow.papers.routing import _loop
from attnflow.papers.routing import _schedules
from attnflow.papers.routing import _shape
from attnflow.papers.routing._ledger import LEDGER

SECTIONS = (_gradients, _updates, _values, _loop, _schedules, _shape)

__all__ = ["LEDGER", "SECTIONS"]
