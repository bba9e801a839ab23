"""What a solve raises that cannot go on."""

from typing import Any

import xarray as xr


class FlowError(RuntimeError):
    """A solve that did not reach its final time. `time` and `state` are where it stopped."""

    def __init__(self, message: str, time: float, state: Any):
        super().__init__(message)
        self.time = time
        self.state = state


class DescentError(RuntimeError):
    """A descent whose parameters or observables stopped being finite: at `step`, in the runs
    numbered `runs`, and the first thing to go was `what`. `recorded` is the Dataset up to there."""

    def __init__(self, message: str, step: int, what: str, runs: list[int], recorded: xr.Dataset):
        super().__init__(message)
        self.step, self.what, self.runs, self.recorded = step, what, runs, recorded
