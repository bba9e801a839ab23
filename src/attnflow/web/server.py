"""The explorer's server: a page, its parts, and a small JSON interface. It computes nothing itself.

GET  /                          the page; its query is the state of a view
GET  /static/NAME, /plotly.js   its parts
GET  /api/views                 forms of the views
GET  /api/view/NAME?FIELD=…     one computation
GET  /api/ledger                every claim
POST /api/ledger/PAPER/CLAIM    runs one; with /counterexample, the lines that refute it
GET  /api/runs?filter=…&page=…  the store;    /api/runs/NAME  one run
GET  /api/progress              server-sent events
GET  /report/NAME               a page that `attnflow diagnose` left in the store
"""

import asyncio
import contextlib
import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from attnflow.web import plotly_js
from attnflow.web.clients import Gone, attended, client_of
from attnflow.web.costs import Costs
from attnflow.web.crew import Crew, Overrun
from attnflow.web.guard import LOOPBACK, Guard, Limits
from attnflow.web.line import Busy, Superseded
from attnflow.web.progress import events
from attnflow.web.shelf import Shelf
from attnflow.web.work import Reply, reports

STATIC = Path(__file__).parent / "static"
TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html"}
VIEWS = ("two_tokens", "polarization", "conditioning", "specialization", "routing")
REPLIES: tuple[tuple[str, dict[str, Any]], ...] = (  # what everybody asks first
    ("views", {}),
    *(("view", {"name": name, "query": []}) for name in VIEWS),
    ("ledger", {}),
)
CHORES = (*REPLIES, *(("compiled", {"name": name}) for name in ("two_tokens", "polarization")))
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
    """Takes requests and hands the work to processes: one crew for views, and a process of its own
    each for the store, which answers soon, and for claims, which take seconds."""

    def __init__(self, store: Path, limits: Limits, shelf: Shelf | None = None, crew: Any = None):
        self.store, self.limits, self.shelf = store, limits, shelf
        self.costs = Costs()
        kept = {} if shelf is None else shelf.environment()
        self.crew = crew or Crew(
            max(2, limits.workers),  # long computations leave one free
            limits.waiting,
            limits.seconds,
            chores=() if shelf is None else CHORES,
            done=self._prepared,
            timed=self._timed,
            environment=kept,
            pinned=True,
        )
        self.shop = crew or Crew(1, limits.waiting, limits.seconds, environment=kept)
        self.claims = crew or Crew(1, limits.waiting, limits.claim_seconds, environment=kept)
        self.first: dict[Any, bytes] = {}
        self.kept: OrderedDict[Any, bytes] = OrderedDict()
        self.listening = 0

    def start(self) -> None:
        for crew in {self.crew, self.shop, self.claims}:
            crew.start()
        if self.shelf is not None:
            for job, given in REPLIES:
                body = self.shelf.get(_name(job, given))
                if body is not None:
                    self._found(job, given, body)

    async def stop(self) -> None:
        for crew in {self.crew, self.shop, self.claims}:
            await crew.stop()

    def _timed(self, job: str, given: dict[str, Any], seconds: float) -> None:
        if job == "view" and given["name"] in VIEWS:
            self.costs.learn(given["name"], given["query"], seconds)

    def _prepared(self, job: str, given: dict[str, Any], reply: Reply) -> None:
        if (job, given) not in REPLIES:
            return
        self._keep_first(job, given, reply)
        self._timed(job, given, 0.0)  # it is compiled

    def _keep_first(self, job: str, given: dict[str, Any], reply: Reply) -> None:
        status, body = reply
        if status == 200:
            self._found(job, given, body)
            if self.shelf is not None:
                self.shelf.put(_name(job, given), body)

    def _found(self, job: str, given: dict[str, Any], body: bytes) -> None:
        self.first[_key(job, **given)] = body
        if job == "views":
            with contextlib.suppress(ValueError, TypeError, KeyError):  # a shelf that is damaged
                self.costs.compare_with(json.loads(body)["views"])

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
        return await self._kept(request, "views", {})

    async def view(self, request: Request) -> Response:
        name, query = request.path_params["name"], request.query_params.multi_items()
        expected = self.costs.expected(name, query)
        given = {"name": name, "query": query}
        return await self._kept(request, "view", given, slot="view", expected=expected)

    async def ledger(self, request: Request) -> Response:
        return await self._kept(request, "ledger", {})

    async def claim(self, request: Request) -> Response:
        name = "{paper}/{claim}".format(**request.path_params)
        return await self._ask(request, self.claims, "claim", {"name": name})

    async def counterexample(self, request: Request) -> Response:
        name = "{paper}/{claim}".format(**request.path_params)
        return await self._ask(request, self.claims, "counterexample", {"name": name})

    async def runs(self, request: Request) -> Response:
        query = request.query_params
        given = {"store": str(self.store)} | {
            f"{name}s": [x for x in query.getlist(name) if x.strip()]
            for name in ("filter", "column")
        }
        given |= {name: query[name] for name in ("page", "size", "failed") if name in query}
        return await self._ask(request, self.shop, "runs", given, slot="runs")

    async def run(self, request: Request) -> Response:
        given = {"store": str(self.store), "name": request.path_params["name"]}
        return await self._ask(request, self.shop, "run", given)

    async def report(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in await asyncio.to_thread(reports, self.store):
            return refused(404, "there is no such report")
        headers = {"content-security-policy": REPORT_POLICY}
        return FileResponse(self.store / name, media_type="text/html", headers=headers)

    async def progress(self, request: Request) -> Response:
        if self.listening >= self.limits.listeners:
            return refused(429, "too many pages follow the sweeps already")
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        self.listening += 1
        return Followed(events(self.store), self._unfollowed)

    def _unfollowed(self) -> None:
        self.listening -= 1

    async def _kept(
        self, request: Request, job: str, given: dict[str, Any], **how: Any
    ) -> Response:
        """The reply of before, if it is the same question."""
        key = _key(job, **given)
        if key in self.first:
            return Response(self.first[key], media_type="application/json")
        if key in self.kept:
            self.kept.move_to_end(key)
            return Response(self.kept[key], media_type="application/json")
        response = await self._ask(request, self.crew, job, given, **how)
        if response.status_code == 200 and key in FIRST:
            self._keep_first(job, given, (200, bytes(response.body)))
        elif response.status_code == 200:
            self.kept[key] = bytes(response.body)
            if len(self.kept) > self.limits.cached:
                self.kept.popitem(last=False)
        return response

    async def _ask(
        self, request: Request, crew: Any, job: str, given: dict[str, Any], **how: Any
    ) -> Response:
        asking = crew.ask(job, given, client=client_of(request), **how)
        try:
            status, body = await attended(request, asking)
        except Gone:
            return Response(status_code=499)  # nobody reads it
        except Superseded:
            return refused(409, "a newer request of this page took its place")
        except Busy:
            return refused(429, "too many computations wait already: try again in a moment")
        except Overrun:
            return refused(503, "this takes longer than the explorer may: run it as a command")
        except RuntimeError as error:
            return refused(503, f"{error}: try again")
        return Response(body, status_code=status, media_type="application/json")


class Followed(StreamingResponse):
    """A stream of events; `ended` is called when it ends, however it does."""

    def __init__(self, content: AsyncIterator[str], ended: Callable[[], None]):
        super().__init__(content, media_type="text/event-stream")
        self.ended = ended

    async def __call__(self, scope, receive, send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.ended()


def _key(job: str, name: str = "", query: Sequence[tuple[str, str]] = ()) -> Any:
    return job, name, tuple(sorted(query))


FIRST = {_key(job, **given) for job, given in REPLIES}


def _name(job: str, given: dict[str, Any]) -> str:
    return f"{given.get('name', job)}.json"


def refused(status: int, why: str) -> Response:
    return JSONResponse({"error": why, "field": None}, status_code=status)
