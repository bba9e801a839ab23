"""Who may ask: names, sites, sizes, the token."""

import pytest
from starlette.testclient import TestClient

from attnflow.web.guard import Limits
from attnflow.web.server import create_app

JSON = {"content-type": "application/json"}
CLAIM = "/api/ledger/conditioning/nothing"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (JSON | {"origin": "http://127.0.0.1:8765"}, 404),  # ours: but there is no such claim
        (JSON, 404),  # a program
        (JSON | {"origin": "http://evil.example"}, 403),
        (JSON | {"origin": "null"}, 403),
        (JSON | {"origin": "http://127.0.0.1:9999"}, 403),  # another server of this machine
        (JSON | {"sec-fetch-site": "cross-site"}, 403),
        (JSON | {"sec-fetch-site": "same-site"}, 403),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
    ],
)
@pytest.mark.parametrize("job", ["claim", "counterexample"])
def test_another_site_cannot_start_a_claim(client, crew, headers, status, job):
    path = CLAIM if job == "claim" else f"{CLAIM}/{job}"
    assert client.post(path, headers=headers, content="{}").status_code == status
    assert [asked for asked, _ in crew.asked] == [job] * (status == 404)


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "OPTIONS", "PUT"])
@pytest.mark.parametrize("path", ["/", "/api/view/two_tokens", "/api/runs", "/static/app.js"])
@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "null",
        "https://127.0.0.1:8765",
        "http://127.0.0.1",
        "http://localhost:8765",
        "",
    ],
)
def test_a_foreign_origin_is_refused_whatever_else_is_said(client, crew, method, path, origin):
    others = JSON | {"sec-fetch-site": "same-origin", "sec-fetch-mode": "navigate"}
    reply = client.request(method, path, headers=others | {"origin": origin})
    assert reply.status_code == 403
    two = [*others.items(), ("origin", origin), ("origin", "http://127.0.0.1:8765")]
    assert client.request(method, path, headers=two).status_code == 403
    assert crew.asked == []


def test_our_own_origin_is_answered(client):
    for host in ("127.0.0.1:8765", "localhost:8765"):
        headers = {"host": host, "origin": f"http://{host}", "sec-fetch-site": "same-origin"}
        assert client.get("/api/runs", headers=headers).status_code == 200


def test_requests_at_once_are_bounded(tmp_path, crew):
    app = create_app(tmp_path, crew=crew, limits=Limits(requests=0))
    with TestClient(app, base_url="http://localhost") as client:
        assert client.get("/").status_code == 503


def test_another_site_cannot_start_a_simulation_either(client, crew):
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
    assert client.get("/api/view/two_tokens", headers=headers).status_code == 403
    assert not any(job == "view" for job, _ in crew.asked)
    assert client.get("/", headers=headers).status_code == 200  # a link to the page is fine


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "10.0.0.1:8765"])
def test_another_name_is_refused(client, host):
    assert client.get("/", headers={"host": host}).status_code == 400


@pytest.mark.parametrize("host", ["localhost:8765", "127.0.0.1", "[::1]:8765", "LOCALHOST"])
def test_our_names_are_answered(client, host):
    assert client.get("/", headers={"host": host}).status_code == 200


def test_sizes_are_bounded(client):
    assert client.get("/api/view/two_tokens?p=" + "1" * 3000).status_code == 414
    assert client.post(CLAIM, headers=JSON, content=b" " * 5000).status_code == 413
    assert client.post(CLAIM, headers=JSON, content=iter([b" "])).status_code == 411
    assert client.get("/", headers={"content-length": "-1"}).status_code == 413
    assert client.get("/", headers={"content-length": "9" * 5000}).status_code == 413


def test_a_token_is_asked_for_and_kept_as_a_cookie(tmp_path, crew):
    app = create_app(tmp_path, token="right", hosts=None, crew=crew)
    with TestClient(app, base_url="http://lab:1", follow_redirects=False) as client:
        assert client.get("/").status_code == 401
        assert client.get("/?token=wrong").status_code == 401
        assert client.get("/api/runs?token=right").status_code == 401
        opened = client.get("/?token=right&view=runs")
        assert (opened.status_code, opened.headers["location"]) == (303, "/?view=runs")
        cookie = opened.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert client.get("/").status_code == 200
        client.cookies.clear()
        assert client.get("/", headers={"cookie": "attnflow_token=wrong"}).status_code == 401
        assert client.get("/", headers={"cookie": "a\x01=;;"}).status_code == 401
    with pytest.raises(ValueError, match="token"), TestClient(create_app(tmp_path, hosts=None)):
        pass
