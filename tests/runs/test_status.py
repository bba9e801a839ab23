import json
import os
import signal
import subprocess
import sys
import time

from attnflow.runs import Store, grid, sweep
from attnflow.runs.status import Announcement, SweepStatus, under_way
from tests.runs.experiments import WALK, Walk


def test_a_sweep_is_under_way_while_its_process_lives(tmp_path):
    assert under_way(tmp_path / "none") == []
    with Announcement(tmp_path, "walk", 10) as announced:
        (found,) = under_way(tmp_path)
        assert (found.experiment, found.total, found.done, found.seconds_left) == (
            ("walk", 10, 0, None)
        )
        announced.written = 0.0
        announced.update(4, 1)
        (found,) = under_way(tmp_path)
        assert (found.done, found.failed) == (4, 1)
        assert found.seconds_left is not None
    assert under_way(tmp_path) == []
    assert list((tmp_path / ".sweeps").iterdir()) == []


def test_the_time_left_goes_by_the_pace_so_far():
    assert SweepStatus("x", 10, 3, 1, begun=100.0, updated=108.0).seconds_left == 12.0


def test_what_a_killed_sweep_left_is_not_under_way(tmp_path):
    with Announcement(tmp_path, "alive", 3):
        for name, content in (("dead", "{}"), ("odd", "[]"), ("none", None)):
            (tmp_path / ".sweeps" / f"{name}.lock").touch()
            if content is not None:
                (tmp_path / ".sweeps" / f"{name}.json").write_text(content)
        (found,) = under_way(tmp_path)
        assert found.experiment == "alive"
        Store(tmp_path).sweep_up()
        assert len(list((tmp_path / ".sweeps").iterdir())) == 2


def test_a_damaged_status_is_passed_over(tmp_path):
    with Announcement(tmp_path, "x", 3) as announced:
        path = announced.folder / f"{announced.name}.json"
        for content in ("", "[]", "null", '{"total": 3}', json.dumps({"experiment": 3})):
            path.write_text(content)
            assert under_way(tmp_path) == []


def test_a_sweep_announces_itself(tmp_path):
    seen = []
    configs = grid(Walk(), seed=range(3))
    sweep(
        configs,
        WALK,
        Store(tmp_path),
        engine="here",
        progress=False,
        each=lambda config, seconds: seen.extend(under_way(tmp_path)),
    )
    assert [(each.experiment, each.total) for each in seen] == [("walk", 3)] * 3
    assert under_way(tmp_path) == []


WRITER = """
import sys, time
from pathlib import Path
from attnflow.runs import Store
with Store(Path(sys.argv[1]))._locked_folder(".new-x-") as path:
    print(path, flush=True)
    time.sleep(600)
"""


def test_drafts_of_living_writers_stay(tmp_path):
    store = Store(tmp_path)
    (tmp_path / ".new-dead-1").mkdir()
    (tmp_path / ".old-dead-1").mkdir()
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    with writer, writer.stdout:
        draft = writer.stdout.readline().strip()
        assert len(store.check().leftovers) == 2
        assert store.sweep_up() == 2
        assert [str(path) for path in tmp_path.iterdir()] == [draft]
        writer.kill()
    assert store.sweep_up() == 1
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_removes_what_killed_ones_left(tmp_path):
    (tmp_path / ".new-dead-1").mkdir()
    sweep([Walk()], WALK, Store(tmp_path), engine="here", progress=False)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != ".sweeps") == [
        Store(tmp_path).name(Walk(), "walk")
    ]


DRIVER = """
import sys
from attnflow.runs import Store, grid, sweep
from tests.runs.experiments import WALK, Walk
if __name__ == "__main__":
    sweep(grid(Walk(seconds=600), seed=range(4)), WALK, Store(sys.argv[1]), workers=2)
"""


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until(condition, seconds: float = 60.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


def test_workers_end_with_a_killed_driver(tmp_path):
    """Though each has ten minutes of work."""
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    driver = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "runs")],
        env=os.environ | {"PYTHONPATH": os.getcwd()},
        stderr=subprocess.DEVNULL,
    )

    def children() -> list[int]:
        with open(f"/proc/{driver.pid}/task/{driver.pid}/children") as file:
            return list(map(int, file.read().split()))

    with driver:
        assert until(lambda: len(children()) >= 3)  # two workers and a resource tracker
        workers = children()
        driver.send_signal(signal.SIGKILL)
    assert until(lambda: not any(map(alive, workers)))
