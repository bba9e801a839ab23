"""Attacks on the run store and on sweeps: kills, full disks, damage, lost nodes, many runs.

    python -m benchmarks.reliability_runs            all (about ten minutes)
    python -m benchmarks.reliability_runs damage     some of them

The cases are those of the test suite, counted: a case that raises is a failure.
"""

import random
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from attnflow.runs import Store, grid, open, plan, sweep
from attnflow.runs.export import export
from attnflow.runs.filters import listed
from attnflow.runs.packing import FILES
from benchmarks.reliability import Attack
from tests.runs import test_cluster, test_damage, test_full_disk, test_sweep
from tests.runs.experiments import WALK, Walk, walk

MANY = 20_000


def counted(what: str, cases: Iterator[Callable[[], str | None]]) -> Attack:
    """Each case raises, or says something for the note."""
    tried = failures = 0
    notes = []
    for case in cases:
        tried += 1
        try:
            notes.append(case())
        except Exception:
            failures += 1
            traceback.print_exc()
    return Attack(what, tried, failures, "; ".join(filter(None, notes)))


def kills(times: int = 50, count: int = 2000) -> Attack:
    with tempfile.TemporaryDirectory() as name:
        folder, rng = Path(name), random.Random(1)

        def one(last: bool) -> str | None:
            test_sweep.killed(folder, 1, count, rng)
            if last:
                test_sweep.survives(folder, count)
            return None

        return counted(
            f"kill -9 of the driver or of a worker in a sweep of {count:,} runs",
            (lambda i=i: one(i == times - 1) for i in range(times)),
        )


def damage() -> Attack:
    def one(file: str, how: str) -> None:
        with tempfile.TemporaryDirectory() as name:
            store = Store(Path(name) / "runs")
            shutil.copytree(model, store.root)
            first, second = (store.find(config, "walk") for config in test_damage.CONFIGS[:2])
            assert first is not None
            assert second is not None
            test_damage.DAMAGE[how](first.path / file, second.path / file)
            readers = (open, lambda store: export(store, [], Path(name) / "all.csv"))
            for read in (lambda store: listed(store, verify=True), *readers):
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    read(store)
                assert first.name in str(caught[-1].message)
            report = sweep(test_damage.CONFIGS, WALK, store, engine="here", progress=False)
            assert (report.done, report.there) == (1, 2)
            assert store.check().damaged == {}

    with tempfile.TemporaryDirectory() as name:
        model = Path(name) / "model"
        for config in test_damage.CONFIGS:
            Store(model).add(config, walk(config), experiment="walk", log=f"{config}")
        return counted(
            f"damage of every file of a run, {len(test_damage.DAMAGE)} kinds",
            (
                lambda file=file, how=how: one(file, how)
                for file in (*FILES, "DONE")
                for how in test_damage.DAMAGE
            ),
        )


def disks() -> Attack:
    def one(small: str, engine: str) -> None:
        with (
            tempfile.TemporaryDirectory() as name,
            test_full_disk.small_disk(Path(name) / "disk") as of,
        ):
            test_full_disk.test_a_full_disk_stops_the_sweep_and_loses_nothing(of, engine, small)

    return counted(
        "a disk without room or without inodes: the sweep stops, and goes on when there is room",
        (
            lambda small=small, engine=engine: one(small, engine)
            for small in ("size=160k", "size=200k", *(f"nr_inodes={n},size=10m" for n in (45, 60)))
            for engine in ("here", "local")
        ),
    )


def two_sweeps(times: int = 10) -> Attack:
    def one() -> None:
        with tempfile.TemporaryDirectory() as name:
            pair = [test_sweep.driver(Path(name), 60) for _ in range(2)]
            for process in pair:
                process.communicate(timeout=240)
                assert process.returncode == 0
            store = Store(Path(name) / "runs")
            test_sweep.same(store, grid(Walk(seconds=0.01), seed=range(60)))

    return counted("two sweeps of one grid at once", (one for _ in range(times)))


def ray(times: int = 2) -> Attack:
    """Each case in a cluster of its own: a head and two nodes."""
    import pytest

    lost = "test_a_run_of_a_lost_node_continues_from_its_checkpoint"
    killed = "test_the_sweep_of_a_killed_driver_goes_on"
    results = "test_a_lost_node_loses_no_result"

    def one(test: str) -> None:
        assert pytest.main(["-q", f"{test_cluster.__file__}::{test}"]) == 0

    return counted(
        "Ray: a node killed in a sweep or in a run, the driver killed and started again",
        (lambda test=test: one(test) for test in (lost, killed, results) for _ in range(times)),
    )


def many(count: int = MANY) -> Attack:
    def one() -> str:
        with tempfile.TemporaryDirectory() as name:
            store, configs = Store(Path(name) / "runs"), grid(Walk(), seed=range(count))
            begun = time.perf_counter()
            report = sweep(configs, WALK, store, workers=2, progress=False)
            each = (time.perf_counter() - begun) / count
            assert (report.done, report.failed) == (count, {})
            begun = time.perf_counter()
            assert len(listed(store)) == count
            listing = time.perf_counter() - begun
            begun = time.perf_counter()
            found = store.check()
            checking = time.perf_counter() - begun
            assert (len(found.whole), found.damaged) == (count, {})
            assert plan(configs, WALK, store).left == 0
        return f"{each * 1e3:.1f} ms a run, listed in {listing:.1f} s, checked in {checking:.1f} s"

    return counted(f"a sweep of {count:,} runs on two workers", iter([one]))


def many_on_ray(count: int = 10_000) -> Attack:
    def one() -> str:
        with tempfile.TemporaryDirectory() as name:
            store, configs = Store(Path(name) / "runs"), grid(Walk(), seed=range(count))
            warm = grid(Walk(length=4), seed=range(20))
            begun = time.perf_counter()
            sweep(warm, WALK, store, engine="ray", workers=2, progress=False)
            start = time.perf_counter() - begun
            begun = time.perf_counter()
            report = sweep(configs, WALK, store, engine="ray", workers=2, progress=False)
            each = (time.perf_counter() - begun - start) / count
            assert (report.done, report.failed) == (count, {})
        return f"{each * 1e3:.1f} ms a run beside a start of {start:.0f} s"

    return counted(f"a sweep of {count:,} tiny runs on Ray, two cores", iter([one]))


ATTACKS = {
    "kills": kills,
    "disks": disks,
    "damage": damage,
    "two_sweeps": two_sweeps,
    "ray": ray,
    "many": many,
    "many_on_ray": many_on_ray,
}


def attacks() -> list[Attack]:
    return [attack() for attack in ATTACKS.values()]


if __name__ == "__main__":
    for each in sys.argv[1:] or ATTACKS:
        print(ATTACKS[each](), flush=True)
