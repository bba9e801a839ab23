"""Worker processes: bounded in time and number, and replaced."""

import asyncio
import os
import time

import pytest

from attnflow.web.crew import FIRST_JOBS, Busy, Crew, Overrun
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
        before = await crew.ask("hello")  # the process is there, imports and all
        crew.seconds, begun = 0.3, time.monotonic()
        with pytest.raises(Overrun):
            await crew.ask("sleep", seconds=60)
        assert time.monotonic() - begun < 10
        crew.seconds = 30
        return before, await crew.ask("hello")

    before, after = with_crew(story)
    assert before[0] == after[0] == 200
    assert before != after  # another process


def test_a_worker_that_dies_is_replaced():
    async def story(crew):
        with pytest.raises(RuntimeError, match="died"):
            await crew.ask("die")
        return await crew.ask("hello")

    assert with_crew(story)[0] == 200


def test_the_line_is_bounded():
    async def story(crew):
        jobs = [asyncio.create_task(crew.ask("sleep", seconds=0.5))]
        await asyncio.sleep(0.1)  # it is under way
        jobs += [asyncio.create_task(crew.ask("hello")) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Busy):
            await crew.ask("too many")
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
        order.append((await crew.ask("asked"))[1].decode())

    done = chores_with(story, workers=1)
    assert [each.split()[0] for each in done] == ["one", "asked", "two"]


def test_every_worker_does_the_chores():
    async def story(crew, order):
        while len(order) < 4:
            await asyncio.sleep(0.01)

    assert len(set(chores_with(story, workers=2))) == 4  # each says its process


def test_a_worker_that_grew_too_large_is_replaced(monkeypatch):
    async def story(crew):
        return [(await crew.ask(job))[1].split()[1] for job in ("hello", "hello", "grow", "hello")]

    monkeypatch.setattr("attnflow.web.crew.MEMORY", 400 << 20)
    first, second, large, after = with_crew(story)
    assert first == second == large != after


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="Linux only")
def test_a_pinned_worker_stays_on_one_core_after_its_first_jobs():
    async def story(crew):
        return [int((await crew.ask("cores"))[1].split()[2]) for _ in range(FIRST_JOBS + 1)]

    counts = with_crew(story, pinned=True)
    assert counts == [len(os.sched_getaffinity(0))] * FIRST_JOBS + [1]


def test_a_chore_that_fails_is_let_go():
    async def story(crew):
        return await crew.ask("hello")

    assert with_crew(story, chores=[("die", {})])[0] == 200


def test_one_slow_job_does_not_hold_up_the_others():
    async def story(crew):
        await asyncio.gather(crew.ask("sleep", seconds=0.5), crew.ask("sleep", seconds=0.5))
        slow = asyncio.create_task(crew.ask("sleep", seconds=60))
        await asyncio.sleep(0.05)
        begun = time.monotonic()
        await crew.ask("hello")
        slow.cancel()
        return time.monotonic() - begun

    assert with_crew(story, workers=2) < 5
