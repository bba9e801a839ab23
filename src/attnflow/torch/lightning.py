"""Watching a Lightning `Trainer`."""

from lightning.pytorch.callbacks import Callback
from torch import nn

from attnflow.torch.callbacks import Watching
from attnflow.torch.modules import attention_modules


class WatchLightning(Watching, Callback):
    """`Trainer(callbacks=[WatchLightning(every=100, out="runs")])`; the options are those of
    `attnflow.torch.watch`.

    Looks through the calls of the one part of the LightningModule that holds all its attention, or
    of the whole where there is no such part."""

    def on_train_start(self, trainer, pl_module):
        self.begin(holder(pl_module), trainer.global_step)

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.at(trainer.global_step)

    def on_train_end(self, trainer, pl_module):
        self.stop()

    def on_exception(self, trainer, pl_module, exception):
        self.stop()


def holder(module: nn.Module) -> nn.Module:
    """The child that holds all attention of a module, if there is one, else the module."""
    count = len(attention_modules(module))
    for child in module.children():
        if count and len(attention_modules(child)) == count:
            return child
    return module
