"""The ledger, and what its rows share."""

from attnflow.papers.ledger import Ledger, all_of, rerun

__all__ = ["LEDGER", "all_of", "rerun"]

LEDGER = Ledger("specialization")
