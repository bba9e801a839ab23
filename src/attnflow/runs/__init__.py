"""Runs on disk and sweeps over configs: what is done stays done."""

from attnflow.runs.checkpoint import Checkpoint
from attnflow.runs.config import canonical, grid, restored
from attnflow.runs.query import open
from attnflow.runs.store import DamagedRun, Run, Store, StoreError
from attnflow.runs.sweep import Experiment, Plan, Report, plan, sweep

__all__ = [
    "Checkpoint",
    "DamagedRun",
    "Experiment",
    "Plan",
    "Report",
    "Run",
    "Store",
    "StoreError",
    "canonical",
    "grid",
    "open",
    "plan",
    "restored",
    "sweep",
]
