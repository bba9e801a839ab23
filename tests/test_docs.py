"""The written pages speak of everything that exists, and of nothing else."""

import re
from pathlib import Path

from attnflow.papers import gallery, ledger

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


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
    for path in [*ROOT.glob("*.md"), *DOCS.glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
            if not target.startswith("http"):
                assert (path.parent / target).exists(), f"{path.name} points to {target}"
