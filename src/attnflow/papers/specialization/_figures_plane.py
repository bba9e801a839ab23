"""Paths of the heads in the plane of two features."""

import dataclasses
from itertools import product

import matplotlib as mpl
import numpy as np
import xarray as xr

from attnflow.models.single_location import Discrete
from attnflow.papers.specialization._drawing import (
    GALLERY,
    heads_in_plane,
    rays,
    time_bar,
)
from attnflow.papers.specialization._figures_flow import Training, signal_of, trained
from attnflow.papers.style import STYLE, canvas


@dataclasses.dataclass(frozen=True)
class Planes:
    """One panel a training, `columns` a row."""

    trainings: tuple[Training, ...]
    titles: tuple[str, ...]
    columns: int


def planes(config: Planes) -> xr.Dataset:
    flows = [trained(training) for training in config.trainings]
    most = max(training.heads for training in config.trainings)
    m = np.full((len(flows), config.trainings[0].records, most, 2), np.nan)
    directions = np.full((len(flows), 2, 2), np.nan)
    for panel, (training, flow) in enumerate(zip(config.trainings, flows, strict=True)):
        m[panel, :, : training.heads] = flow.m
        signal = signal_of(training.signal)
        if isinstance(signal, Discrete):
            directions[panel] = signal.points()
    return xr.Dataset(
        {
            "m": (("panel", "record", "head", "feature"), m),
            "time": (("panel", "record"), np.stack([flow.time for flow in flows])),
            "directions": (("panel", "point", "feature"), directions),
            "title": ("panel", np.array(config.titles, object)),
        },
        attrs={"columns": config.columns},
    )


@mpl.rc_context(STYLE)
def draw_planes(ds: xr.Dataset):
    columns = int(ds.attrs["columns"])
    rows = -(-ds.sizes["panel"] // columns)
    figure, axes = canvas(rows, columns, width=2.5, height=2.7)
    last = float(ds.time.max())
    for panel, ax in enumerate(axes.flat):
        here = ds.isel(panel=panel)
        heads = here.m.dropna("head", how="all")
        heads_in_plane(ax, here.time.values, heads.values, last)
        rays(ax, here.directions.dropna("point").values)
        ax.set_title(str(here.title.values), fontsize=9)
        if panel >= (rows - 1) * columns:
            ax.set_xlabel("$m_{h1}$")
        if panel % columns == 0:
            ax.set_ylabel("$m_{h2}$")
    time_bar(figure, axes, last)
    return figure


def by_heads(heads: tuple[int, ...], signals: tuple[tuple, ...], **fields) -> Planes:
    """A row for each signal, a column for each number of heads."""
    pairs = list(product(signals, heads))
    trainings = tuple(Training(signal, heads=count, **fields) for signal, count in pairs)
    return Planes(trainings, tuple(f"$H={h}$, {named(s)}" for s, h in pairs), len(heads))


def by_strength(strengths: tuple[float, ...], **fields) -> Planes:
    """A row for each ν₂, the largest on top, a column for each ν₁; two heads."""
    pairs = list(product(sorted(strengths, reverse=True), strengths))
    signals = [("flipping", nu1, nu2) for nu2, nu1 in pairs]
    trainings = tuple(Training(signal, heads=2, **fields) for signal in signals)
    return Planes(trainings, tuple(map(named, signals)), len(strengths))


def named(signal: tuple) -> str:
    return rf"$\nu_1={signal[-2]:g},\ \nu_2={signal[-1]:g}$"


FLIPPING = ("flipping", 2.0, 2.0)
ISOTROPIC, ANISOTROPIC = ("gaussian", 2, 2.0, 2.0), ("gaussian", 2, 8.0, 2.0)
QUICK = {"last": 1e3, "samples": 8192, "records": 100}
PAPER = {"last": 1e3, "samples": 100_000, "records": 300, "rtol": 1e-4}
HOW = (
    " Colour is time τ on a logarithmic clock; circles: start (k ~ N(0, 1/D), D = 10⁴, η = 1), "
    "dots: end at τ = {last}, one colour a head; arrows: the features. The flow is integrated "
    "adaptively over {quick} mirrored quasi-random points (10⁵ in the paper preset, where the "
    "published runs take Euler steps of 0.02 over 10⁵ random ones); the published horizon and "
    "seeds are not stated."
)
REDUCED = HOW.format(last="1,000", quick="8,192")

GALLERY.figure(
    "2",
    title="Flipping spike: first together, then apart",
    caption="Softmax heads, L = 4, ν₁ = ν₂ = 2, on the constant (1) and the flipping (2) feature; "
    "dotted: the two signals. All heads first run along feature 1 together; only then do they "
    "part along ±2. With more heads a few go further out, as far as the signals, which two heads "
    "never reach, while the others stay near the axis." + REDUCED,
    quick=by_heads((2, 4, 8), (FLIPPING,), **QUICK),
    paper=by_heads((2, 4, 8), (FLIPPING,), **PAPER),
    draw=draw_planes,
)(planes)


def gaussian_runs(**fields) -> Planes:
    trainings = (
        Training(ANISOTROPIC, heads=4, **fields),
        Training(ANISOTROPIC, heads=8, seed=1, **fields),
        Training(ANISOTROPIC, heads=8, seed=2, **fields),
        Training(ISOTROPIC, heads=4, **fields),
    )
    runs = ("", "run 1, ", "run 2, ", "")
    titles = [
        f"$H={t.heads}$, {run}{named(t.signal)}" for t, run in zip(trainings, runs, strict=True)
    ]
    return Planes(trainings, tuple(titles), 4)


GALLERY.figure(
    "3",
    title="Gaussian signal: one direction after the other",
    caption="Softmax heads, L = 4, two Gaussian features. With ν₁ = 8, ν₂ = 2 the heads part along "
    "the strong feature first and along the weak one later; with eight heads the first split need "
    "not be even (two starts in the middle). With equal strengths (right) both features are "
    "learned at once, and the directions are the start's own." + REDUCED,
    quick=gaussian_runs(**QUICK),
    paper=gaussian_runs(**PAPER),
    draw=draw_planes,
)(planes)

STRENGTH_QUICK = {"last": 1e3, "samples": 4096, "records": 80}
STRENGTH = (1.0, 2.0, 4.0)
FOR_STRENGTH = HOW.format(last="1,000", quick="4,096")
for number, activation, title, seen in (
    (
        "12",
        "softmax",
        "Softmax: the mean signal holds the heads together",
        "The heads part the more the stronger the flipping feature and the weaker the constant "
        "one; where the constant one is strong and the flipping one weak they stay together.",
    ),
    (
        "13",
        "softmax_1",
        "Softmax-1: like softmax at first, like B-softmax in the end",
        "A strong constant feature keeps the heads together, as under softmax. Where it is weak "
        "the likeness ends at late times (τ of some hundred): the heads go on to the two signals "
        "(dotted), which softmax never reaches.",
    ),
    (
        "14",
        "bayes_softmax",
        "B-softmax: heads on the signals themselves",
        "Both heads come to lie on the two signals (dotted) at nearly every strength, also where "
        "the flipping feature is much the weaker.",
    ),
):
    GALLERY.figure(
        number,
        title=title,
        caption=f"Two {activation.replace('_', '-')} heads, flipping spike, L = 4, ν₁ = 1, 2, 4 "
        f"(columns), ν₂ = 4, 2, 1 (rows, from the top). {seen} The published values of ν are not "
        "stated." + FOR_STRENGTH,
        quick=by_strength(STRENGTH, activation=activation, **STRENGTH_QUICK),
        paper=by_strength(STRENGTH, activation=activation, **PAPER),
        draw=draw_planes,
    )(planes)

GALLERY.figure(
    "15",
    tour=False,
    title="Flipping spike: more heads reach further",
    caption="Softmax heads, L = 4, ν₁ = ν₂ = 2, H = 2, 4, 5, 8. With more heads a few go much "
    "further along the flipping feature than two heads ever do, and the others keep to the "
    "constant one." + REDUCED,
    quick=by_heads((2, 4, 5, 8), (FLIPPING,), **QUICK),
    paper=by_heads((2, 4, 5, 8), (FLIPPING,), **PAPER),
    draw=draw_planes,
)(planes)

for number, activation, heads, quick_heads, title, seen in (
    (
        "16",
        "softmax",
        (2, 5, 8),
        (2, 8),
        "Softmax on Gaussian features",
        "Equal strengths (top): the heads spread over all directions. Unequal ones (bottom): first "
        "the strong feature, both signs, then the weak one.",
    ),
    (
        "17",
        "softmax_1",
        (2, 4, 5, 8),
        (2, 4),
        "Softmax-1 on Gaussian features",
        "Much as for softmax; with four heads and unequal strengths the weak feature is learned "
        "further (|m| about 1.2 against 0.9 of softmax in figure 3).",
    ),
    (
        "18",
        "bayes_softmax",
        (2, 5, 8),
        (2, 8),
        "B-softmax on Gaussian features",
        "With eight heads some do the work, far out on a ring (top) or at the four combinations of "
        "signs (bottom); heads that are not needed stay near the middle.",
    ),
):
    fewer = f" Quick: only H = {', '.join(map(str, quick_heads))}."
    GALLERY.figure(
        number,
        title=title,
        caption=f"{activation.replace('_', '-')} heads, L = 4, H = {', '.join(map(str, heads))}, "
        f"ν₁ = ν₂ = 2 (top) and ν₁ = 8, ν₂ = 2 (bottom). {seen}{fewer}" + REDUCED,
        quick=by_heads(quick_heads, (ISOTROPIC, ANISOTROPIC), activation=activation, **QUICK),
        paper=by_heads(heads, (ISOTROPIC, ANISOTROPIC), activation=activation, **PAPER),
        draw=draw_planes,
        tour=False,
    )(planes)
