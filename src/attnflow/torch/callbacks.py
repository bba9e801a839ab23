"""What callbacks of trainers share."""

from typing import Any

import xarray as xr
from torch import nn

from attnflow.torch.watcher import Watcher, watch


class Watching:
    """Holds a watcher while a trainer trains; the options are those of `attnflow.torch.watch`."""

    def __init__(self, every: int = 100, **options: Any):
        super().__init__()
        self.every, self.options = every, options
        self.watcher: Watcher | None = None

    @property
    def history(self) -> xr.Dataset:
        if self.watcher is None:
            raise ValueError("the training has not begun: there is no history yet")
        return self.watcher.history

    def begin(self, model: nn.Module, step: int) -> None:
        self.stop()
        self.watcher = watch(model, self.every, **self.options).__enter__()
        self.watcher.at(step)

    def at(self, step: int) -> None:
        if self.watcher is not None:
            self.watcher.at(step)

    def stop(self) -> None:
        if self.watcher is not None:
            self.watcher.__exit__()
