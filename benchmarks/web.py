"""The explorer: how soon it is there, how fast it redraws, and whether it keeps its memory."""

import concurrent.futures
import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

Row = tuple[str, str, str, str]
DRAGGED = {  # a field of each view, and its ends
    "two_tokens": ("c0", 2, 12),
    "polarization": ("spread", 0.2, 2),
    "conditioning": ("step", 0.05, 0.5),
    "specialization": ("eta", 0.3, 1),
    "routing": ("scale", 0.3, 2),
}
CLIENTS, DRAGS, REQUESTS = 4, 150, 10_000


@contextlib.contextmanager
def server(cache: str) -> Iterator[tuple[int, int, float]]:
    """Port and process number of a fresh server, and when it was started. It finds what earlier
    ones left in `cache`."""
    command = [sys.executable, "-m", "attnflow", "serve", "--port", "0", "--store", cache]
    environment = os.environ | {"XDG_CACHE_HOME": cache}
    begun = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True, env=environment
    )
    try:
        assert process.stdout is not None
        found = re.search(r":(\d+)/", process.stdout.readline())
        assert found is not None
        yield int(found.group(1)), process.pid, begun
    finally:
        os.kill(process.pid, signal.SIGINT)
        process.wait(30)


class Client:
    """One connection that stays open, as a browser's does."""

    def __init__(self, port: int):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)

    def get(self, path: str) -> bytes:
        self.connection.request("GET", path)
        reply = self.connection.getresponse()
        body = reply.read()
        if reply.status != 200:
            raise RuntimeError(f"{path}: {reply.status} {body[:200]!r}")
        return body


def first_page(cache: str, which: str) -> list[Row]:
    with server(cache) as (port, _, begun):
        client = Client(port)
        for path in ("/", "/static/app.js", "/static/view.js", "/plotly.js"):
            client.get(path)
        page = time.perf_counter() - begun
        client.get("/api/views")
        forms = time.perf_counter() - begun
        client.get("/api/view/two_tokens")
        curve = time.perf_counter() - begun
    return [
        (f"explorer, {which}: the page", "budget 1.5 s", f"{page:.2f} s", ""),
        (
            f"explorer, {which}: its form, and its first curve",
            "",
            f"{forms:.2f}, {curve:.2f} s",
            "",
        ),
    ]


def question(view: str, number: int) -> str:
    """Never the same value twice, so that no reply is a kept one."""
    field, low, high = DRAGGED[view]
    value = round(low + (high - low) * (number * 0.6180339887 % 1), 9)
    return f"/api/view/{view}?{field}={value}"


def drag(port: int, view: str, first: int, count: int) -> list[float]:
    client, seconds = Client(port), []
    for number in range(first, first + count):
        begun = time.perf_counter()
        client.get(question(view, number))
        seconds.append(time.perf_counter() - begun)
    return seconds


def warmed(port: int) -> None:
    """Both workers have compiled every view."""
    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        for view in DRAGGED:
            for round_ in range(3):
                jobs = [pool.submit(drag, port, view, -9 * k - round_, 1) for k in range(CLIENTS)]
                for job in jobs:
                    job.result()


def redraws(cache: str) -> list[Row]:
    rows = []
    with server(cache) as (port, _, _):
        warmed(port)
        for view in DRAGGED:
            with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
                starts = range(0, CLIENTS * DRAGS, DRAGS)
                jobs = [pool.submit(drag, port, view, start, DRAGS) for start in starts]
                seconds = np.concatenate([job.result() for job in jobs])
            half, most = (1e3 * np.percentile(seconds, [50, 95])).round(1)
            what = f"explorer: a redraw of {view}, four clients dragging at once, 95th percentile"
            rows.append((what, "budget 50 ms", f"{most} ms (median {half} ms)", ""))
    return rows


def memory_of(pid: int) -> float:
    """MB of a process and its children, which its threads have."""
    children = [
        x for y in Path(f"/proc/{pid}/task").glob("*/children") for x in y.read_text().split()
    ]
    pages = [int(Path(f"/proc/{x}/statm").read_text().split()[1]) for x in (pid, *children)]
    return sum(pages) * os.sysconf("SC_PAGE_SIZE") / 2**20


def memory(cache: str, requests: int = REQUESTS) -> list[Row]:
    with server(cache) as (port, pid, _):
        warmed(port)
        drag(port, "polarization", 10**6, requests // 10)  # what is kept is full
        before = memory_of(pid)
        drag(port, "polarization", 2 * 10**6, requests)
        after = memory_of(pid)
    told = f"{before:.0f} MB before, {after:.0f} MB after"
    return [(f"explorer: memory over {requests:,} requests", "flat", told, f"{after / before:.2f}")]


def web() -> list[Row]:
    with tempfile.TemporaryDirectory() as cache:
        first = first_page(cache, "first start ever")
        redrawn = redraws(cache)
        return [*first, *first_page(cache, "next start"), *redrawn, *memory(cache)]


SECTIONS = {"web": web}

if __name__ == "__main__":
    print(json.dumps(web(), indent=1, ensure_ascii=False))
