"""Watching leaves the training as it is, bit for bit, and measures what the dense map says."""

import copy
import json
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the extra [torch] is not installed")
pytest.importorskip("transformers", reason="the extra [torch] is not installed")

from torch import nn  # noqa: E402

from attnflow.runs import Store  # noqa: E402
from attnflow.torch.measure import Budget  # noqa: E402
from attnflow.torch.records import recover  # noqa: E402
from attnflow.torch.watcher import to_tensorboard, to_wandb, watch  # noqa: E402
from tests.torch import zoo  # noqa: E402
from tests.torch.watched import train  # noqa: E402


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "vit"])
def test_training_is_the_same_bit_for_bit(name):
    dropout: dict[str, Any] = {"resid_pdrop": 0.1} if name == "gpt2" else {}
    model = zoo.build(name, **dropout)
    twin = copy.deepcopy(model)
    plain, _ = train(model, name)
    watched, watcher = train(twin, name, watcher=True)
    assert plain == watched
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(a, b)
    assert watcher.history.step.values.tolist() == [0, 2, 4]
    assert np.isfinite(watcher.history.entropy).all()
    assert len(twin._forward_pre_hooks) == 0


def test_history_holds_every_quantity():
    _, watcher = train(zoo.build("llama"), watcher=True)
    history = watcher.history
    unknown = [name for name in history if not np.isfinite(history[name]).all()]
    assert unknown == []
    assert history.entropy.dims == ("step", "layer", "head")
    assert history.update_value.dims == ("step", "layer")
    assert (history.update_value > 0).all()
    assert (history.row_sum_drift.isel(step=0) == 0).all()


def test_update_ratios_are_those_of_one_step():
    model = zoo.build("llama").train()
    weight = model.model.layers[0].self_attn.v_proj.weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ratios = []
    with watch(model, every=2, optimizer=optimizer) as watcher:
        for step in range(4):
            model(**zoo.inputs("llama", seed=step)).loss.backward()
            before = weight.detach().clone()
            optimizer.step()
            optimizer.zero_grad()
            ratios.append(float((weight.detach() - before).norm() / before.norm()))
    found = watcher.history.update_value.isel(layer=0).values
    np.testing.assert_allclose(found, [ratios[0], ratios[2]], rtol=1e-5)


def test_steps_of_the_optimizer_count_when_gradients_are_accumulated():
    _, watcher = train(zoo.build("llama"), watcher=True, accumulate=2)
    assert watcher.history.step.values.tolist() == [0, 2, 4]


def test_multihead_attention_with_a_loss_of_ones_own():
    model = zoo.build("encoder").train()
    with watch(model, every=1, loss=lambda out: out.square().mean()) as watcher:
        model(**zoo.inputs("encoder"))
        model(zoo.inputs("encoder")["input_ids"])
    assert watcher.history.sizes["step"] == 2
    assert np.isfinite(watcher.history.advantage).all()


def test_records_become_a_run_of_the_store(tmp_path):
    _, watcher = train(zoo.build("llama"), watcher=True, out=tmp_path, label="first")
    (run,) = Store(tmp_path)
    assert run.config["label"] == "first"
    assert run.damage() is None
    np.testing.assert_array_equal(run.data().entropy, watcher.history.entropy)
    assert [path for path in tmp_path.iterdir() if path.name.startswith(".live")] == []


def test_what_a_killed_training_recorded_is_recovered(tmp_path):
    """Killed: never left. Every record but the last, which waits for its update, is on disk."""
    model = zoo.build("llama").train()
    watch(model, every=1, out=tmp_path).__enter__()
    for _ in range(4):
        model(**zoo.inputs("llama")).loss.backward()
    assert list(Store(tmp_path)) == []
    (run,) = recover(tmp_path)
    assert run.data().step.values.tolist() == [0, 1, 2]
    assert recover(tmp_path) == []


def test_a_failing_instrument_warns_once_and_the_training_goes_on(monkeypatch):
    plain, _ = train(zoo.build("llama"))
    calls = []

    def broken(*_):
        calls.append(1)
        raise MemoryError("no room")

    monkeypatch.setattr("attnflow.torch.watcher.measure", broken)
    with pytest.warns(RuntimeWarning, match="off from step 0 on: MemoryError: no room") as told:
        watched, watcher = train(zoo.build("llama"), watcher=True)
    assert plain == watched
    assert len(told) == len(calls) == 1
    assert watcher is not None
    assert "no room" in str(watcher.failed)


def test_what_was_recorded_before_a_failure_becomes_a_run(monkeypatch, tmp_path):
    model = zoo.build("llama").train()

    def broken(*_):
        raise MemoryError("no room")

    with watch(model, every=1, out=tmp_path) as watcher:
        model(**zoo.inputs("llama"))
        model(**zoo.inputs("llama"))
        monkeypatch.setattr("attnflow.torch.watcher.measure", broken)
        with pytest.warns(RuntimeWarning, match="off from step 2"):
            model(**zoo.inputs("llama"))
    assert "no room" in str(watcher.failed)
    (run,) = Store(tmp_path)
    assert run.data().step.values.tolist() == [0, 1]


def test_hooks_go_even_after_an_exception():
    model = zoo.build("llama").train()

    def fail():
        model(**zoo.inputs("llama"))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), watch(model, every=1):
        fail()
    assert len(model._forward_pre_hooks) == 0


def test_evaluation_between_steps_is_not_counted():
    model = zoo.build("llama").train()
    with watch(model, every=1) as watcher:
        model(**zoo.inputs("llama"))
        model.eval()
        model(**zoo.inputs("llama"))
        model.train()
        with torch.no_grad():
            model(**zoo.inputs("llama"))
    assert watcher.history.step.values.tolist() == [0]


def test_numbers_for_other_loggers():
    seen: dict[str, Any] = {}

    class Writer:
        def add_scalar(self, name, value, step):
            seen[name] = (value, step)

    class Run:
        def log(self, numbers, step):
            seen.update({f"wandb {name}": (value, step) for name, value in numbers.items()})

    for log in (to_tensorboard(Writer()), to_wandb(Run())):
        train(zoo.build("llama"), steps=1, watcher=True, log=log)
    value, step = seen["attention/entropy/layer_1"]
    assert step == 0
    assert value == seen["wandb attention/entropy/layer_1"][0]
    assert "attention/update_value/layer_0" in seen
    assert "attention/loss" in seen


def test_a_batch_of_its_own_is_always_looked_at():
    fixed = zoo.inputs("llama", seed=9)
    model = zoo.build("llama").train()
    with watch(model, every=1, batch=fixed) as watcher:
        for step in range(2):
            model(**zoo.inputs("llama", seed=step))
    np.testing.assert_array_equal(*watcher.history.loss.values[:, None])


class Home(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x)


def test_bad_input(tmp_path):
    with pytest.raises(ValueError, match="Home has no attention that can be watched"):
        watch(Home())
    model = zoo.build("llama")
    with pytest.raises(ValueError, match="every must be"):
        watch(model, every=0)
    with pytest.raises(ValueError, match="rows must be"):
        Budget(rows=0)
    with pytest.warns(RuntimeWarning, match="saw no training step"), watch(model):
        pass
    with watch(model.train()) as watcher:
        with pytest.raises(RuntimeError, match="at work already"):
            watcher.__enter__()
        model(**zoo.inputs("llama"))
    with pytest.raises(ValueError, match="nothing has been recorded"):
        watch(model).history  # noqa: B018


def test_config_of_the_run_is_plain(tmp_path):
    train(zoo.build("llama"), steps=1, watcher=True, out=tmp_path)
    (run,) = Store(tmp_path)
    assert json.dumps(run.config)
