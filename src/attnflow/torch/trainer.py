"""Watching a Hugging Face `Trainer`."""

from typing import Any

import xarray as xr
from transformers import TrainerCallback

from attnflow.torch.watcher import Watcher, watch


class WatchCallback(TrainerCallback):
    """`Trainer(…, callbacks=[WatchCallback(every=100, out="runs")])`; the options are those of
    `attnflow.torch.watch`. Steps are the trainer's, also with gradient accumulation.

    Entered as a context manager around `trainer.train()` it leaves no hook behind even if the
    training fails (the trainer does not tell its callbacks)."""

    def __init__(self, every: int = 100, **options: Any):
        self.every, self.options = every, options
        self.watcher: Watcher | None = None

    @property
    def history(self) -> xr.Dataset:
        if self.watcher is None:
            raise ValueError("the training has not begun: there is no history yet")
        return self.watcher.history

    def __enter__(self) -> "WatchCallback":
        return self

    def __exit__(self, *error: object) -> None:
        if self.watcher is not None:
            self.watcher.__exit__()

    def on_train_begin(self, args, state, control, **more):
        if self.watcher is not None:
            self.watcher.__exit__()
        self.watcher = watch(more["model"], self.every, **self.options).__enter__()
        self.watcher.at(state.global_step)

    def on_step_begin(self, args, state, control, **more):
        if self.watcher is not None:
            self.watcher.at(state.global_step)

    def on_train_end(self, args, state, control, **more):
        if self.watcher is not None:
            self.watcher.__exit__()
