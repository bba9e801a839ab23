"""Watching a Lightning `Trainer`."""

from typing import Any

import xarray as xr
from lightning.pytorch.callbacks import Callback
from torch import nn

from attnflow.torch.modules import attention_modules
from attnflow.torch.watcher import Watcher, watch


class WatchLightning(Callback):
    """`Trainer(callbacks=[WatchLightning(every=100, out="runs")])`; the options are those of
    `attnflow.torch.watch`.

    Looks through the calls of the LightningModule, or of the one part of it that holds all its
    attention: whichever `training_step` calls."""

    def __init__(self, every: int = 100, **options: Any):
        self.every, self.options = every, options
        self.watcher: Watcher | None = None

    @property
    def history(self) -> xr.Dataset:
        if self.watcher is None:
            raise ValueError("the training has not begun: there is no history yet")
        return self.watcher.history

    def on_train_start(self, trainer, pl_module):
        inner = holder(pl_module)
        self.watcher = watch(inner, self.every, **self.options).__enter__()
        self.watcher.at(trainer.global_step)

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if self.watcher is not None:
            self.watcher.at(trainer.global_step)

    def on_train_end(self, trainer, pl_module):
        self._stop()

    def on_exception(self, trainer, pl_module, exception):
        self._stop()

    def _stop(self) -> None:
        if self.watcher is not None:
            self.watcher.__exit__()


def holder(module: nn.Module) -> nn.Module:
    """The child that holds all attention of a module, if there is one, else the module."""
    count = len(attention_modules(module))
    for child in module.children():
        if count and len(attention_modules(child)) == count:
            return child
    return module
