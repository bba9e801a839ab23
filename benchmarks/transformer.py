"""Training the small transformer: our loop against a plain script and against its bare products,
what surrounds a step, and a grid on all cores.

    python -m benchmarks.transformer grid WORKERS    seconds of eight short trainings
"""

import importlib
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

from benchmarks.timing import timed

Row = tuple[str, str, str, str]
WIDTH, HEADS, MLP, BATCH, LENGTH, LAYERS = 128, 4, 512, 256, 12, 2
STEPS, ROUNDS = 12, 5


def plain_script() -> Any:
    """In the usual style: a dataset of single tensors behind a DataLoader, modules that return
    their weights, loss and accuracy told at every step. Gives train(steps)."""
    torch: Any = importlib.import_module("torch")
    nn: Any = torch.nn
    from attnflow.tasks.induction import Induction

    class Sequences(torch.utils.data.Dataset):
        def __init__(self, size: int):
            self.tokens, self.targets, self.weights = Induction(same_target=False).batch(0, 0, size)

        def __len__(self):
            return len(self.tokens)

        def __getitem__(self, index):
            return torch.tensor(self.tokens[index]), torch.tensor(self.targets[index])

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
            self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.mlp = nn.Sequential(nn.Linear(WIDTH, MLP), nn.GELU(), nn.Linear(MLP, WIDTH))

        def forward(self, x):
            batch, length, _ = x.shape
            normed = self.first(x)
            q, k, v = (
                each(normed).view(batch, length, HEADS, -1).transpose(1, 2)
                for each in (self.q, self.k, self.v)
            )
            scores = q @ k.transpose(-2, -1) / (WIDTH // HEADS) ** 0.5
            future = torch.triu(torch.ones(length, length, dtype=torch.bool), 1)
            weights = scores.masked_fill(future, float("-inf")).softmax(-1)
            mixed = (weights @ v).transpose(1, 2).reshape(batch, length, WIDTH)
            x = x + self.o(mixed)
            return x + self.mlp(self.second(x)), weights

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.place = nn.Embedding(101, WIDTH), nn.Embedding(LENGTH, WIDTH)
            self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
            self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 101)

        def forward(self, tokens):
            x = self.embed(tokens) + self.place(torch.arange(tokens.shape[1]))
            maps = []
            for block in self.blocks:
                x, weights = block(x)
                maps.append(weights)
            return self.out(self.norm(x)), maps

    torch.manual_seed(0)
    model, dataset = Model(), Sequences(STEPS * BATCH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    share = torch.tensor(dataset.weights)
    told = []

    def train():
        loader = torch.utils.data.DataLoader(dataset, batch_size=BATCH, shuffle=True)
        for tokens, targets in loader:
            logits, _ = model(tokens)
            each = nn.functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
            loss = (each * share).sum(1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right = (logits[:, -1].argmax(-1) == targets[:, -1]).float().mean()
            told.append((loss.item(), right.item()))

    return train


def our_loop(compiled: bool, *, every: int = 0) -> Any:
    torch: Any = importlib.import_module("torch")
    from attnflow.tasks.induction import Induction
    from attnflow.torch import Transformer, TransformerConfig, train, watch
    from attnflow.torch.training import last_accuracy

    task = Induction(same_target=False)
    config = TransformerConfig(
        vocabulary=task.tokens,
        outputs=task.tokens,
        width=WIDTH,
        heads=HEADS,
        mlp=MLP,
        length=LENGTH,
        layers=LAYERS,
    )
    model = Transformer(config, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    called = torch.compile(model) if compiled else model
    options = {"optimizer": optimizer, "accuracy": last_accuracy}

    def run(steps: int = STEPS):
        watcher = watch(model, every=every) if every else None
        return train(
            called, lambda step: task.batch(0, step, BATCH), steps=steps, watch=watcher, **options
        )

    return run


def bare_products() -> Any:
    """Every matrix product of a step, forward and both of the way back, and nothing else."""
    torch: Any = importlib.import_module("torch")
    rows, head = BATCH * LENGTH, WIDTH // HEADS
    shapes = [
        (rows, WIDTH, 3 * WIDTH),
        (rows, WIDTH, WIDTH),
        (rows, WIDTH, MLP),
        (rows, MLP, WIDTH),
    ]
    products = [*(shapes * LAYERS), (rows, WIDTH, 101)]
    flat = [(torch.randn(n, k), torch.randn(k, m), torch.randn(n, m)) for n, k, m in products]
    some = BATCH * HEADS
    scores = [
        (torch.randn(some, n, k), torch.randn(some, k, m), torch.randn(some, n, m))
        for n, k, m in [(LENGTH, head, LENGTH), (LENGTH, LENGTH, head)] * LAYERS
    ]

    def run():
        for _ in range(STEPS):
            for x, w, g in flat + scores:
                _ = x @ w, g @ w.mT, x.mT @ g

    return run


def training() -> list[Row]:
    calls = {
        "plain": plain_script(),
        "eager": our_loop(False),
        "compiled": our_loop(True),
        "products": bare_products(),
    }
    for call in calls.values():
        call()
    seconds = {name: [] for name in calls}
    for _ in range(ROUNDS):  # in turns, so that all see the same machine
        for name, call in calls.items():
            seconds[name].append(timed(call))
    step = {name: 1e3 * min(times) / STEPS for name, times in seconds.items()}
    what = f"a training step, {LAYERS} layers, width {WIDTH}, batch {BATCH}, length {LENGTH}"
    return [
        row
        for name in ("eager", "compiled")
        for row in (
            (
                f"{what}, {name}",
                f"a plain script: {step['plain']:.0f} ms",
                f"{step[name]:.0f} ms",
                f"{step['plain'] / step[name]:.2f}×",
            ),
            (
                f"the same, {name}",
                f"its bare products: {step['products']:.0f} ms",
                f"{step[name]:.0f} ms",
                f"{step[name] / step['products']:.2f} of them",
            ),
        )
    ]


def surroundings() -> list[Row]:
    """Data, watching and records of 200 steps, each timed by itself, against all of it."""
    from attnflow.tasks.induction import Induction
    from attnflow.torch.watcher import Watcher

    task, spent = Induction(same_target=False), {"s": 0.0}

    def counted(function):
        def call(*given, **named):
            begun = time.perf_counter()
            try:
                return function(*given, **named)
            finally:
                spent["s"] += time.perf_counter() - begun

        return call

    run = our_loop(False, every=100)
    run(2)
    look = Watcher.look
    Watcher.look = counted(look)
    try:
        whole = timed(lambda: run(200))
    finally:
        Watcher.look = look
    spent["s"] += timed(lambda: [task.batch(0, step, BATCH) for step in range(200)])
    return [
        (
            "data, watch(every=100) and records of 200 such steps",
            f"all of it: {whole:.1f} s",
            f"{spent['s'] * 1e3:.0f} ms",
            f"{100 * spent['s'] / whole:.1f}% of it",
        )
    ]


def grid_seconds(workers: int) -> float:
    """Eight trainings of 80 steps in so many processes, after they have started."""
    import dataclasses

    from attnflow.papers.polarization._induction import INDUCTION, Trial
    from attnflow.runs import Store, sweep

    trials = [Trial(steps=80, seed=seed) for seed in range(8)]
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder)
        short = [dataclasses.replace(each, steps=1) for each in trials]
        options = {"progress": False, "workers": workers}
        start = timed(lambda: sweep(short, INDUCTION, store, **options))
        return timed(lambda: sweep(trials, INDUCTION, store, **options)) - start


def grid() -> list[Row]:
    seconds = {}
    for workers in (1, 2):
        command = [sys.executable, "-m", "benchmarks.transformer", "grid", str(workers)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        seconds[workers] = float(done.stdout)
    return [
        (
            "eight trainings of 79 such steps, two processes of one thread",
            f"one process of {os.cpu_count()} threads: {seconds[1]:.0f} s",
            f"{seconds[2]:.0f} s",
            f"{seconds[1] / seconds[2]:.2f}×",
        )
    ]


SECTIONS = {"training": training, "surroundings": surroundings, "grid": grid}

if __name__ == "__main__":
    print(grid_seconds(int(sys.argv[2])))
