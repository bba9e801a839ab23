"""Connections that ask for nothing are closed, so that they shut nobody out.

uvicorn waits forever for a request that has begun, and for a reader that does not read.
"""

import asyncio
from typing import Any, ClassVar

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from attnflow.web.guard import Limits

GRACE = 1  # seconds that replies under way have when the server stops


def server(app: Any, limits: Limits) -> uvicorn.Server:
    """Of an app by `create_app`; how many requests there may be at once, the app itself says."""

    class Bounded(Connection):
        bounds = limits
        silent: ClassVar = {}

    config = uvicorn.Config(
        app,
        http=Bounded,
        ws="none",
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=GRACE,
        server_header=False,
    )
    return uvicorn.Server(config)


class Connection(H11Protocol):
    """A request must be complete `request_seconds` after it or the connection has begun, and a
    reader that has let a reply wait so long that it fills the buffer has `reader_seconds`."""

    bounds: Limits
    silent: "dict[Connection, None]"  # those we have no whole request of, the oldest first

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.patience: asyncio.TimerHandle | None = None
        self.reader: asyncio.TimerHandle | None = None
        super().connection_made(transport)
        self._expect()
        if len(self.connections) > self.bounds.connections:
            oldest = next(iter(self.silent))  # we are one of them
            oldest._expect_no_more()
            oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_no_more()
        self.resume_writing()
        super().connection_lost(exc)

    def _expect(self) -> None:
        if self.patience is None:
            self.silent[self] = None
            seconds = self.bounds.request_seconds
            self.patience = self.loop.call_later(seconds, self.transport.abort)

    def _expect_no_more(self) -> None:
        self.silent.pop(self, None)
        if self.patience is not None:
            self.patience.cancel()
            self.patience = None

    def handle_events(self) -> None:
        super().handle_events()
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self._expect()
        else:
            self._expect_no_more()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._close_in_the_end()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._close_in_the_end()

    def _close_in_the_end(self) -> None:
        """A connection that is closing waits for what is not read yet, but not forever."""
        if self.transport.is_closing() and self.transport.get_write_buffer_size():
            self._hurry()

    def send_400_response(self, msg: str) -> None:
        """Nonsense ends a request whose body it was meant to be, too."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        try:
            super().send_400_response(msg)
        except h11.LocalProtocolError:  # a reply is under way
            self.transport.abort()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._hurry()

    def _hurry(self) -> None:
        if self.reader is None:
            self.reader = self.loop.call_later(self.bounds.reader_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        if self.reader is not None:
            self.reader.cancel()
            self.reader = None
        super().resume_writing()
