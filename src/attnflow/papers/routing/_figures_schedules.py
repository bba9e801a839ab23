"""Schedules on the sticky chain: their loss and attention entropy, and how much they speed up."""

import dataclasses
import functools
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
import optax
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.patches import Rectangle

from attnflow.dynamics.descent import descend
from attnflow.dynamics.schedules import alternating, scale_blocks
from attnflow.models.head import ChainTask
from attnflow.papers.routing._drawing import GALLERY, band, seeds_note
from attnflow.papers.routing._study import BLOCKS, Study, factors, run, speedup
from attnflow.papers.style import COLORS, STYLE, canvas

SGD, ALTERNATING, ADAM = range(3)
# Which optimizer, and which blocks it moves faster.
CASES: dict[str, tuple[int, str]] = {
    "uniform": (SGD, "uniform"),
    "values": (SGD, "values"),
    "routing": (SGD, "routing"),
    "alternating": (ALTERNATING, "uniform"),
    "Adam": (ADAM, "uniform"),
    "Adam, values": (ADAM, "values"),
}


@dataclasses.dataclass(frozen=True)
class Schedules:
    """All of `CASES` from the same starts. Rates are ours: the document does not say its own."""

    length: int = 2000
    rate: float = 1.0
    adam_rate: float = 1e-3
    factor: float = 10.0
    seeds: int = 2
    steps: int = 1000
    records: int = 101


PAPER = Schedules(seeds=8, records=201)


def one_of(
    optimizers: Sequence[optax.GradientTransformation], which
) -> optax.GradientTransformation:
    """The optimizer numbered `which`, a number that may differ between runs of one program."""

    def init(params):
        return tuple(each.init(params) for each in optimizers)

    def update(updates, state, params=None):
        pairs = [
            each.update(updates, kept, params) for each, kept in zip(optimizers, state, strict=True)
        ]
        here = [which == number for number in range(len(optimizers))]
        chosen = jax.tree.map(lambda *moves: jnp.select(here, moves), *[x for x, _ in pairs])
        return chosen, tuple(kept for _, kept in pairs)

    return optax.GradientTransformation(init, update)


def make(which, rate, **scales) -> optax.GradientTransformation:
    sgd = optax.sgd(rate)
    moved = one_of((sgd, alternating(sgd), optax.adam(rate)), which)
    return optax.chain(moved, scale_blocks(scales))


@functools.lru_cache(maxsize=16)
def chain_run(config: Schedules, seed: int) -> xr.Dataset:
    rates = {SGD: config.rate, ALTERNATING: config.rate, ADAM: config.adam_rate}
    tuned: dict[str, list[float]] = {
        "which": [which for which, _ in CASES.values()],
        "rate": [rates[which] for which, _ in CASES.values()],
    }
    scales = [factors(faster, config.factor) for _, faster in CASES.values()]
    tuned |= {block: [each[block] for each in scales] for block in BLOCKS}
    record = np.linspace(0, config.steps, config.records).round().astype(int)
    model = ChainTask(length=config.length, seed=seed).model()
    found = descend(model, config.steps, make, tuned=tuned, record=record, progress=False)
    return found.rename(run="schedule").assign_coords(schedule=list(CASES))


def trained(config: Schedules) -> xr.Dataset:
    """Observables over (seed, schedule, step). Seeds are kept: the figures share them."""
    alike = dataclasses.replace(config, seeds=1)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        runs = list(pool.map(lambda seed: chain_run(alike, seed), range(config.seeds)))
    return xr.concat(runs, "seed").assign_attrs(dataclasses.asdict(config))


def entropy_at(excess: np.ndarray, entropy: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Entropy when a run first has the excess loss of `grid` (downward); NaN where it has not."""
    best = np.minimum.accumulate(excess)
    first = np.flatnonzero(np.diff(best, prepend=np.inf) < 0)
    path, seen = best[first], entropy[first]
    return np.interp(-grid, -path, seen, left=np.nan, right=np.nan)


def schedules(config: Schedules) -> xr.Dataset:
    found = trained(config)[["excess", "entropy"]].transpose("seed", "schedule", "step")
    grid = np.linspace(float(found.excess.max()), float(found.excess.min()), 200)
    compared = xr.apply_ufunc(
        entropy_at,
        found.excess,
        found.entropy,
        kwargs={"grid": grid},
        input_core_dims=[["step"], ["step"]],
        output_core_dims=[["level"]],
        vectorize=True,
    )
    return found.assign(compared=compared, level=grid)


def labels(attrs) -> dict[str, str]:
    times = f"×{attrs['factor']:g}"
    return {
        "uniform": "uniform",
        "values": f"$W_V$ {times}",
        "routing": f"$W_Q, W_K$ {times}",
        "alternating": "alternating E, M",
        "Adam": "Adam",
        "Adam, values": f"Adam, $W_V$ {times}",
    }


def setting(ds: xr.Dataset, adam: bool = True) -> str:
    a = ds.attrs
    rates = f"rate {a['rate']:g}" + (f" (Adam {a['adam_rate']:g})" if adam else "")
    return f"sticky chain, T = {a['length']}, {rates}; {seeds_note(ds.sizes['seed'])}"


@mpl.rc_context(STYLE)
def draw_schedules(ds: xr.Dataset):
    figure, axes = canvas(1, 3, width=3.5, height=3.2)
    loss, entropy, plane = axes[0]
    styles = dict(zip(CASES, zip(COLORS, ["-"] * 4 + ["--"] * 2, strict=False), strict=False))
    for name, label in labels(ds.attrs).items():
        seen, (color, line) = ds.sel(schedule=name), styles[name]
        options = {"color": color, "ls": line, "lw": 1.4}
        band(loss, ds.step, seen.excess.values, label=label, **options)
        band(entropy, ds.step, seen.entropy.values, **options)
        everywhere = np.isfinite(seen.compared).all("seed")
        band(plane, ds.level[everywhere], seen.compared[:, everywhere].values, **options)
    loss.set(xlabel="step", ylabel="loss − entropy rate (nats)", title="(a) excess loss")
    loss.axhline(0, color="0.5", lw=0.8)
    entropy.set(xlabel="step", ylabel="attention entropy (nats)", title="(b) attention entropy")
    plane.set(xlabel="loss − entropy rate (nats)", ylabel="attention entropy (nats)")
    plane.set_title("(c) at equal loss (training goes right)")
    plane.invert_xaxis()
    figure.legend(loc="outside lower center", ncols=6, fontsize=8)
    figure.suptitle(setting(ds), fontsize=8)
    return figure


GALLERY.figure(
    "schedules",
    title="Loss and attention entropy under the schedules",
    caption="One causal head on the sticky chain (8 symbols, self-transition 0.3, T = 2,000), the "
    "loss above the entropy rate of 1.973 nats; below 0 it learns the one chain it sees by heart. "
    "A tenfold rate of W_V is faster than uniform descent, but so is one of W_Q and W_K, and "
    "alternating E and M steps (each block moves every other step) is slower than moving all. (c) "
    "At the same loss the run with faster values has the *higher* attention entropy: 6.55 nats "
    "against 6.48 at an excess of 0.02, and 6.56 against 6.43 with Adam; sharp attention comes "
    "with faster W_Q and W_K (6.08). Rates, starts and width are ours. Quick: 2 seeds; paper: 8.",
    quick=Schedules(),
    paper=PAPER,
    draw=draw_schedules,
)(schedules)


@dataclasses.dataclass(frozen=True)
class Speedup:
    """Steps of uniform descent over those of the schedule to the same loss, its own after
    `steps`."""

    length: int = 1000
    rates: tuple[float, ...] = (0.3, 1.0, 3.0)
    factors: tuple[float, ...] = (3.0, 10.0, 30.0)
    seeds: int = 1
    steps: int = 1000


FASTER = {"values": "$W_V$", "values and output": "$W_V$, $W_O$", "routing": "$W_Q$, $W_K$"}
PRINTED = (10.0, 2.3)  # factor and speed-up that the document states


def speedups(config: Speedup) -> xr.Dataset:
    def one(factor: float) -> tuple[np.ndarray, np.ndarray]:
        study = Study(
            ChainTask(length=config.length),
            config.rates,
            ("uniform", *FASTER),
            factor,
            config.seeds,
            config.steps,
        )
        data = run(study)
        lost = [np.isnan(data.loss.sel(schedule=name)).any("step").values for name in FASTER]
        return np.stack([speedup(data, name) for name in FASTER]), np.stack(lost)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found, lost = zip(*pool.map(one, config.factors), strict=True)
    dims = ("factor", "schedule", "seed", "rate")
    coords = {"factor": list(config.factors), "rate": list(config.rates), "schedule": list(FASTER)}
    return xr.Dataset(
        {"speedup": (dims, np.stack(found)), "diverged": (dims, np.stack(lost))},
        coords,
        {"length": config.length, "steps": config.steps},
    )


@mpl.rc_context(STYLE)
def draw_speedup(ds: xr.Dataset):
    figure, axes = canvas(1, 3, width=3.1, height=3.2)
    scale = LogNorm(0.5, 50)
    for ax, (name, label) in zip(axes[0], FASTER.items(), strict=True):
        picture = speed_map(ax, ds.sel(schedule=name), scale)
        ax.set(title=f"{label} faster", xlabel="rate η of the others")
    axes[0, 0].set_ylabel("factor of the faster blocks")
    printed = np.flatnonzero(ds.factor.values == PRINTED[0])
    if printed.size:
        y = float(printed[0])
        box = Rectangle((-0.46, y - 0.46), ds.sizes["rate"] - 0.08, 0.92, fill=False, lw=2)
        box.set_edgecolor(COLORS[3])
        axes[0, 0].add_patch(box)
    figure.colorbar(
        picture,
        ax=axes,
        label="uniform steps / steps",
        shrink=0.9,
        ticks=[0.5, 1, 2, 5, 10, 20, 50],
        format="%g",
    )
    note = f"box: the document's row, {PRINTED[1]}× at an unstated rate; hatched: a seed diverges"
    seeds = f"median of {ds.sizes['seed']} seeds" if ds.sizes["seed"] > 1 else "1 seed"
    figure.suptitle(f"T = {ds.attrs['length']}, {ds.attrs['steps']} steps, {seeds}; {note}", size=8)
    return figure


def speed_map(ax: Axes, ds: xr.Dataset, scale: LogNorm):
    """One map, a cell a rate and factor: the median over seeds, — if it does not get there; hatched
    where a seed diverges."""
    typical = ds.speedup.median("seed").transpose("factor", "rate").values
    lost = ds.diverged.any("seed").transpose("factor", "rate").values
    arrives = (typical > 0) & ~lost
    picture = ax.imshow(
        np.where(arrives, typical, np.nan),
        norm=scale,
        cmap="viridis",
        origin="lower",
        aspect="auto",
    )
    for (y, x), value in np.ndenumerate(typical):
        if lost[y, x]:
            cell = Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor="0.88", edgecolor="0.6", lw=0)
            cell.set_hatch("////")
            ax.add_patch(cell)
        else:
            dark = arrives[y, x] and scale(value) < 0.6
            text = f"{value:.1f}" if arrives[y, x] else "—"
            ax.text(x, y, text, ha="center", va="center", color="white" if dark else "black")
    ax.set_xticks(range(ds.sizes["rate"]), [f"{rate:g}" for rate in ds.rate.values])
    ax.set_yticks(range(ds.sizes["factor"]), [f"×{factor:g}" for factor in ds.factor.values])
    ax.grid(False)
    return picture


GALLERY.figure(
    "speedup",
    title="Speed-up against rate and factor",
    caption="How many times fewer steps a schedule needs than uniform descent to the loss that "
    "this has after 1,000, when only the named blocks move faster. For W_V tenfold (box) it is "
    "2.3 to 3.5, around the document's 2.3, and grows with the factor until descent diverges "
    "(hatched: not a finite number any more). The same factor on W_Q and W_K, which has nothing "
    "of an M step, gives 2.5 to 4.9, and diverges nowhere on this map: the gain by itself is no "
    "evidence for the EM reading. Faster W_O as well gains more at small rates and diverges "
    "first. Quick: T = 1,000, one seed; paper: T = 2,000, 8 seeds, 5 rates "
    "and factors, where the two rows at tenfold have 1.9 to 2.8 and 2.6 to 4.1.",
    quick=Speedup(),
    paper=Speedup(
        length=2000,
        rates=(0.03, 0.1, 0.3, 1.0, 3.0),
        factors=(2.0, 5.0, 10.0, 20.0, 50.0),
        seeds=8,
    ),
    draw=draw_speedup,
)(speedups)
