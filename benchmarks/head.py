"""The cross-entropy head: a step at T = 2,000 against dense PyTorch, and the whole speed-up study.

Each step is timed in a process of its own, which also tells how much its memory grew:

    python -m benchmarks.head torch|blockwise|symbols
"""

import importlib
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

from attnflow.models.head import ChainTask
from attnflow.papers.routing._study import Study, run
from benchmarks.timing import best

Row = tuple[str, str, str, str]
RATE = 0.1
TASK = ChainTask()


def torch_step():
    """Dense attention of T × T in float64, as one would write it."""
    torch: Any = importlib.import_module("torch")
    model = TASK.model()
    inputs = torch.tensor(np.asarray(model.embedding)[model.symbols[0]])
    targets = torch.tensor(model.targets[0])
    params = {name: torch.tensor(x, requires_grad=True) for name, x in model.start.items()}
    hidden = torch.triu(torch.ones(len(inputs), len(inputs), dtype=torch.bool), 1)
    optimizer = torch.optim.SGD(params.values(), lr=RATE)

    def step():
        q, k, v = (inputs @ params[f"W_{x}"] + params[f"b_{x}"] for x in "QKV")
        scores = (q @ k.T / k.shape[1] ** 0.5).masked_fill(hidden, -float("inf"))
        logits = torch.softmax(scores, -1) @ v @ params["W_O"] + params["b_O"]
        loss = torch.nn.functional.cross_entropy(logits, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def advance(model, params):
    return jax.tree.map(lambda x, slope: x - RATE * slope, params, jax.grad(model.loss)(params))


def our_step(model):
    with jax.enable_x64(True):
        params = model.init()
        program = eqx.filter_jit(advance).lower(model, params).compile()

    def step():
        with jax.enable_x64(True):
            jax.block_until_ready(program(model, params))

    return step


STEPS = {
    "torch": torch_step,
    "blockwise": lambda: our_step(TASK.model().dense()),
    "symbols": lambda: our_step(TASK.model()),
}


def measure(name: str) -> tuple[float, float]:
    """Seconds a step, and megabytes by which the process grew in making them (once compiled)."""
    step = STEPS[name]()
    before = peak()
    _, seconds = best(step, 7)
    return seconds, peak() - before


def peak() -> float:
    """Most megabytes this process has had in memory (`ru_maxrss` starts with its parent's)."""
    text = Path("/proc/self/status").read_text()
    return float(text.split("VmHWM:")[1].split()[0]) / 1024


def elsewhere(name: str) -> tuple[float, float]:
    command = [sys.executable, "-m", "benchmarks.head", name]
    root = Path(__file__).parent.parent
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=root)
    seconds, megabytes = map(float, done.stdout.split())
    return seconds, megabytes


def head() -> list[Row]:
    try:
        version = importlib.import_module("torch").__version__
    except ImportError:
        return []
    theirs, their_memory = elsewhere("torch")
    rows = []
    for name, title in {
        "blockwise": "`Head`, 128 queries at a time",
        "symbols": "`SymbolHead`, by counting",
    }.items():
        ours, memory = elsewhere(name)
        rows.append(
            (
                f"a training step of the head at T = 2,000, {title}",
                f"dense PyTorch {version}: {theirs * 1e3:.0f} ms, {their_memory:.0f} MB",
                f"{ours * 1e3:.2f} ms, {memory:.0f} MB",
                f"{theirs / ours:.1f}× faster, {their_memory / max(memory, 1):.1f}× less memory",
            )
        )
    return rows


def study() -> list[Row]:
    begun = time.perf_counter()
    run(Study(rates=(0.03, 0.1, 0.3, 1.0, 3.0)))
    seconds = time.perf_counter() - begun
    name = "speed-up study: 8 seeds × 2 schedules × 5 rates × 1,000 steps at T = 2,000"
    return [(name, "", f"{seconds:.0f} s with compiling", "")]


SECTIONS = {"head": head, "study": study}

if __name__ == "__main__":
    print(*measure(sys.argv[1]))
