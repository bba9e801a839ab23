"""The explorer's server: a page, its parts, and a small JSON interface. It computes nothing itself.

GET  /                          the page; its query is the state of a view
GET  /static/NAME, /plotly.js   its parts
GET  /api/views                 forms of the views
GET  /api/view/NAME?FIELD=…     one computation
GET  /api/ledger                every claim
POST /api/ledger/PAPER/CLAIM    runs one; with /counterexample, the lines that refute it
GET  /api/runs?filter=…         the store;    /api/runs/NAME  one run
GET  /api/progress              server-sent events
GET  /report/NAME               a page that `attnflow diagnose` left in the store
"""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
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
from attnflow.web.shelf import Shelf
from attnflow.web.work import Reply, reports

STATIC = Path(__file__).parent / "static"
TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html"}
VIEWS = ("two_tokens", "polarization", "conditioning", "specialization", "routing")
CHORES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("views", {}),
    *(("view", {"name": name, "query": []}) for name in VIEWS),
    ("ledger", {}),
)
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
    cache: Path | None = None,
    crew: Any = None,
) -> Starlette:
    """token: asked of every visitor. hosts: names under which it answers. cache: folder of what the
    next server is to find; without it nothing is prepared. crew: who computes, instead of worker
    processes."""
    desk = Desk(store, limits, cache and Shelf(cache), crew)

    @contextlib.asynccontextmanager
    async def alive(_app):
        desk.start()
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
            Route(
                "/api/ledger/{paper}/{claim}/counterexample", desk.counterexample, methods=["POST"]
            ),
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

    def __init__(self, store: Path, limits: Limits, shelf: Shelf | None = None, crew: Any = None):
        self.store, self.limits, self.shelf = store, limits, shelf
        kept = {} if shelf is None else shelf.environment()
        self.crew = crew or Crew(
            limits.workers,
            limits.waiting,
            limits.seconds,
            chores=() if shelf is None else CHORES,
            done=self._keep_first,
            environment=kept,
            pinned=True,
        )
        self.claims = crew or Crew(1, limits.waiting, limits.claim_seconds, environment=kept)
        self.first: dict[Any, bytes] = {}
        self.kept: OrderedDict[Any, bytes] = OrderedDict()
        self.listening = 0

    def start(self) -> None:
        self.crew.start()
        if self.claims is not self.crew:
            self.claims.start()
        if self.shelf is not None:
            for job, given in CHORES:
                body = self.shelf.get(_name(job, given))
                if body is not None:
                    self.first[_key(job, **given)] = body

    def _keep_first(self, job: str, given: dict[str, Any], reply: Reply) -> None:
        status, body = reply
        if status == 200:
            self.first[_key(job, **given)] = body
            if self.shelf is not None:
                self.shelf.put(_name(job, given), body)

    async def stop(self) -> None:
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
        return await self._kept("views")

    async def view(self, request: Request) -> Response:
        name, query = request.path_params["name"], request.query_params.multi_items()
        return await self._kept("view", name=name, query=query)

    async def ledger(self, request: Request) -> Response:
        return await self._kept("ledger")

    async def claim(self, request: Request) -> Response:
        name = "{paper}/{claim}".format(**request.path_params)
        return await self._reply(lambda: self.claims.ask("claim", name=name))

    async def counterexample(self, request: Request) -> Response:
        name = "{paper}/{claim}".format(**request.path_params)
        return await self._reply(lambda: self.claims.ask("counterexample", name=name))

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

    async def _kept(self, job: str, **given: Any) -> Response:
        """The reply of before, if it is the same question."""
        key = _key(job, **given)
        if key in self.first:
            return Response(self.first[key], media_type="application/json")
        if key in self.kept:
            self.kept.move_to_end(key)
            return Response(self.kept[key], media_type="application/json")
        response = await self._reply(lambda: self.crew.ask(job, **given))
        if response.status_code == 200 and key in FIRST:
            self._keep_first(job, given, (200, bytes(response.body)))
        elif response.status_code == 200:
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


def _key(job: str, name: str = "", query: Sequence[tuple[str, str]] = ()) -> Any:
    return job, name, tuple(sorted(query))


FIRST = {_key(job, **given) for job, given in CHORES}


def _name(job: str, given: dict[str, Any]) -> str:
    return f"{given.get('name', job)}.json"


def refused(status: int, why: str) -> Response:
    return JSONResponse({"error": why, "field": None}, status_code=status)
