"""What the values do: their paths and spectrum, when they freeze, and what LayerNorm, a residual
and more heads change."""

import dataclasses

import matplotlib as mpl
import numpy as np
import xarray as xr
from scipy.special import softmax

from attnflow.instruments.manifold import principal_shape
from attnflow.instruments.routing import Freezing, freezing
from attnflow.models.head import ChainTask
from attnflow.papers.routing._drawing import GALLERY, band, seeds_note
from attnflow.papers.routing._figures_schedules import PAPER, Schedules, labels, setting, trained
from attnflow.papers.routing._study import Study, run
from attnflow.papers.style import COLORS, STYLE, canvas

PAIR = ["uniform", "values"]


def values(config: Schedules) -> xr.Dataset:
    found = trained(config)["values"].sel(schedule=PAIR)
    found = found.transpose("schedule", "seed", "step", "symbol", "width").values
    paths, shares = [], np.empty((*found.shape[:2], 2, found.shape[-2] - 1))
    for schedule, each in enumerate(found):
        end = principal_shape(each[0, -1])
        paths.append((each[0] - each[0, -1].mean(axis=0)) @ end.axes[:2].T)
        for seed, path in enumerate(each):
            for moment, cloud in enumerate((path[0], path[-1])):
                shares[schedule, seed, moment] = principal_shape(cloud).shares[:-1]
    return xr.Dataset(
        {
            "path": (("schedule", "step", "symbol", "axis"), np.stack(paths)),
            "shares": (("schedule", "seed", "moment", "component"), shares),
        },
        {
            "schedule": PAIR,
            "moment": ["start", "end"],
            "component": 1 + np.arange(shares.shape[-1]),
        },
        dataclasses.asdict(config),
    )


@mpl.rc_context(STYLE)
def draw_values(ds: xr.Dataset):
    figure, axes = canvas(1, 3, width=3.3, height=3.3)
    names = labels(ds.attrs)
    for ax, letter, name in zip(axes[0], "ab", ds.schedule.values, strict=False):
        for symbol, path in enumerate(ds.path.sel(schedule=name).transpose("symbol", ...).values):
            color = COLORS[symbol % len(COLORS)]
            ax.plot(*path.T, color=color, lw=1.2)
            ax.plot(*path[0], "o", ms=4, mfc="white", mec=color)
            ax.plot(*path[-1], "o", ms=5, color=color)
        ax.set(xlabel="first component (final)", ylabel="second component (final)")
        ax.set(title=f"({letter}) {names[name]}, seed 0", aspect="equal", adjustable="datalim")
    spectrum, components = axes[0, 2], 1 + np.arange(ds.sizes["component"])
    spectrum.set_xticks(components)
    options = {"marker": "o", "ms": 3.5}
    first = ds.shares.sel(moment="start").isel(schedule=0).values
    band(spectrum, components, first, color="0.5", ls=":", label="start", **options)
    for name, color in zip(ds.schedule.values, COLORS, strict=False):
        last = ds.shares.sel(moment="end", schedule=name).values
        band(spectrum, components, last, color=color, label=f"end, {names[name]}", **options)
    spectrum.axhline(1 / ds.sizes["component"], color="0.7", lw=0.8, ls="--", zorder=0)
    spectrum.set(xlabel="component", ylabel="share of the variance", title="(c) spectrum")
    spectrum.set_ylim(0)
    spectrum.legend(fontsize=8)
    figure.suptitle(setting(ds, adam=False), fontsize=8)
    return figure


GALLERY.figure(
    "values",
    title="Values in their principal plane",
    caption="Value vectors of the 8 symbols during training (open circles: start, dots: end) in "
    "the plane of the first two principal components of their end, and (c) the spectrum of the "
    "centred values; dashed, all of 7 components alike. They move outwards and apart, farther "
    "with a tenfold rate, and not to a plane: on a chain whose symbols are all alike the spectrum "
    "is as flat at the end as at the start, 5 components for 90 % of the variance before and "
    "after, under both schedules; the plane holds 50 % (uniform) and 56 % of it. Quick: 2 seeds; "
    "paper: 8.",
    quick=Schedules(),
    paper=PAPER,
    draw=draw_values,
)(values)


@dataclasses.dataclass(frozen=True)
class Frozen:
    """`tolerance` is that of the first two definitions. It is wide: after 1,000 steps nothing has
    come to rest, so that a narrow one finds only the end of training."""

    training: Schedules = dataclasses.field(default_factory=lambda: Schedules(seeds=4))
    tolerance: float = 0.2


FREEZING = {
    "near_end": "(a) stays within {:.0%} of its end",
    "slow": "(b) stays under {:.0%} of its top speed",
    "half_way": "(c) half of its path is behind it",
}


def freezing_times(config: Frozen) -> xr.Dataset:
    found = trained(config.training).sel(schedule=["uniform", "values", "Adam"])
    # What a query of one symbol gives each symbol where all have been seen equally often.
    attention = xr.apply_ufunc(softmax, found.scores, kwargs={"axis": -1})
    paths = {"attention": attention, "values": found["values"]}
    lead = ("seed", "schedule")
    data = {}
    for name, path in paths.items():
        path = path.transpose(*lead, "step", ...).values
        times = [
            [freezing(found.step.values, one, config.tolerance) for one in each] for each in path
        ]
        data[name] = ((*lead, "definition"), np.array(times, float))
    coords = {"schedule": found.schedule.values, "definition": list(Freezing._fields)}
    attrs = dataclasses.asdict(config.training) | {"tolerance": config.tolerance}
    return xr.Dataset(data, coords, attrs)


@mpl.rc_context(STYLE)
def draw_freezing(ds: xr.Dataset):
    figure, axes = canvas(1, 3, width=3.1, height=3.0, sharey=True)
    names = labels(ds.attrs)
    for ax, (definition, title) in zip(axes[0], FREEZING.items(), strict=True):
        seen = ds.sel(definition=definition)
        for x, schedule in enumerate(ds.schedule.values):
            pair = np.stack([seen[name].sel(schedule=schedule) for name in ("attention", "values")])
            places = np.array([x - 0.18, x + 0.18])
            ax.plot(places, pair, color="0.7", lw=0.8, zorder=1)
            for place, times, color, mark in zip(places, pair, COLORS, "os", strict=False):
                ax.plot(np.full(len(times), place), times, mark, ms=4.5, color=color)
        ax.set_xticks(range(ds.sizes["schedule"]), [names[name] for name in ds.schedule.values])
        ax.set_title(title.format(ds.attrs["tolerance"]))
        ax.set(xlim=(-0.5, ds.sizes["schedule"] - 0.5), ylim=(0, 1.04 * ds.attrs["steps"]))
    for color, mark, name in zip(COLORS, "os", ("attention", "values"), strict=False):
        axes[0, 0].plot([], [], mark, ms=4.5, color=color, label=name)
    axes[0, 0].set_ylabel("step at which it freezes")
    axes[0, 0].legend(fontsize=8, loc="lower left")
    lines = f"a line a seed, {ds.sizes['seed']} seeds"
    figure.suptitle(f"{setting(ds).rsplit(';', 1)[0]}; {lines}", fontsize=8)
    return figure


GALLERY.figure(
    "freezing",
    tour=False,
    title="Which freezes first, by three definitions",
    caption="Steps at which attention (between symbols) and values stop moving, one line a seed. "
    "By no definition is attention the first as a rule: of 4 seeds under uniform descent it is "
    "in none by (a) and (b) and in one by (c), with a tenfold W_V in 0, 0 and 1, with Adam in 1, "
    "1 and 1. The definitions disagree by hundreds of steps: the values' top speed lies in the "
    "first steps of uniform descent, so that by (b) they count as frozen early (at 10 to 400) "
    "although about half of their path or more is still to come, and the earlier, the finer the "
    "records. The tolerance is 20 %, as nothing rests within 1,000 steps: with 5 %, (a) and (b) "
    "find only the end. Quick: 4 seeds; paper: 8.",
    quick=Frozen(),
    paper=Frozen(PAPER),
    draw=draw_freezing,
)(freezing_times)


@dataclasses.dataclass(frozen=True)
class Architecture:
    """Uniform descent. The residual adds one-hot tokens, so its values have the alphabet's width
    (8, the others 16); the four heads share the width."""

    length: int = 2000
    rate: float = 1.0
    seeds: int = 2
    steps: int = 1000
    records: int = 51


VARIANTS = {
    "bare head": {},
    "LayerNorm on values": {"normalized": True},
    "residual": {"residual": True},
    "4 heads": {"heads": 4},
}


def architecture(config: Architecture) -> xr.Dataset:
    def one(variant) -> xr.Dataset:
        task = ChainTask(length=config.length, **variant)
        study = Study(
            task,
            (config.rate,),
            ("uniform",),
            seeds=config.seeds,
            steps=config.steps,
            records=config.records,
        )
        found = run(study).isel(rate=0, schedule=0, drop=True)
        clouds = found["values"].transpose("seed", "step", "symbol", "width").values
        spread = [[principal_shape(cloud).participation for cloud in each] for each in clouds]
        seen = found[["excess", "entropy"]].drop_vars("diverged", errors="ignore")
        return seen.assign(participation=(("seed", "step"), np.array(spread)))

    found = xr.concat([one(variant) for variant in VARIANTS.values()], "variant")
    return found.assign_coords(variant=list(VARIANTS)).assign_attrs(dataclasses.asdict(config))


@mpl.rc_context(STYLE)
def draw_architecture(ds: xr.Dataset):
    figure, axes = canvas(1, 3, width=3.3, height=3.1)
    panels = {
        "excess": ("loss − entropy rate (nats)", "(a) excess loss"),
        "entropy": ("attention entropy (nats)", "(b) attention entropy"),
        "participation": ("(Σλ)² / Σλ²", "(c) participation of values"),
    }
    for ax, (name, (label, title)) in zip(axes[0], panels.items(), strict=True):
        for variant, color in zip(ds.variant.values, COLORS, strict=False):
            seen = ds[name].sel(variant=variant).transpose("seed", "step").values
            band(ax, ds.step, seen, color=color, label=str(variant) if name == "excess" else None)
        ax.set(xlabel="step", ylabel=label, title=title)
    axes[0, 0].axhline(0, color="0.5", lw=0.8)
    figure.legend(loc="outside lower center", ncols=4, fontsize=8)
    note = f"sticky chain, T = {ds.attrs['length']}, rate {ds.attrs['rate']:g}"
    figure.suptitle(f"{note}; {seeds_note(ds.sizes['seed'])}", fontsize=8)
    return figure


GALLERY.figure(
    "architecture",
    tour=False,
    title="LayerNorm, residual, four heads",
    caption="The bare head against LayerNorm on its values, a residual connection and four heads, "
    "by uniform descent. LayerNorm and four heads are faster than the bare head, and attention "
    "sharpens with LayerNorm as without it (6.45 and 6.46 nats), less with four heads (6.51). "
    "With a residual it does not: a chain is predicted by its last symbol, which W_O then sees "
    "directly, the loss is at its end within about 100 steps and the entropy stays at 6.60 "
    "throughout. The participation of the values, at most 7, ends where it began in all four, "
    "within 0.2 (the residual's is lower from the start: its values have width 8). Quick: 2 "
    "seeds; paper: 8.",
    quick=Architecture(),
    paper=Architecture(seeds=8, records=101),
    draw=draw_architecture,
)(architecture)
