"""Who asks, and whether they still listen."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import Request

HEADER = "x-attnflow-page"  # a page names itself, as it may have several connections
T = TypeVar("T")


class Gone(Exception):
    """Nobody is there any more to hear the reply."""


def client_of(request: Request) -> tuple[Any, ...]:
    """The page, or the connection of a program that does not name itself."""
    host, port = request.client or ("", 0)
    name = request.headers.get(HEADER, "")
    return (host, name) if 0 < len(name) <= 40 else (host, port)


async def attended(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """What `work` gives; it begins when the request is complete and is cancelled when its client
    leaves."""
    more = True
    task = None
    try:
        while more:
            message = await request.receive()
            if message["type"] == "http.disconnect":
                raise Gone
            more = message.get("more_body", False)
        task = asyncio.ensure_future(work)
        leaving = asyncio.ensure_future(_left(request))
        await asyncio.wait({task, leaving}, return_when=asyncio.FIRST_COMPLETED)
        leaving.cancel()
        if not task.done():
            raise Gone
        return await task
    finally:
        if task is None:
            work.close()
        elif not task.done():
            task.cancel()


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
