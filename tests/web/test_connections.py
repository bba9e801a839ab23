"""The server on a real socket: who is let wait, who is heard, and who is cut off."""

import asyncio
import contextlib
import http.client
import json
import socket
import threading
import time

import pytest

from attnflow.cli.serve import listening
from attnflow.web.clients import HEADER
from attnflow.web.connections import server
from attnflow.web.guard import Limits
from attnflow.web.server import create_app
from tests.web.conftest import Inline

LONG = 60  # seconds, where waiting so long means that it never comes


@contextlib.contextmanager
def served(store, crew, **limits):
    """Its port."""
    bounds = Limits(**limits)
    app = create_app(store, crew=crew, limits=bounds)
    with listening("127.0.0.1", 0) as place:
        running = server(app, bounds)
        thread = threading.Thread(target=running.run, kwargs={"sockets": [place]})
        thread.start()
        try:
            yield place.getsockname()[1]
        finally:
            running.should_exit = True
            thread.join()


def opened(port, text=b""):
    found = socket.create_connection(("127.0.0.1", port), LONG)
    found.sendall(text)
    return found


def get(port, path="/"):
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=LONG)) as asking:
        asking.request("GET", path)
        reply = asking.getresponse()
        return reply.status, reply.read()


def is_closed(connection):
    """Waits for the end."""
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionError:
        pass
    return True


def is_cut_off(connection, text):
    """While it goes on sending."""
    until = time.monotonic() + LONG
    try:
        while time.monotonic() < until:
            connection.sendall(text)
            time.sleep(0.05)
    except ConnectionError:
        return True
    return False


HALF = [
    b"",
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ",
    b"POST /api/ledger/routing/nothing HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n",  # and no body
    b"POST /nowhere HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 900\r\n\r\nabc",
]


def test_half_open_connections_shut_nobody_out_and_are_closed(tmp_path):
    crew = Inline()
    with served(tmp_path, crew, request_seconds=3.0) as port, contextlib.ExitStack() as stack:
        half = [stack.enter_context(opened(port, HALF[i % len(HALF)])) for i in range(300)]
        assert get(port)[0] == 200
        assert all(map(is_closed, half))
        assert get(port)[0] == 200
    assert crew.asked == []  # a claim is not begun before it is asked for


def test_a_request_that_drips_is_cut_off(tmp_path):
    begin = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    with served(tmp_path, Inline(), request_seconds=3.0) as port, opened(port, begin) as slow:
        assert is_cut_off(slow, b"x: y\r\n")


def test_beyond_the_limit_the_oldest_silent_connection_yields(tmp_path):
    limits = {"request_seconds": 600.0, "connections": 10}
    with served(tmp_path, Inline(), **limits) as port, contextlib.ExitStack() as stack:
        silent = [stack.enter_context(opened(port)) for _ in range(30)]
        assert get(port)[0] == 200
        assert all(map(is_closed, silent[:20]))


def test_who_does_not_read_is_cut_off(tmp_path):
    many = b"GET /plotly.js HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 8  # more than fits anywhere
    with served(tmp_path, Inline(), reader_seconds=0.5) as port, opened(port, many) as deaf:
        assert is_cut_off(deaf, b"\r\n")


def test_a_connection_that_goes_on_asking_stays_open(tmp_path):
    with served(tmp_path, Inline(), request_seconds=3.0) as port:
        connection, seen = http.client.HTTPConnection("127.0.0.1", port, timeout=LONG), set()
        until = time.monotonic() + 4.0
        while time.monotonic() < until:
            connection.request("GET", "/")
            connection.getresponse().read()
            seen.add(connection.sock.getsockname())
        connection.close()
    assert len(seen) == 1


CHUNKED = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
POST = b"POST /nowhere HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 2\r\n\r\n"
NONSENSE = b"\x00\xff nonsense\r\n\r\n"


@pytest.mark.parametrize(
    "parts", [[NONSENSE], [CHUNKED + NONSENSE], [CHUNKED, NONSENSE], [POST, b"{}" + NONSENSE]]
)
def test_nonsense_is_no_error_of_ours(tmp_path, capfd, parts):
    """At once, or after a reply is under way."""
    with served(tmp_path, Inline()) as port:
        with opened(port, parts[0]) as rude:
            for part in parts[1:]:
                rude.recv(1)
                rude.sendall(part)
            assert is_closed(rude)
        assert get(port)[0] == 200
    assert "Traceback" not in capfd.readouterr().err


class Patient(Inline):
    """Does nothing until it is let; knows what was dropped."""

    def __init__(self):
        super().__init__()
        self.begun, self.dropped = threading.Semaphore(0), threading.Semaphore(0)
        self.how = []

    async def ask(self, job, given, **how):
        self.how.append(how)
        self.begun.release()
        try:
            await asyncio.sleep(LONG)
        except asyncio.CancelledError:
            self.dropped.release()
            raise
        return 200, b"{}"


REQUESTS = [
    b"GET /api/view/two_tokens?c0=3 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"GET /api/runs HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"POST /api/ledger/routing/nothing HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
]


@pytest.mark.parametrize("text", REQUESTS)
def test_work_of_a_client_that_leaves_is_cancelled(tmp_path, text):
    crew = Patient()
    with served(tmp_path, crew) as port:
        with opened(port, text):
            assert crew.begun.acquire(timeout=LONG)
        assert crew.dropped.acquire(timeout=LONG / 2)


def test_a_page_is_one_client_and_so_is_a_connection(tmp_path):
    crew = Patient()
    name = f"{HEADER}: page-1\r\n\r\n".encode()
    texts = [REQUESTS[0][:-2] + name] * 2 + [REQUESTS[0]] * 2
    with served(tmp_path, crew) as port, contextlib.ExitStack() as stack:
        for text in texts:
            stack.enter_context(opened(port, text))
            assert crew.begun.acquire(timeout=LONG)
    one, same, other, another = (how["client"] for how in crew.how)
    assert one == same
    assert len({one, other, another}) == 3


def status(connection):
    with connection.makefile("rb") as lines:
        return int(lines.readline().split()[1])


def test_the_limit_of_event_streams_holds_when_sixty_connect_at_once(tmp_path):
    ask = b"GET /api/progress HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with served(tmp_path, Inline(), listeners=16) as port:
        for _ in range(2):  # and their places are free afterwards
            with contextlib.ExitStack() as stack:
                streams = [stack.enter_context(opened(port)) for _ in range(60)]
                for each in streams:
                    each.sendall(ask)
                found = [status(each) for each in streams]
                assert (found.count(200), found.count(429)) == (16, 44)
            until = time.monotonic() + LONG
            while get_stream(port) == 429:
                assert time.monotonic() < until
                time.sleep(0.05)
        with opened(port, ask.replace(b"GET", b"HEAD")) as head:
            assert status(head) == 200


def get_stream(port):
    with opened(port, b"GET /api/progress HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n") as stream:
        return status(stream)


def test_refusals_are_json(tmp_path):
    with served(tmp_path, Inline(), requests=0) as port:
        found, body = get(port)
    assert (found, "at once" in json.loads(body)["error"]) == (503, True)
