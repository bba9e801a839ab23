"""attnflow reproduce [PAPER[/FIGURE]]: compute a figure's data and draw it."""

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

import tyro
from typing_extensions import Doc

from attnflow.papers.gallery import select
from attnflow.runs.figures import render


@dataclasses.dataclass(frozen=True)
class Options:
    target: Annotated[tyro.conf.Positional[str], Doc("PAPER or PAPER/FIGURE; all if empty")] = ""
    preset: Annotated[
        Literal["quick", "paper"], Doc("seconds, or the published settings exactly")
    ] = "quick"
    out: Annotated[Path, Doc("folder for data and pictures")] = Path("out/figures")
    fresh: Annotated[bool, Doc("compute again even if data of the same config are there")] = False


def run(arguments: list[str]) -> int:
    options = tyro.cli(
        Options,
        args=arguments,
        prog="attnflow reproduce",
        description="Data (netCDF) and pictures of the figures; data already there are redrawn.",
        config=(tyro.conf.FlagCreatePairsOff,),
    )
    figures = select(options.target)
    for count, figure in enumerate(figures, 1):
        print(f"[{count}/{len(figures)}] {figure.id}: {figure.title} …", flush=True)
        done = render(figure, options.preset, options.out, fresh=options.fresh)
        how = f"computed in {done.seconds:.1f} s" if done.seconds else "redrawn from stored data"
        print(f"      {how}: {done.picture}", flush=True)
    return 0
