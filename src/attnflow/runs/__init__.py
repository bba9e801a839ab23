"""Runs on disk and sweeps over configs: what is done stays done."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attnflow.runs.checkpoint import Checkpoint, FileCheckpoint
    from attnflow.runs.config import canonical, grid, restored
    from attnflow.runs.jobs import Experiment
    from attnflow.runs.query import open
    from attnflow.runs.run import Run
    from attnflow.runs.store import Check, DamagedRun, Store, StoreError
    from attnflow.runs.sweeps import Plan, Report, plan, sweep

_EXPORTS = {
    "checkpoint": ("Checkpoint", "FileCheckpoint"),
    "config": ("canonical", "grid", "restored"),
    "jobs": ("Experiment",),
    "query": ("open",),
    "run": ("Run",),
    "store": ("Check", "DamagedRun", "Store", "StoreError"),
    "sweeps": ("Plan", "Report", "plan", "sweep"),
}
_HOMES = {name: module for module, names in _EXPORTS.items() for name in names}

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


def __getattr__(name: str):
    """Parquet and netCDF load when they are first used: not every command stores runs."""
    if name not in _HOMES:
        raise AttributeError(f"module 'attnflow.runs' has no attribute {name!r}")
    found = getattr(importlib.import_module(f"attnflow.runs.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__():
    return sorted(__all__)
