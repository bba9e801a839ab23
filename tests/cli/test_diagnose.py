"""attnflow diagnose, from folder to page."""

import json
import re

import pytest

torch = pytest.importorskip("torch", reason="the extra [torch] is not installed")
pytest.importorskip("transformers", reason="the extra [torch] is not installed")

from attnflow.cli import main  # noqa: E402
from tests.torch import zoo  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("models")
    zoo.build("llama").save_pretrained(place / "tiny & <b>bold")
    for step in (10, 20, 30):
        zoo.build("llama", seed=step).save_pretrained(place / "run" / f"checkpoint-{step}")
    (place / "run" / "checkpoint-40").mkdir()
    return place


SMALL = ["--sequences", "2", "--length", "32"]


@pytest.fixture(autouse=True)
def _no_data(monkeypatch):
    monkeypatch.delenv("ATTNFLOW_DATA", raising=False)


def test_page_and_numbers(folder, tmp_path, capsys):
    out = tmp_path / "page.html"
    assert main(["diagnose", str(folder / "tiny & <b>bold"), "--out", str(out), *SMALL]) == 0
    told = capsys.readouterr().out
    assert "LlamaForCausalLM" in told
    assert "2 × 32 random tokens" in told
    assert "note: random tokens say little" in told
    page = out.read_text()
    assert "tiny &amp; &lt;b&gt;bold" in page
    assert "<b>bold" not in page
    assert re.findall(r"https?://", page) == []
    assert page.count("data:image/png;base64,") == 2
    numbers = json.loads(out.with_suffix(".json").read_text())
    assert numbers["about"]["heads"] == 8
    assert numbers["measured_on"] == "2 × 32 random tokens"
    assert "dates" not in numbers


def test_checkpoints_give_dates(folder, tmp_path, capsys):
    out = tmp_path / "page.html"
    source = folder / "run" / "checkpoint-30"
    arguments = ["--checkpoints", str(folder / "run"), "--out", str(out), *SMALL]
    assert main(["diagnose", str(source), *arguments]) == 0
    assert "checkpoint 3 of 3: checkpoint-30" in capsys.readouterr().out
    numbers = json.loads(out.with_suffix(".json").read_text())
    assert next(phase[1] for phase in numbers["dates"]["phases"]["0"]) == 10
    page = out.read_text()
    assert "When it happened" in page
    assert "skipped checkpoint" in page
    assert page.count("data:image/png;base64,") == 3


def test_bad_input(folder, tmp_path, capsys):
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "model.pkl").write_bytes(b"\x80\x04N.")
    model = str(folder / "run" / "checkpoint-10")
    for arguments, message in [
        ([str(tmp_path / "absent")], "there is no such folder"),
        ([str(tmp_path / "model.pkl")], "pickle"),
        ([str(tmp_path)], "config.json"),
        ([model, "--text", str(tmp_path / "empty.txt")], "has no tokenizer"),
        ([model, "--out", "page.pdf"], "must end in .html"),
        ([model, "--sink", "7"], "sink must lie in"),
        ([model, "--checkpoints", str(tmp_path)], "holds no checkpoints"),
        ([model, "--rows", "0"], "rows must be"),
    ]:
        assert (
            main(
                ["diagnose", *arguments, "--out", str(tmp_path / "x.html")]
                if "--out" not in arguments
                else ["diagnose", *arguments]
            )
            == 2
        ), arguments
        told = capsys.readouterr().err
        assert told.startswith("attnflow diagnose: ")
        assert message in told, told
    assert not (tmp_path / "x.html").exists()
