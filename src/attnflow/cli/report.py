"""attnflow report [RUN…]: the ledger and the quick figures, or some runs, as one HTML page."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro
from matplotlib.backends.backend_pdf import PdfPages
from rich.console import Console
from typing_extensions import Doc

from attnflow._checks import can_write
from attnflow.cli.display import warnings_as_lines
from attnflow.cli.parsing import parse_options, refuse_unused
from attnflow.cli.reproduce import render_all
from attnflow.cli.verify import run_all
from attnflow.papers import gallery, ledger
from attnflow.runs.files import whole
from attnflow.runs.filters import listed
from attnflow.runs.store import Store
from attnflow.web import latex, run_report
from attnflow.web.report import Picture, page


@dataclasses.dataclass(frozen=True)
class Options:
    which: Annotated[
        tyro.conf.Positional[tuple[str, ...]],
        Doc("names of runs (or their beginnings) and filters such as rate=0.1; none: the ledger"),
    ] = ()
    out: Annotated[Path, Doc("folder for the pages, the data and the pictures")] = Path("out")
    store: Annotated[Path | None, Doc("folder of the runs, if it is not OUT/runs")] = None
    all: Annotated[bool, Doc("also the figures that take longer than the others")] = False


def run(arguments: list[str]) -> int:
    options = parse_options(
        Options,
        arguments,
        prog="attnflow report",
        description="Verify every claim and draw the quick figures: out/report.html, figures.pdf "
        "and ledger.tex. With names of runs: a page of these runs, out/runs.html.",
    )
    idle = {"all": "without runs"} if options.which else {"store": "with runs"}
    refuse_unused(options, idle)
    can_write("--out", options.out, folder=True)
    return runs(options) if options.which else everything(options)


def runs(options: Options) -> int:
    store = options.store or options.out / "runs"
    if not store.is_dir():
        raise ValueError(f"no runs at {store}: name their folder with --store")
    with warnings_as_lines("report"):
        chosen = listed(Store(store), options.which, verify=True)
    if not chosen:
        raise ValueError(f"no run in {store} passes {' '.join(options.which)}")
    write(options.out / "runs.html", run_report.page(chosen))
    return 0


def everything(options: Options) -> int:
    console = Console()
    console.rule("ledger")
    rows = run_all(ledger.select(), console)
    console.rule("figures")
    figures = chosen_figures(options.all)
    with whole(options.out / "figures.pdf") as draft, PdfPages(draft) as album:
        rendered = render_all(figures, "quick", options.out, album=album)
    done = {each.id: each for each in rendered}
    pictures = [
        Picture(figure.id, figure.title, figure.caption, done[figure.id])
        for figure in figures
        if figure.id in done
    ]
    write(options.out / "ledger.tex", latex.table(rows))
    print(f"all figures: {(options.out / 'figures.pdf').resolve()}")
    write(options.out / "report.html", page(rows, pictures))
    changed = [row.claim.id for row in rows if row.changed]
    if changed:
        print(f"verdicts that differ from the recorded ones: {', '.join(changed)}")
    return 1 if changed or len(done) < len(figures) else 0


def chosen_figures(all_of_them: bool) -> Sequence[gallery.Figure]:
    """Those that can be made here; what is left out is told."""
    known = gallery.select()
    figures = [figure for figure in known if figure.tour or all_of_them]
    if len(figures) < len(known):
        print(f"{len(known) - len(figures)} longer ones are left out: attnflow report --all")
    for figure in figures:
        if figure.missing():
            print(f"{figure.id} is left out: {figure.missing()}")
    return [figure for figure in figures if not figure.missing()]


def write(path: Path, text: str) -> None:
    with whole(path) as draft:
        draft.write_text(text, encoding="utf-8")
    print(f"{path.stem}: {path.resolve()}")
