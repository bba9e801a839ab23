"""Online SGD at finite dimension."""

from attnflow.dynamics.sgd.online import LEVELS, sgd

__all__ = ["LEVELS", "sgd"]
