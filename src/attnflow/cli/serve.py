"""attnflow serve: the explorer in the browser."""

import contextlib
import dataclasses
import errno
import importlib.util
import secrets
import socket
import string
import threading
import webbrowser
from pathlib import Path
from typing import Annotated

from typing_extensions import Doc

from attnflow import cache
from attnflow.cli.parsing import parse_options

NEEDED = ("starlette", "uvicorn", "plotly", "orjson")
WILD = ("0.0.0.0", "::")  # every address of the machine
LOCAL = ("127.0.0.1", "localhost", "::1")


@dataclasses.dataclass(frozen=True)
class Options:
    host: Annotated[
        str, Doc("address to listen at; any but this machine's own asks visitors for a token")
    ] = "127.0.0.1"
    port: Annotated[int, Doc("port to listen at; 0: a free one")] = 8765
    store: Annotated[Path, Doc("folder of the runs")] = Path("out/runs")
    workers: Annotated[
        int,
        Doc("processes that compute; there are at least 2, as long computations leave one free"),
    ] = 2
    open: Annotated[bool, Doc("open the page in a browser")] = False


def run(arguments: list[str]) -> int:
    options = parse_options(
        Options,
        arguments,
        prog="attnflow serve",
        description="Serve the explorer: simulators, ledger and runs in the browser.",
    )
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(f"the explorer needs {', '.join(missing)}: pip install 'attnflow[web]'")
    if not options.host or set(options.host) & set(string.whitespace):
        kind = "have no white space" if options.host else "not be empty"
        raise ValueError(
            f"host must {kind} (got {options.host!r}): 127.0.0.1 is this machine only, 0.0.0.0 "
            "every address it has"
        )
    if not 0 <= options.port < 65536:
        raise ValueError(f"port must lie from 0 to 65535 (got {options.port})")
    if not 1 <= options.workers <= 64:
        raise ValueError(f"workers must lie from 1 to 64 (got {options.workers})")
    token = None if options.host in LOCAL else secrets.token_urlsafe(24)
    with listening(options.host, options.port) as place:
        serve(options, place, token)
    print("explorer: stopped")
    return 0


def listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with contextlib.ExitStack() as unless_it_works:
        try:
            # Named, or asyncio does not know it for TCP and each reply waits 40 ms for an
            # acknowledgement.
            place = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
            unless_it_works.enter_context(place)
            place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            place.bind((host, port))
            place.listen()
        except (OSError, ValueError, TypeError) as error:  # the last two: it cannot be looked up
            raise ValueError(f"cannot listen at {host} port {port}: {_why(error)}") from None
        unless_it_works.pop_all()
    return place


def _why(error: Exception) -> str:
    if not isinstance(error, OSError) or isinstance(error, socket.gaierror):
        return "the host is not a name or an address (the port has an option of its own, --port)"
    if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
        return "it is not an address of this machine; 0.0.0.0 is all that it has"
    if error.errno == errno.EADDRINUSE:
        return "another server is there; --port 0 takes a free port"
    return f"{error.strerror or error}; --port 0 takes a free port"


def serve(options: Options, place: socket.socket, token: str | None) -> None:
    """Until Ctrl-C."""
    from attnflow.web.connections import server
    from attnflow.web.guard import LOOPBACK, Limits
    from attnflow.web.server import create_app

    shown = f"[{options.host}]" if ":" in options.host else options.host
    hosts = None if options.host in WILD else (*LOOPBACK, shown.lower())
    limits = Limits(workers=options.workers)
    app = create_app(
        options.store,
        token=token,
        hosts=hosts,
        limits=limits,
        cache=cache.folder(),
    )
    name = socket.gethostname() if options.host in WILD else shown
    address = f"http://{name}:{place.getsockname()[1]}/" + (f"?token={token}" if token else "")
    print(f"explorer: {address}  (Ctrl-C ends it)", flush=True)
    if options.open:
        threading.Timer(0.5, webbrowser.open, [address]).start()
    with contextlib.suppress(KeyboardInterrupt):  # it has closed everything, and tells it again
        server(app, limits).run(sockets=[place])
