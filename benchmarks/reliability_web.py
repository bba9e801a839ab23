"""The explorer under attack: nonsense, crowds, and clients that leave. Only on this machine.

python -m benchmarks.reliability_web
"""

import concurrent.futures
import contextlib
import dataclasses
import http.client
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.reliability import Attack

SECONDS = 5.0  # within which what is light must be answered
PATIENCE = 240.0  # after which something hangs
REQUESTS = 2000
HEAVY, STREAMS, HALF_OPEN = 24, 60, 300
LIGHT = "/api/view/two_tokens?c0=3.{:03d}"
LOAD = "/api/view/specialization?heads=6&tokens=10&samples=2048&t1=300&nu1=20&nu2=20&seed={}"
VIEWS = ("two_tokens", "polarization", "conditioning", "specialization", "routing")


@dataclasses.dataclass
class Server:
    port: int
    pid: int
    log: Path

    def get(
        self, path: str, seconds: float = PATIENCE, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        asking = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        with contextlib.closing(asking):
            asking.request("GET", path, headers=headers or {})
            reply = asking.getresponse()
            return reply.status, reply.read()

    def open(self, text: bytes = b"") -> socket.socket:
        found = socket.create_connection(("127.0.0.1", self.port), 30)
        found.sendall(text)
        return found

    def answers(self) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self.get("/", SECONDS)[0] == 200
        return False

    def processes(self) -> list[int]:
        """It and its workers."""
        below = Path(f"/proc/{self.pid}/task").glob("*/children")
        return [self.pid, *(int(x) for path in below for x in path.read_text().split())]


def _used(pid: int) -> float:
    try:
        parts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def server() -> Iterator[Server]:
    """A fresh one that has compiled what every view begins with."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        command = [sys.executable, "-m", "attnflow", "serve", "--port", "0"]
        with log.open("w") as file:
            process = subprocess.Popen(
                [*command, "--store", f"{folder}/runs"],
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                start_new_session=True,
                env=os.environ | {"XDG_CACHE_HOME": folder},
            )
        try:
            assert process.stdout is not None
            found = re.search(r":(\d+)/", process.stdout.readline())
            assert found is not None
            yield _warmed(Server(int(found.group(1)), process.pid, log))
        finally:
            os.kill(process.pid, signal.SIGINT)
            process.wait(60)


def _warmed(found: Server) -> Server:
    """Both workers know every view: idle, they prepare themselves."""
    for view in VIEWS:
        found.get(f"/api/view/{view}")
    found.get("/api/runs")
    _quiet(found, PATIENCE)
    return found


def _quiet(found: Server, seconds: float, among: list[int] | None = None) -> float:
    """How long it went on computing, all its processes or those given: until they used less than a
    tenth of a core for two seconds."""
    begun = time.monotonic()
    while time.monotonic() - begun < seconds:
        pids = among or found.processes()
        before = {pid: _used(pid) for pid in pids}
        time.sleep(2)
        if sum(max(0.0, _used(pid) - x) for pid, x in before.items()) < 0.2:
            break
    return time.monotonic() - begun - 2


METHODS = ("GET", "GET", "GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "BREW")
PIECES = ("..", "%2e%2e", "%00", "<script>", "nan", "1e400", "-1", "9" * 400, "é", "null", "%ff")
FIELDS = ("c0", "p", "d", "t1", "filter", "column", "page", "size", "failed", "token", "seed")
HEADERS = ("Origin", "Sec-Fetch-Site", "Cookie", "Content-Length", "Transfer-Encoding", "Expect")
HEADERS += ("Upgrade", "Connection", "If-None-Match", "Content-Type", "X-Attnflow-Page", "Range")
PLACES = ("/", "/api/views", "/api/ledger", "/api/runs", "/api/runs/x", "/plotly.js", "/report/x")
PLACES += ("/static/app.js", "/static/x", "/nowhere", "/api/ledger/routing/x", "*", "http://x/")
PLACES += ("/api/ledger/routing/x/counterexample", *(f"/api/view/{view}" for view in VIEWS))


def nonsense(rng: random.Random) -> bytes:
    """A request, more or less. Fields of views have values that are refused, or cheap."""
    word = lambda: rng.choice((*PIECES, str(rng.randrange(99)), "c0<3"))  # noqa: E731
    query = "&".join(f"{rng.choice(FIELDS)}={word()}" for _ in range(rng.randrange(4)))
    place = rng.choice((*PLACES, f"/{word()}", f"/static/{word()}", f"/api/view/{word()}"))
    lines = [f"{rng.choice(METHODS)} {place}?{query} HTTP/{rng.choice(('1.1', '1.1', '1.0', '3'))}"]
    lines += rng.choices(("Host: 127.0.0.1", "Host: evil.example", ""), (8, 1, 1))
    known = ("application/json", "chunked", "100-continue", "websocket", "close", "0", "2")
    for _ in range(rng.randrange(4)):
        lines.append(f"{rng.choice(HEADERS)}: {rng.choice((*known, word()))}")
    body = rng.randbytes(rng.randrange(60)) if rng.random() < 0.5 else b""
    text = "\r\n".join(lines).encode() + b"\r\n\r\n" + body
    if rng.random() < 0.2:  # broken
        at = rng.randrange(len(text))
        text = text[:at] + rng.randbytes(rng.randrange(1, 9)) + text[at:]
    return text[: rng.randrange(len(text))] if rng.random() < 0.1 else text


def reply_to(found: Server, text: bytes) -> str:
    """ "" if it is an answer or a closed connection; else what is wrong with it."""
    with found.open() as connection:
        connection.settimeout(PATIENCE)
        with contextlib.suppress(ConnectionError):  # it may close before we have ended
            connection.sendall(text)
        try:
            first = connection.recv(1 << 16)
        except ConnectionError:
            return ""
        except TimeoutError:
            return f"no end of {text[:80]!r}"
    status = first.split(b" ")[1:2]
    wrong = status and status[0][:1] == b"5" and status[0] != b"503"
    return f"{status[0].decode()} for {text[:80]!r}" if wrong else ""


def fuzz(found: Server) -> Attack:
    rng = random.Random(0)
    texts = [nonsense(rng) for _ in range(REQUESTS)]
    with concurrent.futures.ThreadPoolExecutor(60) as pool:  # many wait for an end that never comes
        wrong = [x for x in pool.map(lambda text: reply_to(found, text), texts) if x]
    tracebacks = found.log.read_text().count("Traceback")
    failures = len(wrong) + tracebacks + (not found.answers())
    note = f"{tracebacks} tracebacks; " + "; ".join(wrong[:3])
    return Attack("explorer: requests of nonsense", REQUESTS, failures, note if failures else "")


def streams(found: Server) -> Attack:
    ask = b"GET /api/progress HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(found.open()) for _ in range(STREAMS)]
        for each in opened:
            each.sendall(ask)
        statuses = [each.recv(1 << 12).split(b" ")[1] for each in opened]
    admitted = statuses.count(b"200")
    wrong = abs(admitted - 16) + sum(x not in (b"200", b"429") for x in statuses)
    failures = wrong + (not found.answers())
    what = "explorer: event streams at once, of which 16 are admitted"
    return Attack(what, STREAMS, failures, f"{admitted} admitted")


def half_open(found: Server) -> Attack:
    heads = (b"", b"GET / HTTP/1.1\r\nHost: 127.0", b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n")
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(found.open(heads[i % 3])) for i in range(HALF_OPEN)]
        begun = time.monotonic()
        answered = found.answers()
        took, still = time.monotonic() - begun, 0
        for each in opened:
            each.settimeout(20)
            try:
                while each.recv(1 << 12):
                    pass
            except TimeoutError:
                still += 1
            except ConnectionError:
                pass
        closed = time.monotonic() - begun
    note = f"a page beside them in {1e3 * took:.0f} ms, all closed after {closed:.0f} s"
    failures = still + (not answered) + (took > SECONDS)
    return Attack("explorer: half-open connections", HALF_OPEN, failures, note)


def crowd(found: Server) -> list[Attack]:
    """Heavy requests, light ones and the list of runs beside them; then all clients leave."""
    ask = f"GET {LOAD} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    light: list[float] = []
    with contextlib.ExitStack() as stack:
        for number in range(HEAVY):
            stack.enter_context(found.open(ask.format(number + 1).encode()))
        time.sleep(1)
        for number in range(6):
            for path in (LIGHT.format(number), "/api/runs", "/api/ledger", "/api/view/routing"):
                light.append(_seconds(found, path))
            time.sleep(1)
        before = found.processes()
    failures = sum(seconds > SECONDS for seconds in light)
    note = (
        f"the slowest in {max(light):.2f} s, the median in {sorted(light)[len(light) // 2]:.3f} s"
    )
    beside = Attack(
        f"explorer: light requests beside {HEAVY} heavy ones", len(light), failures, note
    )
    stopped = _quiet(found, 60, before)
    after = _seconds(found, LIGHT.format(99))
    quiet = stopped + _quiet(
        found, PATIENCE
    )  # the worker that was stopped is replaced, and prepared
    failures = (stopped > 10) + (quiet > 120) + (after > SECONDS)
    note = (
        f"stopped {stopped:.0f} s after they left, a light request then in {after:.2f} s, "
        f"a new worker ready after {quiet:.0f} s"
    )
    return [beside, Attack("explorer: heavy clients that leave", HEAVY, failures, note)]


def _seconds(found: Server, path: str) -> float:
    begun = time.monotonic()
    with contextlib.suppress(OSError, http.client.HTTPException):
        if found.get(path)[0] == 200:
            return time.monotonic() - begun
    return float("inf")


def origins(found: Server) -> Attack:
    foreign = ("http://evil.example", "null", f"https://127.0.0.1:{found.port}", "http://127.0.0.1")
    places = ("/", "/api/views", "/api/runs", "/api/view/two_tokens", "/static/app.js")
    sites = ("same-origin", "none", "cross-site", "same-site")
    cases = [(x, y, z) for x in foreign for y in places for z in sites]
    wrong = sum(
        found.get(path, headers={"Origin": origin, "Sec-Fetch-Site": site})[0] != 403
        for origin, path, site in cases
    )
    ours = found.get("/api/views", headers={"Origin": f"http://127.0.0.1:{found.port}"})[0] != 200
    return Attack("explorer: requests of another site", len(cases), wrong + ours)


def attacks() -> list[Attack]:
    with server() as found:
        return [
            origins(found),
            streams(found),
            half_open(found),
            fuzz(found),
            *crowd(found),
        ]


if __name__ == "__main__":
    for attack in attacks():
        print(
            f"{attack.failures} of {attack.tried} failed: {attack.what}; {attack.note}", flush=True
        )
