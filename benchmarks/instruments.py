"""Instruments for real models: what watching costs in time and memory, statistics of long
sequences, diagnoses.

Memory is told by a process of its own:

    python -m benchmarks.instruments plain|watch|maps|statistics|fused|dense
"""

import importlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.head import peak
from benchmarks.timing import best, timed

Row = tuple[str, str, str, str]
BATCH, LENGTH = 8, 512


def ten_million():
    """A Llama of 10 million parameters in training: step(), and the model."""
    torch: Any = importlib.import_module("torch")
    hf: Any = importlib.import_module("transformers")
    torch.manual_seed(0)
    config = hf.LlamaConfig(
        hidden_size=320,
        intermediate_size=864,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=8,
        vocab_size=512,
        max_position_embeddings=LENGTH,
    )
    model = hf.LlamaForCausalLM(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids = torch.randint(0, 512, (BATCH, LENGTH))

    def step(**options):
        model(input_ids=ids, labels=ids, use_cache=False, **options).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, model


def plain() -> None:
    step, _ = ten_million()
    for _ in range(3):
        step()


def watched() -> None:
    from attnflow.torch import watch

    step, model = ten_million()
    step()
    with watch(model, every=1):
        step()
        step()


def maps() -> None:
    step, model = ten_million()
    model.set_attn_implementation("eager")
    for _ in range(3):
        step(output_attentions=True)


def long_queries() -> Any:
    torch: Any = importlib.import_module("torch")
    return torch.randn(1, 8, 4096, 64, generator=torch.Generator().manual_seed(0))


def statistics() -> None:
    from attnflow.torch import Attention, attention_statistics

    queries = long_queries()
    attention_statistics(queries, queries, Attention(causal=True))


def fused() -> None:
    from attnflow.torch import fused_statistics

    queries = long_queries()
    fused_statistics(queries, queries, causal=True)


def dense() -> Any:
    """Entropy, Σp² and greatest weight from the whole map, as one would write it."""
    torch: Any = importlib.import_module("torch")
    queries = long_queries()
    hidden = torch.ones(4096, 4096, dtype=torch.bool).triu(1)
    scores = (queries @ queries.transpose(-1, -2) / 8).masked_fill(hidden, -torch.inf)
    weights = scores.softmax(-1)
    return torch.special.entr(weights).sum(-1), weights.square().sum(-1), weights.amax(-1)


JOBS = {
    "plain": plain,
    "watch": watched,
    "maps": maps,
    "statistics": statistics,
    "fused": fused,
    "dense": dense,
}


def apart(job: str) -> tuple[float, float]:
    """Seconds and peak megabytes of a job in a process of its own, imports left out."""
    command = [sys.executable, "-m", "benchmarks.instruments", job]
    told = subprocess.run(
        command, cwd=Path(__file__).parent.parent, capture_output=True, text=True, check=True
    )
    seconds, memory = told.stdout.split()[-2:]
    return float(seconds), float(memory)


def watching() -> list[Row]:
    from attnflow.torch import watch

    step, model = ten_million()
    _, seconds = best(step, 3)
    with watch(model, every=1) as watcher:
        step()
        inputs = {"input_ids": _tokens(), "labels": _tokens()}
        look = min(timed(lambda: watcher.look(((), inputs))) for _ in range(3))
    parameters = sum(p.numel() for p in model.parameters()) / 1e6
    memory = {job: apart(job)[1] for job in ("plain", "watch", "maps")}
    extra, all_maps = memory["watch"] - memory["plain"], memory["maps"] - memory["plain"]
    name = f"{parameters:.1f}M parameters, T = {LENGTH}, batch {BATCH}"
    return [
        (
            f"watch(every=100) on a training step, {name}",
            f"the step alone: {seconds:.2f} s",
            f"{look * 1e3:.0f} ms a look",
            f"{look / (100 * seconds):.2%} more",
        ),
        (
            f"extra memory of a watched step, {name}",
            f"output_attentions=True: {all_maps:.0f} MB",
            f"{max(extra, 0):.0f} MB",
            f"{max(extra, 0) / all_maps:.1%} of it",
        ),
    ]


def _tokens() -> Any:
    torch: Any = importlib.import_module("torch")
    return torch.randint(0, 512, (BATCH, LENGTH))


def long_statistics() -> list[Row]:
    theirs = apart("dense")
    rows = []
    for job, what in (("statistics", "twelve"), ("fused", "entropy and Σp²")):
        ours = apart(job)
        rows.append(
            (
                f"statistics of causal attention at T = 4,096, 8 heads: {what}",
                f"three, from the dense map: {theirs[0]:.2f} s, {theirs[1]:.0f} MB",
                f"{ours[0]:.2f} s, {ours[1]:.0f} MB",
                f"{theirs[0] / ours[0]:.1f}× the speed, {theirs[1] / ours[1]:.1f}× less memory",
            )
        )
    return rows


def diagnoses() -> list[Row]:
    data = os.environ.get("ATTNFLOW_DATA")
    sources = [("stories260K", f"{data}/stories260K", "budget 15 s")] if data else []
    if os.environ.get("ATTNFLOW_SMOLLM2"):
        sources.append(("SmolLM2-135M", os.environ["ATTNFLOW_SMOLLM2"], "budget a few minutes"))
    rows = []
    with tempfile.TemporaryDirectory() as place:
        for name, source, budget in sources:
            command = [sys.executable, "-m", "attnflow", "diagnose", source]
            begun = time.perf_counter()
            subprocess.run(
                [*command, "--out", f"{place}/page.html"], capture_output=True, check=True
            )
            seconds = time.perf_counter() - begun
            row = f"attnflow diagnose {name}, 8 × 512 tokens, from start to page"
            rows.append((row, budget, f"{seconds:.1f} s", ""))
    return rows


def sinks() -> list[Row]:
    """Softmax-1 from the fused pass against the dense map, forward and backward."""
    torch: Any = importlib.import_module("torch")
    from attnflow.torch import attend

    q, k, v = (torch.randn(1, 8, 2048, 64, requires_grad=True) for _ in range(3))
    hidden = torch.ones(2048, 2048, dtype=torch.bool).triu(1)

    def ours():
        attend("softmax_1", q, k, v, causal=True).sum().backward()

    def naive():
        scores = (q @ k.transpose(-1, -2) / 8).masked_fill(hidden, -torch.inf)
        top = scores.amax(-1, keepdim=True).clamp_min(0).detach()
        weights = (scores - top).exp()
        (weights / (torch.exp(-top) + weights.sum(-1, keepdim=True)) @ v).sum().backward()

    (_, theirs), (_, seconds) = best(naive, 3), best(ours, 3)
    return [
        (
            "softmax-1 at T = 2,048, 8 heads, forward and backward",
            f"the dense map: {theirs:.2f} s",
            f"{seconds:.2f} s",
            f"{theirs / seconds:.1f}×",
        )
    ]


SECTIONS = {
    "watch": watching,
    "statistics": long_statistics,
    "diagnose": diagnoses,
    "softmax_1": sinks,
}

if __name__ == "__main__":
    importlib.import_module("attnflow.torch")
    importlib.import_module("transformers")
    job = JOBS[sys.argv[1]]
    before = peak()
    seconds = timed(job)
    if sys.argv[1] in ("statistics", "fused", "dense"):
        seconds = min(timed(job) for _ in range(3))
    print(seconds, peak() - before)
