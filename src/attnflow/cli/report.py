"""attnflow report: the whole ledger and the quick figures as one HTML page."""

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from typing_extensions import Doc

from attnflow.cli.reproduce import render_all
from attnflow.cli.verify import run_all
from attnflow.papers import gallery, ledger
from attnflow.runs.files import whole
from attnflow.web.report import Picture, page


@dataclasses.dataclass(frozen=True)
class Options:
    out: Annotated[Path, Doc("folder for the page, the data and the pictures")] = Path("out")
    all: Annotated[bool, Doc("also the figures that take longer than the others")] = False


def run(arguments: list[str]) -> int:
    options = tyro.cli(
        Options,
        args=arguments,
        prog="attnflow report",
        config=(tyro.conf.FlagCreatePairsOff,),
        description="Verify every claim, draw the quick figures, write out/report.html.",
    )
    console = Console()
    console.rule("ledger")
    rows = run_all(ledger.select(), console)
    console.rule("figures")
    everything = gallery.select()
    figures = [figure for figure in everything if figure.tour or options.all]
    if len(figures) < len(everything):
        print(f"{len(everything) - len(figures)} longer ones are left out: attnflow report --all")
    for figure in figures:
        if figure.missing():
            print(f"{figure.id} is left out: {figure.missing()}")
    figures = [figure for figure in figures if not figure.missing()]
    rendered = render_all(figures, "quick", options.out)
    pictures = [
        Picture(figure.id, figure.title, figure.caption, done)
        for figure, done in zip(figures, rendered, strict=True)
    ]
    target = options.out / "report.html"
    with whole(target) as draft:
        draft.write_text(page(rows, pictures), encoding="utf-8")
    changed = [row.claim.id for row in rows if row.changed]
    print(f"report: {target.resolve()}")
    if changed:
        print(f"verdicts that differ from the recorded ones: {', '.join(changed)}")
    return 1 if changed else 0
