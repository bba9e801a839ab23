"""attnflow reproduce [PAPER[/FIGURE]]: compute a figure's data and draw it."""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import tyro
import xarray as xr
from typing_extensions import Doc

from attnflow._checks import at_least
from attnflow.papers.gallery import Figure, select
from attnflow.runs.figures import NAME, FigureConfig, Rendered, config_of, drawn
from attnflow.runs.store import Store
from attnflow.runs.sweep import Experiment, plan, sweep


@dataclasses.dataclass(frozen=True)
class Options:
    target: Annotated[tyro.conf.Positional[str], Doc("PAPER or PAPER/FIGURE; all if empty")] = ""
    preset: Annotated[
        Literal["quick", "paper"], Doc("seconds, or the published settings exactly")
    ] = "quick"
    out: Annotated[Path, Doc("folder: pictures in its figures/, data in its runs/")] = Path("out")
    fresh: Annotated[bool, Doc("compute again even if data of the same config are there")] = False
    resume: Annotated[
        bool, Doc("go on where an interrupted call stopped (it always does, unless --fresh)")
    ] = False
    engine: Annotated[
        Literal["local", "here", "ray"], Doc("processes of this machine, this process, or Ray")
    ] = "local"
    workers: Annotated[int | None, Doc("processes (local), or cores of a new Ray cluster")] = None
    address: Annotated[str | None, Doc("ray: auto or HOST:PORT of a running cluster")] = None
    dry_run: Annotated[bool, Doc("count, time one and stop")] = False


def compute(config: FigureConfig) -> xr.Dataset:
    (figure,) = select(config.figure)
    return figure.compute(config.settings)


FIGURES = Experiment(NAME, compute)


def run(arguments: list[str]) -> int:
    options = tyro.cli(
        Options,
        args=arguments,
        prog="attnflow reproduce",
        description="Data (netCDF) and pictures of the figures; data already there are redrawn.",
        config=(tyro.conf.FlagCreatePairsOff,),
    )
    if options.workers is not None:
        at_least("workers", options.workers, 1)
    figures = select(options.target)
    if options.dry_run:
        configs = [config_of(figure, options.preset) for figure in figures]
        print(plan(configs, FIGURES, Store(options.out / "runs")))
        return 0
    done = render_all(
        figures,
        options.preset,
        options.out,
        fresh=options.fresh,
        engine=options.engine,
        workers=options.workers,
        address=options.address,
    )
    return 0 if len(done) == len(figures) else 1


def render_all(
    figures: Sequence[Figure],
    preset: str,
    out: Path,
    *,
    fresh: bool = False,
    engine: str = "local",
    workers: int | None = None,
    address: str | None = None,
) -> list[Rendered]:
    """Every figure, told as it is done and returned in order; without those that failed."""
    store = Store(out / "runs")
    by_config = {config_of(figure, preset): figure for figure in figures}
    done: dict[str, Rendered] = {}

    def draw(config: FigureConfig, seconds: float) -> None:
        run, figure = store.find(config, NAME), by_config[config]
        if run is not None:
            done[figure.id] = drawn(figure, preset, run, out, seconds)
            _tell(done[figure.id], len(done), len(figures))

    engine = "here" if len(figures) == 1 and engine == "local" else engine
    print(f"{len(figures)} figure{'s' * (len(figures) > 1)} …", flush=True)
    report = sweep(
        list(by_config),
        FIGURES,
        store,
        engine=engine,
        workers=workers,
        address=address,
        fresh=fresh,
        progress=False,
        each=draw,
    )
    if report.stopped:
        raise KeyboardInterrupt
    for config, figure in by_config.items():
        if figure.id not in done:
            draw(config, 0.0)
    for why in report.failed.values():
        print(why, file=sys.stderr)
    return [done[figure.id] for figure in figures if figure.id in done]


def _tell(done: Rendered, count: int, total: int) -> None:
    how = f"computed in {done.seconds:.1f} s" if done.seconds else "redrawn from stored data"
    place = f"[{count}/{total}] " if total > 1 else ""
    print(f"{place}{done.id}: {how}: {done.picture}", flush=True)
