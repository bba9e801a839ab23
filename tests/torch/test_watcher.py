"""Watching leaves the training as it is, bit for bit, and measures what the dense map says."""

import copy
import json
import os
import subprocess
import sys
import warnings
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


def train(model, name="llama", steps=6, watcher=None, accumulate=1, **options):
    """Weights after some steps of AdamW with dropout's random numbers, and the losses."""
    torch.manual_seed(1)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if watcher is not None:
        options.setdefault("every", 2)
        watcher = watch(model, **options, **({"optimizer": optimizer} if accumulate > 1 else {}))
        watcher.__enter__()
    losses = []
    for step in range(steps):
        for part in range(accumulate):
            loss = model(**zoo.inputs(name, seed=step + 100 * part)).loss
            loss.backward()
            losses.append(float(loss.detach()))
        optimizer.step()
        optimizer.zero_grad()
    if watcher is not None:
        watcher.__exit__()
    return losses, watcher


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


@pytest.mark.parametrize("reentrant", [False, True])
def test_with_gradient_checkpointing(reentrant):
    model = zoo.build("llama")
    twin = copy.deepcopy(model)
    for each in (model, twin):
        each.gradient_checkpointing_enable({"use_reentrant": reentrant})
    plain, _ = train(model)
    watched, watcher = train(twin, watcher=True)
    assert plain == watched
    assert np.isfinite(watcher.history.advantage).all()


def test_with_mixed_precision():
    results = []
    for watched in (False, True):
        model = zoo.build("llama")
        with torch.autocast("cpu", dtype=torch.bfloat16):
            losses, watcher = train(model, watcher=watched or None)
        results.append(losses)
    assert results[0] == results[1]
    assert watcher is not None
    assert np.isfinite(watcher.history.entropy).all()


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_with_torch_compile(backend):
    results = []
    for watched in (False, True):
        torch._dynamo.reset()
        model = zoo.build("llama")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compiled: Any = torch.compile(model, backend=backend)
            losses, watcher = train(compiled, watcher=watched or None)
        results.append(losses)
    assert results[0] == results[1]
    assert watcher is not None
    assert watcher.failed is None
    assert watcher.history.sizes["step"] == 3


def test_with_a_model_compiled_in_place():
    results = []
    for watched in (False, True):
        torch._dynamo.reset()
        model = zoo.build("llama")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.compile(backend="eager")
            own = model._compiled_call_impl
            losses, watcher = train(model, watcher=watched or None)
        results.append(losses)
    assert results[0] == results[1]
    assert watcher is not None
    assert watcher.history.step.values.tolist() == [0, 2, 4]
    assert model._compiled_call_impl is own


def test_with_data_parallel(tmp_path):
    group = torch.distributed
    meeting = f"file://{tmp_path}/meet"
    group.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
    try:
        results = []
        for watched in (False, True):
            model = nn.parallel.DistributedDataParallel(zoo.build("llama"))
            losses, watcher = train(model, watcher=watched or None)
            results.append(losses)
    finally:
        group.destroy_process_group()
    assert results[0] == results[1]
    assert watcher is not None
    assert watcher.history.sizes["step"] == 3


@pytest.mark.slow
def test_with_data_parallel_processes(tmp_path):
    """One process of a group of two looks; both train the same weights as without it."""
    program = """
import sys, torch, copy
import torch.distributed as dist
from tests.torch import zoo
from attnflow.torch.watcher import watch
rank, place = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{place}/meet", rank=rank, world_size=2)
def run(watched):
    model = torch.nn.parallel.DistributedDataParallel(zoo.build("llama")).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    def loop():
        for step in range(3):
            model(**zoo.inputs("llama", seed=2 * step + rank)).loss.backward()
            optimizer.step(); optimizer.zero_grad()
    if watched:
        with watch(model, every=1, out=place + "/store") as w: loop()
        assert w.failed is None, w.failed
        assert len(w.records.kept) == (3 if rank == 0 else 0)
    else: loop()
    return [p.detach().clone() for p in model.parameters()]
assert all(torch.equal(a, b) for a, b in zip(run(False), run(True)))
dist.destroy_process_group()
"""
    children = [
        subprocess.Popen([sys.executable, "-c", program, str(rank), str(tmp_path)], cwd=os.getcwd())
        for rank in (0, 1)
    ]
    assert [child.wait(timeout=120) for child in children] == [0, 0]
    assert len(list(Store(tmp_path / "store"))) == 1


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
