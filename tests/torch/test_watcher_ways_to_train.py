"""Watching leaves the training as it is, in all the ways in which people train."""

import copy
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
from tests.torch import zoo  # noqa: E402
from tests.torch.watched import train  # noqa: E402


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
