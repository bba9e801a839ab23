"""The run store and the local engine: what they cost beside the work itself."""

import shutil
import tempfile
import time

from attnflow.runs import Experiment, Store, canonical, grid, sweep
from attnflow.runs.query import listed
from attnflow.runs.run import write_done
from benchmarks.timing import best, timed
from tests.runs.experiments import WALK, Walk, walk

Row = tuple[str, str, str, str]
SECONDS = 3.0


def busy(config: Walk):
    """Computes, on one core, for about `seconds` of an idle machine."""
    end = time.thread_time() + config.seconds
    while time.thread_time() < end:
        sum(range(1000))
    return walk(Walk(seed=config.seed))


BUSY = Experiment("busy", busy)


def swept(configs, experiment, **options) -> float:
    with tempfile.TemporaryDirectory() as folder:
        return timed(lambda: sweep(configs, experiment, Store(folder), progress=False, **options))


def storing(disk: str | None) -> float:
    """Seconds a run, into a folder on this disk."""
    data, numbers = walk(Walk()), iter(range(10**6))
    with tempfile.TemporaryDirectory(dir=disk) as folder:
        store = Store(folder)
        store.add(Walk(seed=next(numbers)), data)
        return timed(lambda: [store.add(Walk(seed=next(numbers)), data) for _ in range(200)]) / 200


def overhead() -> list[Row]:
    disk, memory = storing(None), storing("/dev/shm")
    few, many = (swept(grid(Walk(), seed=range(n)), WALK, workers=2) for n in (20, 420))
    engine = (many - few) / 400
    rows = [
        ("storing a small run, four syncs", "budget 5 ms", f"{disk * 1e3:.1f} ms", ""),
        ("the same on a disk in memory", "budget 5 ms", f"{memory * 1e3:.1f} ms", ""),
        (
            "a small run through two local workers (walk, store, report)",
            "budget 5 ms",
            f"{engine * 1e3:.1f} ms",
            "",
        ),
    ]
    one, two = (steady(workers) for workers in (1, 2))
    spent = one / (8 * SECONDS) - 1
    rows += [
        (
            f"8 runs of {SECONDS:g} s on one worker, once it has started",
            f"{8 * SECONDS:g} s of work",
            f"{one:.2f} s",
            f"{spent:.1%} more",
        ),
        (
            "the same on two workers",
            f"one worker: {one:.2f} s",
            f"{two:.2f} s",
            f"{one / two:.2f}×",
        ),
    ]
    return rows


def steady(workers: int) -> float:
    """Of 8 runs: twelve without the time of four, with which goes that of starting."""
    few, many = (
        swept(grid(Walk(seconds=SECONDS), seed=range(n)), BUSY, workers=workers) for n in (4, 12)
    )
    return many - few


def listing() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        store, count = Store(folder), 10_000
        model = store.add(Walk(), walk(Walk()), experiment="walk")
        for seed in range(1, count):
            path = store.root / store.name(Walk(seed=seed), "walk")
            shutil.copytree(model.path, path)
            (path / "config.json").write_text(canonical(Walk(seed=seed), "walk") + "\n")
            write_done(path, path.name, {})
        _, seconds = best(lambda: listed(store, ["seed<100", "rate=0.1"]), 3)
        assert len(listed(store, ["seed<100", "rate=0.1"])) == 100
    return [
        (
            "list and filter 10,000 runs (checksums of configs, sizes of all files)",
            "budget 1 s",
            f"{seconds:.2f} s",
            "",
        )
    ]


SECTIONS = {"runs": overhead, "listing": listing}
