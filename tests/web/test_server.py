"""The HTTP interface: what it answers, and above all what it refuses."""

import asyncio
import dataclasses
import json

import numpy as np
import pytest
import xarray as xr
from starlette.testclient import TestClient

from attnflow.papers.style import COLORS
from attnflow.runs import Store
from attnflow.runs.status import Announcement
from attnflow.web import plotly_js, views
from attnflow.web.crew import Overrun
from attnflow.web.guard import Limits
from attnflow.web.line import Busy, Superseded
from attnflow.web.progress import Watch, events
from attnflow.web.server import STATIC, VIEWS, create_app
from attnflow.web.work import encoded, perform


@dataclasses.dataclass(frozen=True)
class Trial:
    seed: int = 0
    how: str = ""


def trial(seed=0):
    loss = np.linspace(1, 0, 700) + seed
    return xr.Dataset({"loss": ("step", loss)}, {"step": np.arange(700)})


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path / "runs")
    for seed in range(3):
        store.add(Trial(seed), trial(seed), experiment="<script>alert(1)</script>")
    store.add_failure(Trial(9), "Traceback\nValueError: <b>no</b>")
    return store


def test_the_page_and_all_it_loads_are_ours(client):
    page = client.get("/")
    assert page.status_code == 200
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "http" not in page.text.replace("http-equiv", "")
    for name in sorted(path.name for path in STATIC.glob("*.js")):
        found = client.get(f"/static/{name}")
        assert found.headers["content-type"].startswith("text/javascript")
        assert found.headers["x-content-type-options"] == "nosniff"
        assert "innerHTML" not in found.text
    assert client.get("/static/explorer.css").status_code == 200


def test_plotly_comes_from_its_package_once(client):
    found = client.get("/plotly.js")
    assert len(found.content) > 10**6
    again = client.get("/plotly.js", headers={"if-none-match": found.headers["etag"]})
    assert again.status_code == 304
    assert plotly_js.policy().count("sha256-") == 2  # the empty style, and that of its maps


def test_the_page_has_the_colours_of_the_figures_and_every_view():
    assert json.dumps(COLORS).strip("[]") in (STATIC / "plot.js").read_text()
    page = (STATIC / "explorer.html").read_text()
    assert VIEWS == views.NAMES
    assert all(f'href="?view={name}"' in page for name in (*VIEWS, "ledger", "runs"))


def test_forms_come_from_the_dataclasses(client):
    forms = {view["name"]: view for view in client.get("/api/views").json()["views"]}
    assert list(forms) == list(views.NAMES)
    fields = {field["name"]: field for field in forms["two_tokens"]["fields"]}
    assert fields["p"]["help"] == "inner product of the two unit tokens, in (-1, 1)"
    assert fields["p"]["default"] == 0.0
    assert fields["d"]["whole"]
    assert "loss" in {field["name"] for field in forms["polarization"]["fields"]}  # as the CLI


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("p=1", "p"),
        ("p=nan", "p"),
        ("p=1e400", "p"),
        ("p=abc", "p"),
        ("p=", "p"),
        ("d=2.5", "d"),
        ("d=-1", "d"),
        ("objective=entropy", "objective"),
        ("p=0&p=0", "p"),
        ("q=1", None),
    ],
)
def test_a_bad_value_is_refused_by_the_name_of_its_field(client, query, field):
    reply = client.get(f"/api/view/two_tokens?{query}")
    assert reply.status_code == 400
    assert reply.json()["field"] == field
    assert reply.json()["error"]


def test_an_error_of_the_model_is_beside_its_field(client):
    reply = client.get("/api/view/specialization?features=3")  # a flipping spike has two
    assert (reply.status_code, reply.json()["field"]) == (400, "features")
    reply = client.get("/api/view/specialization?heads=2&pruned=0,1")
    assert (reply.status_code, reply.json()["field"]) == (400, "pruned")


def test_equal_questions_are_computed_once(client, crew, monkeypatch):
    view = views.get("two_tokens")
    monkeypatch.setattr(views, "get", lambda name: dataclasses.replace(view, compute=empty))
    for query in ("p=0.5&d=3", "d=3&p=0.5", "d=3&p=0.5"):
        assert client.get(f"/api/view/two_tokens?{query}").status_code == 200
    assert sum(job == "view" for job, _ in crew.asked) == 1


def empty(values):
    from attnflow.web.answers import Answer

    return Answer([], [], "", "")


@pytest.mark.parametrize(
    "path",
    [
        "/static/../server.py",
        "/static/..%2fserver.py",
        "/static/%2e%2e/server.py",
        "/static//etc/passwd",
        "/report/..%2f..%2fsecret.html",
        "/report/%2e%2e%2fsecret.html",
        "/api/runs/..",
        "/api/runs/..%2fother",
        "/api/runs/%2fetc",
        "/api/runs/.failed",
    ],
)
def test_no_path_leaves_the_store(client, store, tmp_path, path):
    (tmp_path / "secret.html").write_text("secret")
    other = tmp_path / "other"
    other.mkdir()
    (other / "DONE").write_text("{}")
    reply = client.get(path)
    assert reply.status_code == 404
    assert "secret" not in reply.text


def test_a_link_in_the_store_is_not_followed(client, store, tmp_path):
    (tmp_path / "secret.html").write_text("secret")
    (store.root / "link.html").symlink_to(tmp_path / "secret.html")
    (store.root / "gpt.html").write_text("<h1>diagnosis</h1>")
    assert client.get("/api/runs").json()["reports"] == ["gpt.html"]
    assert client.get("/report/link.html").status_code == 404
    report = client.get("/report/gpt.html")
    assert report.text == "<h1>diagnosis</h1>"
    assert report.headers["content-security-policy"].startswith("sandbox; default-src 'none'")


def test_runs_are_listed_filtered_and_shown(client, store):
    found = client.get("/api/runs").json()
    assert found["total"] == 3
    assert found["columns"] == ["seed"]
    assert found["failed"]["runs"][0]["why"] == "ValueError: <b>no</b>"
    few = client.get("/api/runs", params={"filter": "seed>=1"}).json()["runs"]
    assert sorted(run["config"]["seed"] for run in few) == [1, 2]
    bad = client.get("/api/runs", params={"filter": "sed>=1"})
    assert (bad.status_code, bad.json()["field"]) == (400, "filter")
    run = client.get(f"/api/runs/{few[0]['name']}").json()
    assert run["experiment"] == "<script>alert(1)</script>"  # JSON, never markup
    assert len(run["scalars"]["loss"]) == 500
    assert run["scalars"]["loss"][-1] == few[0]["config"]["seed"]


def test_runs_come_in_pages(client, store):
    seen = []
    for page in (1, 2, 3):
        found = client.get("/api/runs", params={"size": 1, "page": page}).json()
        assert {x: found[x] for x in ("total", "page", "pages", "size")} == {
            "total": 3,
            "page": page,
            "pages": 3,
            "size": 1,
        }
        seen += [run["name"] for run in found["runs"]]
    assert sorted(seen) == sorted(run.name for run in store)
    assert client.get("/api/runs", params={"size": 2, "page": 99}).json()["page"] == 2  # the last
    for seed in range(10, 13):
        store.add_failure(Trial(seed), "Traceback\nValueError: no")
    failed = client.get("/api/runs", params={"size": 3, "failed": 2}).json()["failed"]
    assert (failed["total"], failed["pages"], len(failed["runs"])) == (4, 2, 1)


@pytest.mark.parametrize("name", ["page", "size", "failed"])
@pytest.mark.parametrize("text", ["0", "-1", "x", "", "1.5", "1e3", "٣", "9" * 30])
def test_pages_that_cannot_be(client, store, name, text):
    reply = client.get("/api/runs", params={name: text})
    assert (reply.status_code, reply.json()["field"]) == (400, name)
    assert f"{name} must be a whole number from 1" in reply.json()["error"]


def test_columns_can_be_chosen(client, store):
    found = client.get("/api/runs", params={"column": ["how", "seed", "how"]}).json()
    assert found["columns"] == ["how", "seed"]
    assert sorted(found["fields"]) == ["how", "seed"]
    assert {run["config"]["how"] for run in found["runs"]} == {""}
    bad = client.get("/api/runs", params={"column": "hwo"})
    assert (bad.status_code, bad.json()["field"]) == (400, "columns")
    assert "did you mean 'how'" in bad.json()["error"]


def test_a_run_that_is_left_out_is_named(client, store):
    run = next(iter(store))
    (run.path / "config.json").write_text("{")
    found = client.get("/api/runs").json()
    assert found["total"] == 2
    assert any(run.name in note for note in found["notes"])


def test_a_damaged_run_is_said_to_be_damaged(client, store):
    run = next(iter(store))
    (run.path / "scalars.parquet").write_bytes(b"")
    reply = client.get(f"/api/runs/{run.name}")
    assert reply.status_code == 422
    assert "damaged" in reply.json()["error"]


def test_an_empty_store_is_no_error(client):
    assert client.get("/api/runs").json()["total"] == 0


JSON = {"content-type": "application/json"}


class Refusing:
    def __init__(self, error):
        self.error = error

    def start(self):
        pass

    async def stop(self):
        pass

    async def ask(self, job, given, **how):
        raise self.error


@pytest.mark.parametrize(
    ("error", "status"),
    [(Busy(), 429), (Superseded(), 409), (Overrun(), 503), (RuntimeError("it died"), 503)],
)
def test_what_cannot_be_done_now_is_said(tmp_path, error, status):
    app = create_app(tmp_path, crew=Refusing(error))
    with TestClient(app, base_url="http://localhost") as client:
        reply = client.get("/api/view/two_tokens")
    assert reply.status_code == status
    assert reply.json()["error"]


def test_replies_that_are_kept_are_bounded(tmp_path, crew, monkeypatch):
    view = views.get("two_tokens")
    monkeypatch.setattr(views, "get", lambda name: dataclasses.replace(view, compute=empty))
    app = create_app(tmp_path, limits=Limits(cached=3), crew=crew)
    with TestClient(app, base_url="http://localhost") as client:
        for c0 in [1, 2, 3, 4, 5, 1]:
            client.get(f"/api/view/two_tokens?c0={c0}")
    assert sum(job == "view" for job, _ in crew.asked) == 6


def test_progress_counts_what_is_in_the_store(store):
    watch = Watch(store.root)
    assert watch.look() == {"done": 3, "failed": 1, "sweeps": []}
    store.remove(next(iter(store)))
    for rest in (".new-x", ".work"):  # of a sweep that was killed
        (store.root / rest).mkdir()
    (store.root / ".work" / "x.npz").touch()
    assert watch.look() == {"done": 2, "failed": 1, "sweeps": []}
    assert Watch(store.root / "nowhere").look()["done"] == 0


def test_progress_tells_how_far_sweeps_are(store, monkeypatch):
    monkeypatch.setattr("attnflow.runs.status.EVERY", 0.0)
    with Announcement(store.root, "walk", 400) as sweep:
        (told,) = Watch(store.root).look()["sweeps"]
        assert told == {
            "experiment": "walk",
            "total": 400,
            "done": 0,
            "failed": 0,
            "seconds_left": None,
        }
        begun = sweep.status.begun
        monkeypatch.setattr("attnflow.runs.status.time.time", lambda: begun + 61)
        sweep.update(done=120, failed=2)
        (told,) = Watch(store.root).look()["sweeps"]
        assert (told["done"], told["failed"], told["seconds_left"]) == (120, 2, 139)
    assert Watch(store.root).look()["sweeps"] == []


def test_progress_is_told_when_it_changes(store):
    async def two():
        stream = events(store.root)
        first = await anext(stream)
        store.add(Trial(7), trial())
        second = await anext(stream)
        return [json.loads(text.removeprefix("data: "))["done"] for text in (first, second)]

    assert asyncio.run(two()) == [3, 4]


def test_numbers_beyond_json_are_written():
    content = {"seed": 2**70, "loss": [1.0, float("nan"), float("inf")]}
    assert json.loads(encoded(content)) == {"seed": 2**70, "loss": [1.0, None, None]}
    assert json.loads(encoded({"x": np.array([0.5, np.nan])})) == {"x": [0.5, None]}


def test_the_ledger_is_there_without_running_anything(client):
    claims = {claim["id"]: claim for claim in client.get("/api/ledger").json()["claims"]}
    row = claims["polarization/theorem-3.3b"]
    assert row["verdict"] == "holds"
    assert "s_j/s_0" in row["statement"]
    assert all(claim["finding"] for claim in claims.values() if claim["slow"])


def test_a_claim_is_run(client):
    row = client.post("/api/ledger/conditioning/lemma-1", headers=JSON, content="{}").json()
    assert (row["verdict"], row["recorded"]) == ("holds", "holds")
    assert row["cases"] > 0


def test_a_counterexample_is_run(client):
    path = "/api/ledger/polarization/lemma-b.1b-proof/counterexample"
    reply = client.post(path, headers=JSON, content="{}").json()
    assert "False" in reply["printed"]
    assert "usage" in perform("attnflow --help").stdout


def test_a_counterexample_that_takes_too_long_or_fails_is_told(client, monkeypatch):
    path = "/api/ledger/polarization/lemma-b.1b-proof/counterexample"
    monkeypatch.setattr("attnflow.web.work.LINE_SECONDS", 0.001)
    reply = client.post(path, headers=JSON, content="{}")
    assert (reply.status_code, "longer" in reply.json()["error"]) == (422, True)
    monkeypatch.setattr("attnflow.web.work.LINE_SECONDS", 60)
    monkeypatch.setattr("sys.executable", "/bin/false")
    reply = client.post(path, headers=JSON, content="{}")
    assert (reply.status_code, "failed" in reply.json()["error"]) == (422, True)


def test_only_counterexamples_of_claims_are_run(client):
    for name, status in (("conditioning/lemma-1", 422), ("nothing/here", 404)):
        reply = client.post(f"/api/ledger/{name}/counterexample", headers=JSON, content="{}")
        assert reply.status_code == status
    assert client.get("/api/ledger/conditioning/lemma-1/counterexample").status_code == 405
    with pytest.raises(ValueError, match="neither Python nor attnflow"):
        perform("rm -rf nothing")


def test_a_slow_claim_is_not(client):
    slow = [x["id"] for x in client.get("/api/ledger").json()["claims"] if x["slow"]]
    reply = client.post(f"/api/ledger/{slow[0]}", headers=JSON, content="{}")
    assert reply.status_code == 422
    assert "--slow" in reply.json()["error"]
