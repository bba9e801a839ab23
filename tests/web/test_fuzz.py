"""Whatever is sent to the server, it is an answer or a refusal, and never an error of ours."""

import dataclasses
import json
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attnflow.web import views
from attnflow.web.answers import Answer

SETTINGS = settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
NAMES = sorted({field.name for name in views.NAMES for field in views.get(name).fields})
word = st.one_of(
    st.text(max_size=30),
    st.sampled_from(["..", "%2e%2e", "<script>", "\x00", "-0", "1e308", "nan", "٣", "1_0", "0x1"]),
    st.floats().map(repr),
    st.integers().map(str),
    st.lists(st.integers(-2, 9).map(str), max_size=7).map(",".join),
)
place = st.one_of(
    st.sampled_from(["/", "/api/views", "/api/ledger", "/api/runs", "/plotly.js", "/nowhere"]),
    st.builds("/api/view/{}".format, st.one_of(st.sampled_from(views.NAMES), word.map(quote))),
    st.builds("/{}/{}".format, st.sampled_from(["static", "report", "api/runs"]), word.map(quote)),
    st.builds("/api/ledger/routing/{}".format, word.map(quote)),
    st.builds("/api/ledger/routing/{}/counterexample".format, word.map(quote)),
    word.map(lambda x: "/" + quote(x)),
)
query = st.lists(
    st.tuples(st.one_of(st.sampled_from([*NAMES, "filter", "token"]), word), word), max_size=4
)
headers = st.dictionaries(
    st.sampled_from(["content-type", "origin", "sec-fetch-site", "cookie", "if-none-match"]),
    st.one_of(st.sampled_from(["application/json", "none"]), st.text("ab=;,/\"'", max_size=20)),
)


@pytest.fixture
def cheap(monkeypatch):
    """The views with all their checks of values, and without what they compute."""
    known = {name: views.get(name) for name in views.NAMES}

    def get(name):
        return dataclasses.replace(known[name], compute=lambda values: Answer([], [], "", ""))

    monkeypatch.setattr(views, "get", get)


@SETTINGS
@given(
    method=st.sampled_from(["GET", "GET", "GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"]),
    place=place,
    query=query,
    headers=headers,
    body=st.binary(max_size=50),
)
def test_never_an_error_of_ours(client, cheap, method, place, query, headers, body):
    content = body if method in ("POST", "PUT") else None
    try:
        reply = client.request(method, place, params=query, headers=headers, content=content)
    except UnicodeEncodeError:
        return  # no client can send that
    assert reply.status_code < 500, reply.text
    assert "content-security-policy" in reply.headers
    if reply.status_code == 400 and method != "HEAD":
        assert json.loads(reply.text)["error"]


@SETTINGS
@given(view=st.sampled_from(views.NAMES), data=st.data())
def test_a_value_is_taken_or_its_field_is_named(client, cheap, view, data):
    field = data.draw(st.sampled_from(views.get(view).fields))
    text = data.draw(word)
    try:
        reply = client.get(f"/api/view/{view}", params={field.name: text})
    except UnicodeEncodeError:
        return
    if reply.status_code != 200:
        assert reply.status_code == 400
        assert reply.json()["field"] == field.name
