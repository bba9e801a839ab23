"""attnflow reproduce [PAPER[/FIGURE]]: compute a figure's data and draw it."""

import dataclasses
import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Annotated, Literal

import tyro
from typing_extensions import Doc

from attnflow.papers.gallery import Figure, select
from attnflow.runs.figures import Rendered, render


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
    render_all(select(options.target), options.preset, options.out, fresh=options.fresh)
    return 0


def render_all(
    figures: Sequence[Figure], preset: str, out: Path, *, fresh: bool = False
) -> list[Rendered]:
    """Every figure, on every core, told as it is done and returned in order."""
    done: dict[str, Rendered] = {}
    workers = min(os.cpu_count() or 1, len(figures))
    if workers == 1:
        for figure in figures:
            print(f"{figure.id}: {figure.title} …", flush=True)
            done[figure.id] = _tell(render(figure, preset, out, fresh=fresh), 0, 0)
        return list(done.values())
    context = multiprocessing.get_context("spawn")  # JAX does not survive a fork
    print(f"{len(figures)} figures on {workers} processes …", flush=True)
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        jobs = [pool.submit(_render, figure.id, preset, out, fresh) for figure in figures]
        try:
            for count, job in enumerate(as_completed(jobs), 1):
                finished = _tell(job.result(), count, len(jobs))
                done[finished.id] = finished
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [done[figure.id] for figure in figures]


def _render(name: str, preset: str, out: Path, fresh: bool) -> Rendered:
    (figure,) = select(name)
    return render(figure, preset, out, fresh=fresh)


def _tell(done: Rendered, count: int, total: int) -> Rendered:
    how = f"computed in {done.seconds:.1f} s" if done.seconds else "redrawn from stored data"
    place = f"[{count}/{total}] " if total else ""
    print(f"{place}{done.id}: {how}: {done.picture}", flush=True)
    return done
