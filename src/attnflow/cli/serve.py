"""attnflow serve: the explorer in the browser."""

import contextlib
import dataclasses
import importlib.util
import secrets
import socket
import threading
import webbrowser
from pathlib import Path
from typing import Annotated

from typing_extensions import Doc

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
    workers: Annotated[int, Doc("processes that compute")] = 2
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
    # Named, or asyncio does not know it for TCP and each reply waits 40 ms for an acknowledgement.
    place = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        place.bind((host, port))
    except OSError as error:
        place.close()
        raise ValueError(
            f"cannot listen at {host} port {port} ({error.strerror or error}): another server may "
            "be there; --port 0 takes a free port"
        ) from None
    place.listen()
    return place


def serve(options: Options, place: socket.socket, token: str | None) -> None:
    """Until Ctrl-C."""
    from attnflow.web.connections import server
    from attnflow.web.guard import LOOPBACK, Limits
    from attnflow.web.server import create_app
    from attnflow.web.shelf import default_folder

    shown = f"[{options.host}]" if ":" in options.host else options.host
    hosts = None if options.host in WILD else (*LOOPBACK, shown.lower())
    limits = Limits(workers=options.workers)
    app = create_app(
        options.store,
        token=token,
        hosts=hosts,
        limits=limits,
        cache=default_folder(),
    )
    name = socket.gethostname() if options.host in WILD else shown
    address = f"http://{name}:{place.getsockname()[1]}/" + (f"?token={token}" if token else "")
    print(f"explorer: {address}  (Ctrl-C ends it)", flush=True)
    if options.open:
        threading.Timer(0.5, webbrowser.open, [address]).start()
    with contextlib.suppress(KeyboardInterrupt):  # it has closed everything, and tells it again
        server(app, limits).run(sockets=[place])
