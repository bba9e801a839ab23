"""What a run was made with."""

import functools
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

PACKAGES = ("attnflow", "jax", "jaxlib", "numpy", "optax", "diffrax", "equinox", "xarray", "torch")


@functools.cache
def environment() -> dict[str, Any]:
    """Versions and machine, the same for all runs of a process."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "versions": versions,
        "python": platform.python_version(),
        "system": platform.system(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "commit": _commit(),
    }


def _commit() -> str | None:
    """Of the source tree this package runs from, if it is one."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return None
    asked = ["git", "-C", str(root), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
