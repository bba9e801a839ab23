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
TOYS = ("two_tokens", "polarization", "conditioning", "routing")
DRAGGED = {"two_tokens": "c0", "polarization": "spread", "conditioning": "step", "routing": "scale"}
CLIENTS, DRAGS, REQUESTS = 4, 150, 10_000


@contextlib.contextmanager
def server() -> Iterator[tuple[int, int, float]]:
    """Port and process number of a fresh server, and when it was started."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "attnflow", "serve", "--port", "0", "--store", folder]
        begun = time.perf_counter()
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, start_new_session=True
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


def first_page() -> list[Row]:
    with server() as (port, _, begun):
        client = Client(port)
        for path in ("/", "/static/app.js", "/static/view.js", "/plotly.js"):
            client.get(path)
        page = time.perf_counter() - begun
        client.get("/api/views")
        forms = time.perf_counter() - begun
        client.get("/api/view/two_tokens")
        curve = time.perf_counter() - begun
    return [
        ("explorer: first page after start", "budget 1.5 s", f"{page:.2f} s", ""),
        ("explorer: its form", "", f"{forms:.2f} s", ""),
        ("explorer: its first curve, compiled", "", f"{curve:.2f} s", ""),
    ]


def value_of(view: str, number: int) -> float:
    """Never the same value twice, so that no reply is a kept one."""
    low, high = {"c0": (2, 12), "spread": (0.2, 2), "step": (0.05, 0.5), "scale": (0.3, 2)}[
        DRAGGED[view]
    ]
    return round(low + (high - low) * (number * 0.6180339887 % 1), 9)


def drag(port: int, view: str, first: int, count: int) -> list[float]:
    client, seconds = Client(port), []
    for number in range(first, first + count):
        begun = time.perf_counter()
        client.get(f"/api/view/{view}?{DRAGGED[view]}={value_of(view, number)}")
        seconds.append(time.perf_counter() - begun)
    return seconds


def warmed(port: int) -> None:
    """Both workers have compiled every toy."""
    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        for view in TOYS:
            for round_ in range(3):
                jobs = [pool.submit(drag, port, view, -9 * k - round_, 1) for k in range(CLIENTS)]
                for job in jobs:
                    job.result()


def redraws() -> list[Row]:
    rows = []
    with server() as (port, _, _):
        warmed(port)
        for view in TOYS:
            with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
                starts = range(0, CLIENTS * DRAGS, DRAGS)
                jobs = [pool.submit(drag, port, view, start, DRAGS) for start in starts]
                seconds = np.concatenate([job.result() for job in jobs])
            half, most = (1e3 * np.percentile(seconds, [50, 95])).round(1)
            what = f"explorer: a redraw of {view}, four clients dragging at once, 95th percentile"
            rows.append((what, "budget 50 ms", f"{most} ms (median {half} ms)", ""))
    return rows


def memory_of(pid: int) -> float:
    """MB of a process and its children."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    pages = [int(Path(f"/proc/{x}/statm").read_text().split()[1]) for x in (pid, *children)]
    return sum(pages) * os.sysconf("SC_PAGE_SIZE") / 2**20


def memory(requests: int = REQUESTS) -> list[Row]:
    with server() as (port, pid, _):
        warmed(port)
        drag(port, "polarization", 10**6, requests // 10)  # what is kept is full
        before = memory_of(pid)
        drag(port, "polarization", 2 * 10**6, requests)
        after = memory_of(pid)
    told = f"{before:.0f} MB before, {after:.0f} MB after"
    return [(f"explorer: memory over {requests:,} requests", "flat", told, f"{after / before:.2f}")]


def web() -> list[Row]:
    return [*first_page(), *redraws(), *memory()]


SECTIONS = {"web": web}

if __name__ == "__main__":
    print(json.dumps(web(), indent=1, ensure_ascii=False))
