"""The explorer's server: a page, its parts, and a small JSON interface. It computes nothing itself.

GET  /                          the page; its query is the state of a view
GET  /static/NAME, /plotly.js   its parts
GET  /api/views                 forms of the views
GET  /api/view/NAME?FIELD=…     one computation
GET  /api/ledger                every claim;  POST /api/ledger/PAPER/CLAIM  runs one
GET  /api/runs?filter=…         the store;    /api/runs/NAME  one run
GET  /api/progress              server-sent events
GET  /report/NAME               a page that `attnflow diagnose` left in the store
"""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from attnflow.web import plotly_js
from attnflow.web.crew import Busy, Crew, Overrun
from attnflow.web.guard import LOOPBACK, Guard, Limits
from attnflow.web.progress import events
from attnflow.web.work import Reply, reports

STATIC = Path(__file__).parent / "static"
TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html"}
VIEWS = ("two_tokens", "polarization", "conditioning", "specialization", "routing")
REPORT_POLICY = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; frame-ancestors 'none'; form-action 'none'"
)


def create_app(
    store: Path,
    *,
    token: str | None = None,
    hosts: tuple[str, ...] | None = LOOPBACK,
    limits: Limits = Limits(),  # noqa: B008 (frozen)
    warm: bool = True,
    crew: Any = None,
) -> Starlette:
    """token: asked of every visitor. hosts: names under which it answers. warm: compile the views
    in the background. crew: who computes, instead of worker processes."""
    desk = Desk(store, limits, crew)

    @contextlib.asynccontextmanager
    async def alive(_app):
        desk.start(warm)
        try:
            yield
        finally:
            await desk.stop()

    return Starlette(
        routes=[
            Route("/", desk.page),
            Route("/static/{name}", desk.static),
            Route("/plotly.js", desk.plotly),
            Route("/api/views", desk.views),
            Route("/api/view/{name}", desk.view),
            Route("/api/ledger", desk.ledger),
            Route("/api/ledger/{paper}/{claim}", desk.claim, methods=["POST"]),
            Route("/api/runs", desk.runs),
            Route("/api/runs/{name}", desk.run),
            Route("/api/progress", desk.progress),
            Route("/report/{name}", desk.report),
        ],
        middleware=[Middleware(Guard, token=token, hosts=hosts, limits=limits)],
        lifespan=alive,
    )


class Desk:
    """Takes requests and hands the work to processes: one crew for views and store, and a process
    of its own for claims, which take seconds."""

    def __init__(self, store: Path, limits: Limits, crew: Any = None):
        self.store, self.limits = store, limits
        self.crew = crew or Crew(limits.workers, limits.waiting, limits.seconds)
        self.claims = crew or Crew(1, limits.waiting, limits.claim_seconds)
        self.kept: OrderedDict[Any, bytes] = OrderedDict()
        self.listening = 0
        self.background: asyncio.Task | None = None

    def start(self, warm: bool) -> None:
        self.crew.start()
        if self.claims is not self.crew:
            self.claims.start()
        self.background = asyncio.create_task(self._prepare(warm))

    async def _prepare(self, warm: bool) -> None:
        """The forms first, then programs: whoever asks meanwhile goes before (rank 0)."""
        await self._ahead("views", 1)
        if warm:
            jobs = [self._ahead("warm", rank, name=name) for rank, name in enumerate(VIEWS, 2)]
            await asyncio.gather(*jobs, self._ahead("ledger", 9))

    async def _ahead(self, job: str, rank: int, **given: str) -> None:
        with contextlib.suppress(Overrun, RuntimeError):  # it is only to be faster later
            status, body = await self.crew.ask(job, rank=rank, **given)
            if status == 200 and job != "warm":
                self.kept[job] = body

    async def stop(self) -> None:
        if self.background is not None:
            self.background.cancel()
        await self.crew.stop()
        if self.claims is not self.crew:
            await self.claims.stop()

    async def page(self, request: Request) -> Response:
        headers = {"content-security-policy": plotly_js.policy()}
        return FileResponse(STATIC / "explorer.html", media_type="text/html", headers=headers)

    async def static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in {path.name for path in STATIC.iterdir() if path.is_file()}:
            return refused(404, "there is no such file")
        path = STATIC / name
        return FileResponse(path, media_type=TYPES.get(path.suffix, "application/octet-stream"))

    async def plotly(self, request: Request) -> Response:
        """Kept by the browser until another version is installed."""
        headers = {"cache-control": "no-cache", "etag": f'"{plotly_js.version()}"'}
        if request.headers.get("if-none-match") == headers["etag"]:
            return Response(status_code=304, headers=headers)
        return FileResponse(plotly_js.path(), media_type="text/javascript", headers=headers)

    async def views(self, request: Request) -> Response:
        return await self._kept("views", lambda: self.crew.ask("views"))

    async def view(self, request: Request) -> Response:
        name, query = request.path_params["name"], request.query_params.multi_items()
        key = ("view", name, tuple(sorted(query)))
        return await self._kept(key, lambda: self.crew.ask("view", name=name, query=query))

    async def ledger(self, request: Request) -> Response:
        return await self._kept("ledger", lambda: self.crew.ask("ledger"))

    async def claim(self, request: Request) -> Response:
        name = "{paper}/{claim}".format(**request.path_params)
        return await self._reply(lambda: self.claims.ask("claim", name=name))

    async def runs(self, request: Request) -> Response:
        filters = [x for x in request.query_params.getlist("filter") if x.strip()]
        store = str(self.store)
        return await self._reply(lambda: self.crew.ask("runs", store=store, filters=filters))

    async def run(self, request: Request) -> Response:
        name, store = request.path_params["name"], str(self.store)
        return await self._reply(lambda: self.crew.ask("run", store=store, name=name))

    async def report(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in await asyncio.to_thread(reports, self.store):
            return refused(404, "there is no such report")
        headers = {"content-security-policy": REPORT_POLICY}
        return FileResponse(self.store / name, media_type="text/html", headers=headers)

    async def progress(self, request: Request) -> Response:
        if self.listening >= self.limits.listeners:
            return refused(429, "too many pages follow the sweeps already")

        async def stream():
            self.listening += 1
            try:
                async for event in events(self.store):
                    yield event
            finally:
                self.listening -= 1

        return StreamingResponse(stream(), media_type="text/event-stream")

    async def _kept(self, key: Any, ask: Callable[[], Awaitable[Reply]]) -> Response:
        """The reply of before, if it is the same question."""
        if key in self.kept:
            self.kept.move_to_end(key)
            return Response(self.kept[key], media_type="application/json")
        response = await self._reply(ask)
        if response.status_code == 200:
            self.kept[key] = bytes(response.body)
            if len(self.kept) > self.limits.cached:
                self.kept.popitem(last=False)
        return response

    async def _reply(self, ask: Callable[[], Awaitable[Reply]]) -> Response:
        try:
            status, body = await ask()
        except Busy:
            return refused(429, "too many computations wait already: try again in a moment")
        except Overrun:
            return refused(503, "this takes longer than the explorer may: run it as a command")
        except RuntimeError as error:
            return refused(503, f"{error}: try again")
        return Response(body, status_code=status, media_type="application/json")


def refused(status: int, why: str) -> Response:
    return JSONResponse({"error": why, "field": None}, status_code=status)
