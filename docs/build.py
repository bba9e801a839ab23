"""Writes docs/ledger.md and docs/gallery.md, with pictures, from the ledger and the gallery.

    python docs/build.py [OUT] [--new]

Data of figures are kept in OUT (out), and not computed again. --new: only those without a picture.
"""

import shutil
import sys
from pathlib import Path

from rich.console import Console

from attnflow.cli.reproduce import render_all
from attnflow.cli.verify import run_all
from attnflow.papers import gallery, ledger
from attnflow.runs.text import brief

HERE = Path(__file__).parent
VERDICTS = {
    "holds": "holds",
    "holds_corrected": "**holds, corrected**",
    "refuted": "**refuted**",
    "not_checkable": "not checkable",
}


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def dated(row: ledger.Row) -> str:
    return f"<br>on {row.stored}" if row.stored else ""


def ledger_page(rows: list[ledger.Row]) -> str:
    lines = [
        "# The ledger",
        "",
        "Written by `make docs` from a run of `attnflow verify`. One row a statement, in our own",
        "words; `attnflow verify PAPER/CLAIM` runs it again. The margin is the worst relative",
        "error of an identity, the worst slack of an inequality, or how far a fit is off.",
    ]
    for paper in dict.fromkeys(row.claim.paper for row in rows):
        own = [row for row in rows if row.claim.paper == paper]
        lines += ["", f"## {paper}", "", "| claim | statement | verdict | margin |"]
        lines += ["| --- | --- | --- | --- |"]
        for row in own:
            given = f" *Given: {row.claim.hypotheses.rstrip('.')}.*" if row.claim.hypotheses else ""
            lines.append(
                f"| `{row.claim.id}`<br>{cell(row.claim.where)} "
                f"| {cell(row.claim.statement)}{cell(given)} "
                f"| {VERDICTS[row.finding.verdict]}{dated(row)} | {row.finding.margin:.2g} |"
            )
        lines += ["", f"### Errata of {paper}", ""]
        for row in own:
            if row.finding.verdict not in ("holds_corrected", "refuted"):
                continue
            lines.append(f"- `{row.claim.id}` ({row.claim.where}), {row.finding.verdict}.")
            if row.finding.correction:
                lines[-1] += f" True is: {row.finding.correction}"
            facts = dict(row.finding.counterexample or {})
            command = facts.pop("run", None)
            if facts:
                lines.append(f"  Counterexample: {brief(facts)}.")
            if command:
                lines.append(f"  See it: `{command}`")
    return "\n".join([*lines, ""])


def section(figure: gallery.Figure, image: str) -> list[str]:
    return [
        "",
        f"## {figure.id}: {figure.title}",
        "",
        f"![{figure.title}](images/{image})",
        "",
        figure.caption,
        "",
        f"`attnflow reproduce {figure.id} --preset paper` for the published setting.",
    ]


def gallery_page(out: Path, new: bool) -> str:
    lines = [
        "# The gallery",
        "",
        "Written by `make docs`: every figure of the quick preset, drawn by",
        "`attnflow reproduce PAPER/FIGURE`.",
    ]
    images = HERE / "images"
    images.mkdir(exist_ok=True)
    figures = gallery.select()
    lacking = [f"{figure.id}: {figure.missing()}" for figure in figures if figure.missing()]
    if lacking:
        raise SystemExit("\n".join(lacking))
    names = {figure.id: f"{figure.paper}-{figure.name}.png" for figure in figures}
    wanted = [each for each in figures if not (new and (images / names[each.id]).exists())]
    for done in render_all(wanted, "quick", out):
        shutil.copyfile(done.picture, images / names[done.id])
    for figure in figures:
        if not (images / names[figure.id]).exists():
            raise SystemExit(f"{figure.id} has no picture")
        lines += section(figure, names[figure.id])
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    given = [each for each in sys.argv[1:] if each != "--new"]
    kept = Path(given[0]) if given else HERE.parent / "out"
    (HERE / "ledger.md").write_text(ledger_page(run_all(ledger.select(), Console())))
    (HERE / "gallery.md").write_text(gallery_page(kept, "--new" in sys.argv))
