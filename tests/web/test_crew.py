"""Worker processes: bounded in time and number, and replaced."""

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attnflow.web.crew import FIRST_JOBS, Crew, Overrun
from attnflow.web.line import Busy
from tests.web.jobs import do


def with_crew(story, **options):
    async def main():
        crew = Crew(**({"workers": 1, "waiting": 2, "seconds": 30.0, "do": do} | options))
        crew.start()
        try:
            return await asyncio.wait_for(story(crew), 120)
        finally:
            await crew.stop()

    return asyncio.run(main())


def test_a_job_that_overruns_is_stopped_and_the_next_is_done():
    async def story(crew):
        before = await crew.ask("hello", {})  # the process is there, imports and all
        crew.seconds, begun = 0.3, time.monotonic()
        with pytest.raises(Overrun):
            await crew.ask("sleep", {"seconds": 60})
        assert time.monotonic() - begun < 10
        crew.seconds = 30
        return before, await crew.ask("hello", {})

    before, after = with_crew(story)
    assert before[0] == after[0] == 200
    assert before != after  # another process


def test_a_worker_that_dies_is_replaced():
    async def story(crew):
        with pytest.raises(RuntimeError, match="died"):
            await crew.ask("die", {})
        return await crew.ask("hello", {})

    assert with_crew(story)[0] == 200


def test_the_line_is_bounded(tmp_path):
    async def story(crew):
        jobs = [asyncio.create_task(crew.ask("wait", {"gate": str(tmp_path / "gate")}))]
        await asyncio.sleep(0)  # it is under way
        jobs += [asyncio.create_task(crew.ask("hello", {})) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Busy):
            await crew.ask("too many", {})
        (tmp_path / "gate").touch()
        return await asyncio.gather(*jobs)

    assert [status for status, _ in with_crew(story)] == [200] * 3


def chores_with(story, workers):
    """What was done, in order; the story may add to it."""
    order = []

    async def until_done(crew):
        await story(crew, order)
        while len(order) < 3:
            await asyncio.sleep(0.01)

    hear = lambda job, given, reply: order.append(reply[1].decode())  # noqa: E731
    with_crew(until_done, workers=workers, chores=[("one", {}), ("two", {})], done=hear, idle=0.2)
    return order


def test_whoever_asks_goes_before_the_chores():
    async def story(crew, order):
        order.append((await crew.ask("asked", {}))[1].decode())

    done = chores_with(story, workers=1)
    assert [each.split()[0] for each in done] == ["one", "asked", "two"]


def test_every_worker_does_the_chores():
    async def story(crew, order):
        while len(order) < 4:
            await asyncio.sleep(0.01)

    assert len(set(chores_with(story, workers=2))) == 4  # each says its process


def test_a_worker_that_grew_too_large_is_replaced(monkeypatch):
    async def story(crew):
        return [
            (await crew.ask(job, {}))[1].split()[1] for job in ("hello", "hello", "grow", "hello")
        ]

    monkeypatch.setattr("attnflow.web.crew.MEMORY", 400 << 20)
    first, second, large, after = with_crew(story)
    assert first == second == large != after


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="Linux only")
def test_a_pinned_worker_stays_on_one_core_after_its_first_jobs():
    async def story(crew):
        return [int((await crew.ask("cores", {}))[1].split()[2]) for _ in range(FIRST_JOBS + 1)]

    counts = with_crew(story, pinned=True)
    assert counts == [len(os.sched_getaffinity(0))] * FIRST_JOBS + [1]


def test_a_chore_that_fails_is_let_go():
    async def story(crew):
        return await crew.ask("hello", {})

    assert with_crew(story, chores=[("die", {})])[0] == 200


def begun(path):
    """When a job has begun that says so in a file."""

    async def wait():
        while not path.exists():
            await asyncio.sleep(0.01)
        return int(path.read_text())

    return asyncio.wait_for(wait(), 60)


def lives(pid):
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2][:3]
    except OSError:
        return False


async def gone(*pids):
    while any(map(lives, pids)):
        await asyncio.sleep(0.01)


def test_long_jobs_leave_one_worker_to_short_ones(tmp_path):
    async def story(crew):
        wait = {"gate": str(tmp_path / "gate")}
        long = [
            asyncio.create_task(crew.ask("wait", wait, client=i, expected=60)) for i in range(24)
        ]
        await asyncio.sleep(0)
        short = [await crew.ask("hello", {}, client="light", expected=0.1) for _ in range(3)]
        assert not any(job.done() for job in long)
        (tmp_path / "gate").touch()
        await asyncio.gather(*long)
        return short

    assert len({reply for _, reply in with_crew(story, workers=2, waiting=24)}) == 1


def test_a_job_is_dropped_when_its_client_leaves_before_it_is_begun(tmp_path):
    async def story(crew):
        first = asyncio.create_task(crew.ask("wait", {"gate": str(tmp_path / "gate")}))
        mark = tmp_path / "begun"
        left = asyncio.create_task(crew.ask("wait", {"gate": "/nowhere", "mark": str(mark)}))
        await asyncio.sleep(0)
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)
        (tmp_path / "gate").touch()
        await first
        await crew.ask("hello", {})
        return mark.exists()

    assert not with_crew(story)


def test_a_job_that_runs_is_stopped_when_its_client_leaves(tmp_path):
    async def story(crew):
        mark, child = tmp_path / "begun", tmp_path / "child"
        given = {"gate": "/nowhere", "mark": str(mark), "child": str(child)}
        left = asyncio.create_task(crew.ask("wait", given))
        pids = await begun(mark), await begun(child)
        left.cancel()
        await gone(*pids)
        return await crew.ask("hello", {})

    assert with_crew(story, grace=0.1)[0] == 200


def test_a_job_that_is_nearly_done_is_not_stopped(tmp_path):
    async def story(crew):
        mark = tmp_path / "begun"
        given = {"gate": str(tmp_path / "gate"), "mark": str(mark)}
        left = asyncio.create_task(crew.ask("wait", given))
        before = await begun(mark)
        left.cancel()
        (tmp_path / "gate").touch()
        _, reply = await crew.ask("hello", {})
        return before, int(reply.split()[1])

    before, after = with_crew(story, grace=100)
    assert before == after


def test_what_was_wrongly_expected_to_be_short_makes_room_and_begins_anew(tmp_path):
    async def story(crew):
        marks = [tmp_path / "one", tmp_path / "two"]
        given = [{"gate": str(tmp_path / "gate"), "mark": str(mark)} for mark in marks]
        slow = [asyncio.create_task(crew.ask("wait", each, client=each["mark"])) for each in given]
        for mark in marks:
            await begun(mark)
        status, _ = await crew.ask("hello", {}, client="light")
        assert not any(job.done() for job in slow)
        (tmp_path / "gate").touch()
        return status, [status for status, _ in await asyncio.gather(*slow)]

    assert with_crew(story, workers=2, displaced=0.2) == (200, [200, 200])


def test_workers_end_when_the_server_is_killed(tmp_path):
    """Also while they compute, and with what they have started."""
    mark, child = tmp_path / "begun", tmp_path / "child"
    given = {"gate": "/nowhere", "mark": str(mark), "child": str(child)}
    server = subprocess.Popen([sys.executable, "-c", KILLED, json.dumps(given)])

    async def story():
        pids = await begun(mark), await begun(child)
        server.kill()
        await asyncio.wait_for(gone(*pids), 60)

    try:
        asyncio.run(story())
    finally:
        server.kill()
        server.wait()


KILLED = """
import asyncio, json, sys
from attnflow.web.crew import Crew
from tests.web.jobs import do

async def main():
    crew = Crew(1, 2, 60.0, do=do)
    crew.start()
    await crew.ask("wait", json.loads(sys.argv[1]))

if __name__ == "__main__":
    asyncio.run(main())
"""
