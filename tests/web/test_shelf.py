"""What one server leaves for the next."""

import os

from starlette.testclient import TestClient

from attnflow.web import shelf
from attnflow.web.guard import Limits
from attnflow.web.server import REPLIES, Desk, create_app
from attnflow.web.shelf import Shelf


def test_replies_are_found_by_the_next(tmp_path):
    first = Shelf(tmp_path)
    assert first.get("views.json") is None
    first.put("views.json", b"{}")
    assert Shelf(tmp_path).get("views.json") == b"{}"
    assert [path.name for path in first.replies.iterdir()] == ["views.json"]


def test_other_code_finds_nothing_and_old_replies_go(tmp_path, monkeypatch):
    before = Shelf(tmp_path)
    before.put("views.json", b"{}")
    monkeypatch.setattr(shelf, "fingerprint", lambda: "other")
    after = Shelf(tmp_path)
    assert after.get("views.json") is None
    assert not before.replies.exists()


def test_the_fingerprint_is_of_sources_and_versions(tmp_path, monkeypatch):
    (tmp_path / "model.py").write_text("a = 1")
    monkeypatch.setattr(shelf, "PACKAGE", tmp_path)
    seen = [shelf.fingerprint()]
    (tmp_path / "model.py").write_text("a = 12")
    seen.append(shelf.fingerprint())
    os.utime(tmp_path / "model.py", (1, 1))
    seen.append(shelf.fingerprint())
    monkeypatch.setattr(shelf.importlib.metadata, "version", lambda name: "next")
    seen.append(shelf.fingerprint())
    assert len(set(seen)) == 4
    assert shelf.fingerprint() == seen[-1]


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    here = Shelf(tmp_path / "file")
    here.put("views.json", b"{}")
    assert here.get("views.json") is None


def test_the_next_server_answers_without_asking_anyone(tmp_path, crew):
    before = Desk(tmp_path, Limits(), Shelf(tmp_path), crew)
    for job, given in REPLIES:
        before._keep_first(job, given, (200, f'["{job} {given.get("name")}"]'.encode()))
    before._keep_first("view", {"name": "gone", "query": []}, (500, b"wrong"))
    app = create_app(tmp_path, cache=tmp_path, crew=crew)
    with TestClient(app, base_url="http://127.0.0.1:8765") as client:
        assert client.get("/api/views").json() == ["views None"]
        assert client.get("/api/view/routing").json() == ["view routing"]
        assert crew.asked == []
        assert client.get("/api/view/routing?nothing=5").status_code == 400
    assert [job for job, _ in crew.asked] == ["view"]
