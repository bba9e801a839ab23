"""The written pages speak of everything that exists, and of nothing else; their code runs."""

import importlib
import inspect
import re
import shlex
import subprocess
import sys
import types
from pathlib import Path
from typing import NamedTuple

import pytest

from attnflow import cli
from attnflow.attention import registry
from attnflow.papers import gallery, ledger, papers_with

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
MARK = "not run: "
CODE = re.compile(
    r"(?:^<!-- (?P<mark>[^\n]*) -->\n)?^```(?P<language>python|console)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
MAIN = 'if __name__ == "__main__":'
SECTIONS = {
    "What holds": "holds",
    "What holds in another form": "holds_corrected",
    "What does not hold": "refuted",
}


class Block(NamedTuple):
    """`mark`: the comment just before it: why it is not run."""

    language: str
    code: str
    line: int
    mark: str

    @property
    def left_out(self) -> bool:
        return self.mark.startswith(MARK)


def blocks(path: Path) -> list[Block]:
    text = path.read_text(encoding="utf-8")
    found = []
    for each in CODE.finditer(text):
        mark = each["mark"] or unwritten_mark(path, each["code"])
        line = text.count("\n", 0, each.start("code"))
        found.append(Block(each["language"], each["code"], line, mark))
    return found


def unwritten_mark(path: Path, code: str) -> str:
    """README.md is read as plain text: it says nothing of tests."""
    own = path.name == "README.md" and "with watch(model" in code
    return MARK + "a training loop that its reader has" if own else ""


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def of_page(path: Path) -> types.ModuleType:
    return types.ModuleType("page_" + re.sub(r"\W", "_", named(path)))


def with_code() -> list[Path]:
    return [path for path in PAGES if any(not block.left_out for block in blocks(path))]


@pytest.mark.parametrize("path", [pytest.param(path, id=named(path)) for path in with_code()])
def test_the_code_of_a_page_runs(path, monkeypatch, tmp_path):
    """Block after block in one namespace, which is a module so that dataclasses find themselves."""
    if "torch" in path.read_text(encoding="utf-8"):
        pytest.importorskip("transformers", reason="the extra [torch] is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    page = of_page(path)
    monkeypatch.setitem(sys.modules, page.__name__, page)
    for block in blocks(path):
        if block.left_out:
            continue
        if block.language == "console":
            for line in block.code.splitlines():
                if line.startswith("$ attnflow "):
                    assert cli.main(shlex.split(line)[2:]) == 0, line
        else:
            code = "\n" * block.line + block.code  # so that a traceback names the page's own line
            exec(compile(code, str(path), "exec"), vars(page))


def test_scripts_of_the_pages_run_in_a_process_of_their_own(tmp_path):
    """What stands behind `if __name__ == "__main__"` starts workers, which import the script."""
    scripts = [each.code for path in PAGES for each in blocks(path) if MAIN in each.code]
    assert scripts
    for number, code in enumerate(scripts):
        script = tmp_path / f"script_{number}.py"
        script.write_text(code, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, script], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert "runs done" in done.stdout


def test_every_block_is_seen_and_every_mark_is_known():
    for path in PAGES:
        text, found = path.read_text(encoding="utf-8"), blocks(path)
        assert len(found) == len(re.findall(r"^\s*```(?:python|console)", text, re.MULTILINE))
        for block in found:
            assert not block.mark or block.mark.startswith(MARK), f"{named(path)}: {block.mark}"


def test_commands_that_the_pages_name_exist():
    for path in PAGES:
        for name in re.findall(r"[`$] ?attnflow (\w+)", path.read_text(encoding="utf-8")):
            assert name in cli.COMMANDS, f"{named(path)} names attnflow {name}"


def test_claims_and_figures_that_the_pages_name_exist():
    known = {claim.id for claim in ledger.select()} | {figure.id for figure in gallery.select()}
    papers = "|".join(sorted({name.split("/")[0] for name in known}))
    for path in PAGES:
        text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        for name in re.findall(rf"`(?:attnflow \w+ )?((?:{papers})/[^`\s]+)", text):
            assert name in known, f"{named(path)} names {name}"


def test_pages_of_papers_tell_the_recorded_verdicts():
    """Each claim stands in the section of its verdict."""
    recorded = {claim.id: claim.recorded for claim in ledger.select()}
    for name in papers_with("claims"):
        path = DOCS / "papers" / f"{name}.md"
        parts = re.split(r"^## (.*)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        sections = dict(zip(parts[1::2], parts[2::2], strict=True))
        for title, verdict in SECTIONS.items():
            told = re.findall(rf"\(`({name}/[^`]+)`\)", sections[title])
            assert told, f"{path.name} names no claim under {title}"
            for claim in told:
                assert recorded[claim] == verdict, f"{path.name}: {claim} under {title}"


def test_the_ledger_page_lists_every_claim_with_its_recorded_verdict():
    page = (DOCS / "ledger.md").read_text()
    rows = dict(re.findall(r"^\| `([^`]+)`.*\| (\S[^|]*) \| [^|]+ \|$", page, re.MULTILINE))
    told = {
        name: verdict.split("<br>")[0].strip("* ").replace(", ", "_").replace(" ", "_")
        for name, verdict in rows.items()
    }
    recorded = {claim.id: claim.recorded for claim in ledger.select()}
    assert told == recorded


def test_the_gallery_page_shows_every_figure():
    page = (DOCS / "gallery.md").read_text()
    for figure in gallery.select():
        assert f"## {figure.id}: {figure.title}" in page, "run make docs"


def test_links_of_the_written_pages_arrive():
    for path in [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
            if not target.startswith("http"):
                assert (path.parent / target).exists(), f"{path.name} points to {target}"


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_has_every_public_name(tmp_path):
    pytest.importorskip("myst_parser", reason="the extra [docs] is not installed")
    pytest.importorskip("transformers", reason="the extra [torch] is not installed")
    build = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    done = subprocess.run([*build, DOCS, tmp_path / "site"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pages = (tmp_path / "site" / "reference").glob("*.html")
    known = set(re.findall(r'id="([\w.]+)"', " ".join(page.read_text("utf-8") for page in pages)))
    for name in ("attnflow", "attnflow.instruments", "attnflow.runs", "attnflow.torch"):
        module = importlib.import_module(name)
        for each in module.__all__:
            if inspect.isclass(found := getattr(module, each)) or inspect.isfunction(found):
                assert f"{name}.{each}" in known, f"{name}.{each} is not in docs/reference"
