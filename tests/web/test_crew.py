"""Worker processes: bounded in time and number, and replaced."""

import asyncio
import time

import pytest

from attnflow.web.crew import Busy, Crew, Overrun
from tests.web.jobs import do


def with_crew(story, **options):
    async def main():
        crew = Crew(**({"workers": 1, "waiting": 2, "seconds": 30.0, "do": do} | options))
        crew.start()
        try:
            return await story(crew)
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


def test_the_line_is_bounded_and_ranked():
    async def story(crew):
        done = []

        async def ask(name, rank):
            await crew.ask(name, rank=rank)
            done.append(name)

        first = asyncio.create_task(crew.ask("sleep", seconds=0.2))
        await asyncio.sleep(0.05)
        tasks = [asyncio.create_task(ask("later", 5)), asyncio.create_task(ask("now", 0))]
        await asyncio.sleep(0)
        with pytest.raises(Busy):
            await crew.ask("too many")
        await asyncio.gather(first, *tasks)
        return done

    assert with_crew(story) == ["now", "later"]


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
