"""Watching trainers of others."""

import copy
import logging
import warnings
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the extra [torch] is not installed")
hf: Any = pytest.importorskip("transformers", reason="the extra [torch] is not installed")
pytest.importorskip("accelerate", reason="the Trainer of transformers needs accelerate")

from attnflow.torch.trainer import WatchCallback  # noqa: E402
from tests.torch import zoo  # noqa: E402


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        return {name: x[0] for name, x in zoo.inputs("llama", batch=1, seed=index).items()}


def trained(tmp_path, callbacks, **options):
    torch.manual_seed(0)
    model = zoo.build("llama")
    arguments = hf.TrainingArguments(
        str(tmp_path / "trainer"),
        max_steps=4,
        per_device_train_batch_size=3,
        report_to=[],
        disable_tqdm=True,
        save_strategy="no",
        use_cpu=True,
        dataloader_pin_memory=False,
        **options,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of accelerate and the scheduler
        hf.Trainer(model, arguments, train_dataset=Tokens(), callbacks=callbacks).train()
    return model


@pytest.mark.parametrize("accumulate", [1, 2])
def test_trainer_of_transformers(tmp_path, accumulate):
    options = {"gradient_accumulation_steps": accumulate}
    plain = trained(tmp_path, [], **options)
    with WatchCallback(every=2, out=tmp_path / "store") as callback:
        watched = trained(tmp_path, [callback], **options)
    assert callback.history.step.values.tolist() == [0, 2]
    assert np.isfinite(callback.history.advantage).all()
    assert (callback.history.update_query > 0).all()
    for a, b in zip(plain.parameters(), watched.parameters(), strict=True):
        assert torch.equal(a, b)
    assert not watched._forward_pre_hooks


def test_hooks_go_after_a_failed_training(tmp_path):
    class Failing(hf.TrainerCallback):
        def on_step_end(self, args, state, control, **more):
            raise ZeroDivisionError

    callback = WatchCallback(every=1)
    with pytest.raises(ZeroDivisionError), callback:
        trained(tmp_path, [callback, Failing()])
    assert callback.watcher is not None
    assert not callback.watcher.model._forward_pre_hooks
    with pytest.raises(ValueError, match="has not begun"):
        WatchCallback().history  # noqa: B018


@pytest.mark.parametrize("inner", [True, False])
def test_lightning(tmp_path, inner):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lightning: Any = pytest.importorskip("lightning.pytorch", reason="needs lightning")
        from attnflow.torch.lightning import WatchLightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = zoo.build("llama")

        def forward(self, **inputs):
            return self.model(**inputs)

        def training_step(self, batch, index):
            return (self.model(**batch) if inner else self(**batch)).loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    results = []
    callback = WatchLightning(every=2)
    for callbacks in ([], [callback]):
        module = Module()
        module.train()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer = lightning.Trainer(
                max_steps=4,
                accelerator="cpu",
                logger=False,
                callbacks=copy.copy(callbacks),
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                default_root_dir=tmp_path,
            )
            trainer.fit(module, torch.utils.data.DataLoader(Tokens(), batch_size=3))
        results.append([p.detach().clone() for p in module.parameters()])
    assert callback.history.step.values.tolist() == [0, 2]
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    assert callback.watcher is not None
    assert not callback.watcher.model._forward_pre_hooks
