"""Who may ask: every request passes here first, and every reply leaves with its policies.

A page of another site can make a browser send requests to this server. It cannot read the replies,
but it must not start work either; and a name that it controls must not become ours by a change of
its address (DNS rebinding).
"""

import dataclasses
import hmac
import json
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
COOKIE = "attnflow_token"
HEADERS = {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


@dataclasses.dataclass(frozen=True)
class Limits:
    """What one server does at most. `seconds`: a computation, with its compilation (a few seconds,
    but many where others keep all cores busy: one that is stopped would have to begin again);
    `claim_seconds`: a claim of the ledger; `waiting`: computations in line; `query`, `body`:
    characters; `listeners`: pages that follow the progress of sweeps; `cached`: replies kept;
    `requests`: those under way at once; `connections`: beyond them the oldest that asks for nothing
    is closed; `request_seconds`: until a request has arrived as a whole; `reader_seconds`: for
    which a reply waits to be read."""

    workers: int = 2
    waiting: int = 16
    seconds: float = 180.0
    claim_seconds: float = 180.0
    query: int = 2000
    body: int = 1000
    listeners: int = 16
    cached: int = 200
    requests: int = 256
    connections: int = 512
    request_seconds: float = 10.0
    reader_seconds: float = 30.0


class Guard:
    """ASGI middleware. hosts: names under which we answer, None for all (then with a token)."""

    def __init__(self, app: Any, token: str | None, hosts: tuple[str, ...] | None, limits: Limits):
        if hosts is None and token is None:
            raise ValueError("hosts: answering under every name needs a token")
        self.app, self.token, self.hosts, self.limits = app, token, hosts, limits
        self.under_way = 0

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            return await self.app(scope, receive, send)

        async def send_guarded(message):
            if message["type"] == "http.response.start":
                given = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [
                    *message["headers"],
                    *(
                        (name.encode(), value.encode())
                        for name, value in HEADERS.items()
                        if name.encode() not in given
                    ),
                ]
            await send(message)

        wrong = self.refusal(scope)
        if wrong is not None:
            return await _answer(send_guarded, *wrong)
        self.under_way += 1
        try:
            return await self.app(scope, receive, send_guarded)
        finally:
            self.under_way -= 1

    def refusal(self, scope) -> tuple[int, str, dict[str, str]] | None:
        """Status, text and headers of a reply that is no more than that."""
        headers = {name.decode("latin-1").lower(): x for name, x in scope["headers"]}
        host = headers.get("host", b"").decode("latin-1")
        if self.hosts is not None and _name(host) not in self.hosts:
            return 400, f"this server does not answer under the name {host[:80]!r}", {}
        query = scope["query_string"]
        if len(query) > self.limits.query or len(scope["path"]) > self.limits.query:
            return 414, f"the address may have {self.limits.query} characters", {}
        length = headers.get("content-length", b"0")
        if not length.isdigit() or len(length) > 9 or int(length) > self.limits.body:
            return 413, f"a request may carry {self.limits.body} bytes", {}
        if "transfer-encoding" in headers:
            return 411, "a request must say how long it is", {}
        foreign = self._foreign(scope, headers, host)
        if foreign is not None:
            return foreign
        unknown = None if self.token is None else self._unknown(scope, headers, query)
        if unknown is None and self.under_way >= self.limits.requests:
            return 503, "too many requests at once: try again in a moment", {}
        return unknown

    def _foreign(self, scope, headers, host: str) -> tuple[int, str, dict[str, str]] | None:
        """Requests that another site made: they may open the page, and nothing else. A browser
        that opens it by a link sends no origin."""
        sites = {x for name, x in scope["headers"] if name.lower() == b"sec-fetch-site"}
        opens_page = scope["method"] == "GET" and scope["path"] == "/"
        if sites - {b"none", b"same-origin"} and not opens_page:
            return 403, "another site may not ask for this", {}
        ours = f"{scope['scheme']}://{host}".lower().encode("latin-1")
        origins = {x.lower() for name, x in scope["headers"] if name.lower() == b"origin"}
        if origins - {ours}:
            return 403, "another site may not ask for this", {}
        if scope["method"] != "POST":
            return None
        if headers.get("content-type", b"").split(b";")[0].strip() != b"application/json":
            return 415, "send JSON", {}
        return None

    def _unknown(self, scope, headers, query: bytes) -> tuple[int, str, dict[str, str]] | None:
        """The token comes once in the address and from then on as a cookie."""
        assert self.token is not None
        fields = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
        given = dict(fields).get("token")
        if given is not None and scope["path"] == "/" and self._same(given):
            rest = urlencode([(name, x) for name, x in fields if name != "token"])
            cookie = f"{COOKIE}={self.token}; HttpOnly; SameSite=Strict; Path=/"
            return 303, "", {"location": "/" + f"?{rest}" * bool(rest), "set-cookie": cookie}
        jar: SimpleCookie = SimpleCookie()
        try:
            jar.load(headers.get("cookie", b"").decode("latin-1"))
        except CookieError:
            jar.clear()
        if COOKIE in jar and self._same(jar[COOKIE].value):
            return None
        return 401, "open the address that `attnflow serve` printed: it carries a token", {}

    def _same(self, given: str) -> bool:
        assert self.token is not None
        return hmac.compare_digest(given.encode(), self.token.encode())


def _name(host: str) -> str:
    """Without the port."""
    if host.startswith("["):
        return host.partition("]")[0].lower() + "]"
    return host.partition(":")[0].lower()


async def _answer(send, status: int, text: str, headers: dict[str, str]) -> None:
    body = json.dumps({"error": text, "field": None}).encode()
    quoted = [(name.encode(), quote(x, safe="/?=&;%-_ ").encode()) for name, x in headers.items()]
    lines = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": [*lines, *quoted]})
    await send({"type": "http.response.body", "body": body})
