"""attnflow reproduce [PAPER[/FIGURE]]: compute a figure's data and draw it."""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
import xarray as xr
from typing_extensions import Doc

from attnflow._checks import at_least, can_write
from attnflow.cli.parsing import parse_options, refuse_unused
from attnflow.papers.gallery import Figure, select
from attnflow.papers.trials import found
from attnflow.runs.figures import NAME, Album, FigureConfig, Rendered, config_of, drawn
from attnflow.runs.store import Store
from attnflow.runs.sweeps import Experiment, plan, sweep


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
    dry_run: Annotated[bool, Doc("tell what would be computed, and stop")] = False


def compute(config: FigureConfig) -> xr.Dataset:
    (figure,) = select(config.figure)
    return figure.compute(config.settings)


FIGURES = Experiment(NAME, compute)


def run(arguments: list[str]) -> int:
    options = parse_options(
        Options,
        arguments,
        prog="attnflow reproduce",
        description="Data (netCDF) and pictures of the figures; data already there are redrawn.",
    )
    if options.workers is not None:
        at_least("workers", options.workers, 1)
    refuse_unused(options, unused(options))
    can_write("--out", options.out, folder=True)
    chosen = select(options.target)
    for figure in chosen:
        if figure.missing():
            print(f"{figure.id} is left out: {figure.missing()}", file=sys.stderr)
    figures = [figure for figure in chosen if not figure.missing()]
    if options.dry_run:
        _count(figures, options.preset, Store(options.out / "runs"))
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
    return 0 if len(done) == len(chosen) else 1


def unused(options: Options) -> dict[str, str]:
    idle = {"address": "with --engine ray"} if options.engine != "ray" else {}
    if options.engine == "here":
        idle["workers"] = "with another --engine"
    if options.fresh:
        idle["resume"] = "without --fresh"
    return idle


def render_all(
    figures: Sequence[Figure],
    preset: str,
    out: Path,
    *,
    fresh: bool = False,
    engine: str = "local",
    workers: int | None = None,
    address: str | None = None,
    album: Album | None = None,
) -> list[Rendered]:
    """Every figure, told as it is done and returned in order; without those that failed. Trainings
    that figures are made of are done first."""
    store = Store(out / "runs")
    by_config = {config_of(figure, preset): figure for figure in figures}
    done: dict[str, Rendered] = {}

    def draw(config: FigureConfig, seconds: float) -> None:
        run, figure = store.find(config, NAME), by_config[config]
        if run is not None:
            done[figure.id] = drawn(figure, preset, run, out, seconds, album)
            _tell(done[figure.id], len(done), len(figures), figure.trials is not None)

    def assembled(config: FigureConfig) -> xr.Dataset:
        figure = by_config[config]
        assert figure.trials is not None
        assert figure.assemble is not None
        trials = figure.trials.grid(config.settings)
        return figure.assemble(config.settings, found(figure.trials.experiment, trials, store))

    def sweeps(configs: Sequence[Any], experiment: Experiment, engine: str, **options) -> None:
        report = sweep(configs, experiment, store, engine=engine, fresh=fresh, **options)
        if report.stopped:
            raise KeyboardInterrupt
        for why in report.failed.values():
            print(why, file=sys.stderr)

    several = {"workers": workers, "address": address}
    print(f"{len(figures)} figure{'s' * (len(figures) > 1)} …", flush=True)
    absent = [
        figure
        for config, figure in by_config.items()
        if fresh or store.get(store.name(config, NAME)) is None
    ]
    for experiment, trials in _trainings(absent, preset).items():
        sweeps(trials, experiment, engine, **several)
    made = [config for config, figure in by_config.items() if figure.trials is not None]
    plain = [config for config in by_config if config not in made]
    alone = "here" if len(plain) == 1 and engine == "local" else engine
    sweeps(plain, FIGURES, alone, progress=False, each=draw, **several)
    sweeps(made, Experiment(NAME, assembled), "here", progress=False, each=draw)
    for config, figure in by_config.items():
        if figure.id not in done:
            draw(config, 0.0)
    return [done[figure.id] for figure in figures if figure.id in done]


def _trainings(figures: Sequence[Figure], preset: str) -> dict[Experiment, list[Any]]:
    """By experiment, all that these figures are made of."""
    needed: dict[Experiment, list[Any]] = {}
    for figure in figures:
        if figure.trials is not None:
            grid = figure.trials.grid(figure.presets[preset])
            needed.setdefault(figure.trials.experiment, []).extend(grid)
    return needed


def _count(figures: Sequence[Figure], preset: str, store: Store) -> None:
    plain = [config_of(figure, preset) for figure in figures if figure.trials is None]
    for experiment, configs in {FIGURES: plain, **_trainings(figures, preset)}.items():
        if configs:
            print(f"{experiment.name}: {plan(configs, experiment, store)}")


def _tell(done: Rendered, count: int, total: int, trained: bool) -> None:
    how = f"computed in {done.seconds:.1f} s" if done.seconds else "redrawn from stored data"
    how = "drawn from its trainings" if done.seconds and trained else how
    place = f"[{count}/{total}] " if total > 1 else ""
    print(f"{place}{done.id}: {how}: {done.picture}", flush=True)
