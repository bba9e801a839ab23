"""Runs on disk and sweeps over configs: what is done stays done."""

from attnflow.runs.checkpoint import Checkpoint, FileCheckpoint
from attnflow.runs.config import canonical, grid, restored
from attnflow.runs.query import open
from attnflow.runs.run import Run
from attnflow.runs.store import Check, DamagedRun, Store, StoreError
from attnflow.runs.sweep import Experiment, Plan, Report, plan, sweep

__all__ = [
    "Check",
    "Checkpoint",
    "DamagedRun",
    "Experiment",
    "FileCheckpoint",
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
