"""Watching a Hugging Face `Trainer`."""

from transformers import TrainerCallback

from attnflow.torch.callbacks import Watching


class WatchCallback(Watching, TrainerCallback):
    """`Trainer(…, callbacks=[WatchCallback(every=100, out="runs")])`; the options are those of
    `attnflow.torch.watch`. Steps are the trainer's, also with gradient accumulation.

    Entered as a context manager around `trainer.train()` it leaves no hook behind even if the
    training fails (the trainer does not tell its callbacks)."""

    def __enter__(self) -> "WatchCallback":
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def on_train_begin(self, args, state, control, **more):
        self.begin(more["model"], state.global_step)

    def on_step_begin(self, args, state, control, **more):
        self.at(state.global_step)

    def on_train_end(self, args, state, control, **more):
        self.stop()
