"""Sink heads and accuracy by attention, heads, positions, query and λ; attention patterns."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from attnflow.papers import pretrained
from attnflow.papers.polarization._drawing import GALLERY
from attnflow.papers.polarization._induction import ATTENTIONS, INDUCTION, SMALL, Trial
from attnflow.papers.style import COLORS, STYLE, canvas, say_below
from attnflow.papers.trials import Trials, reductions, table
from attnflow.runs.config import grid

SINK, LEARNED = 0.9, 0.95  # a head is a sink above, a run has learned the task above
FIVE = ("softmax", "sigmoid_normalized", "sigmoid", "linear_normalized", "linear")
PLACES = ("additive", "concatenated", "none")


@dataclasses.dataclass(frozen=True)
class Sinks:
    """Trainings that differ from `trial` in every combination of the other fields."""

    trial: Trial = SMALL
    attention: tuple[str, ...] = ATTENTIONS
    heads: tuple[int, ...] = (1, 2, 4, 8)
    positions: tuple[str, ...] = ("additive",)
    same_target: tuple[bool, ...] = (False,)
    rate: tuple[float, ...] = (3e-3,)
    seed: tuple[int, ...] = (0,)

    @property
    def axes(self) -> dict[str, tuple[Any, ...]]:
        names = ("attention", "heads", "positions", "same_target", "rate", "seed")
        return {name: getattr(self, name) for name in names}

    @property
    def grid(self) -> list[Trial]:
        return grid(self.trial, **self.axes)

    @property
    def reduced(self) -> str:
        """What is less than published, in words."""
        words = {"symbols": "vocabulary", "context": "context", "width": "width", "batch": "batch"}
        parts = reductions(self.trial, Trial(), words)
        if self.trial.patience:
            parts.append(f"stopped {50 * self.trial.patience} steps after it is learned")
        if self.attention != ATTENTIONS:
            parts.append(f"{len(self.attention)} attentions (published {len(ATTENTIONS)})")
        parts.append(f"rates {', '.join(f'{x:g}' for x in self.rate)}, seeds {len(self.seed)}")
        return "; ".join(parts)


PUBLISHED = Sinks(trial=Trial(), rate=(1e-2, 1e-3, 1e-4), seed=(0, 1, 2, 3, 4))
STUDY = Trials(INDUCTION, lambda config: config.grid)
GRIDS = {"positions": PLACES, "same_target": (True, False)}


def measured(config: Sinks, found: Sequence[xr.Dataset]) -> xr.Dataset:
    """The share of sinks among the heads of each training, and its accuracy."""
    data = table(
        config.axes,
        found,
        sinks=lambda each: (each.sink > SINK).mean(),
        accuracy=lambda each: each.accuracy,
        steps=lambda each: each.steps,
    )
    return data.assign_attrs(reduced=config.reduced)


def learned(ds: xr.Dataset) -> xr.DataArray:
    """The share of sinks, of runs that learned the task."""
    return ds.sinks.where(ds.accuracy > LEARNED)


def bars(ax: Axes, values: xr.DataArray, label: str, legend: bool) -> None:
    """values (attention, heads): bars of one group an attention; a red cross where none is."""
    count = values.sizes["heads"]
    colors = COLORS if count == 1 else mpl.colormaps["viridis"](np.linspace(0.1, 0.85, count))
    place = np.arange(values.sizes["attention"])
    for k, heads in enumerate(values.heads.values):
        height = values.sel(heads=heads).values
        x = place + (k - (count - 1) / 2) * 0.8 / count
        ax.bar(x, np.nan_to_num(height), 0.8 / count, color=colors[k], label=f"heads {heads}")
        lost = np.isnan(height)
        ax.plot(x[lost], np.full(lost.sum(), 0.03), "x", color="red", ms=5)
    ax.set(ylim=(0, 1.02), ylabel=label)
    ax.set_xticks(place, [shown(name) for name in values.attention.values], rotation=60, ha="right")
    ax.grid(axis="x", visible=False)
    if legend and count > 1:
        ax.legend(fontsize=7, ncols=count, loc="lower center", bbox_to_anchor=(0.5, 1.0))


def shown(name: str) -> str:
    """elu·elu for a feature map's product; ÷ for a normalized attention."""
    return name.replace("elu_elu", "elu·elu").replace("_normalized", " ÷").replace("_", "-")


def average(values: xr.DataArray) -> xr.DataArray:
    return values.mean(("rate", "seed")).transpose("attention", "heads", ...)


@mpl.rc_context(STYLE)
def draw_4(ds: xr.Dataset):
    figure, axes = canvas(2, 1, width=7.0, height=2.3, sharex=True)
    chosen = average(learned(ds)).isel(positions=0, same_target=0)
    bars(axes[0, 0], chosen, "share of sink heads", True)
    accuracy = average(ds.accuracy).isel(positions=0, same_target=0)
    bars(axes[1, 0], accuracy, "accuracy", False)
    axes[1, 0].axhline(LEARNED, color="0.4", lw=0.8, ls="--")
    say_below(figure, ds.attrs["reduced"])
    return figure


def draw_grid(ds: xr.Dataset, values: xr.DataArray, label: str):
    with mpl.rc_context(STYLE):
        rows, columns = ds.sizes["positions"], ds.sizes["same_target"]
        figure, axes = canvas(rows, columns, width=4.2, height=2.5, sharey=True)
        for row, place in enumerate(ds.positions.values):
            for column, same in enumerate(ds.same_target.values):
                ax = axes[row, column]
                chosen = values.sel(positions=place, same_target=same)
                bars(ax, chosen, label if column == 0 else "", row == column == 0)
                symbol = "t' = t" if same else "t' ≠ t"
                ax.set_title(f"{'no' if place == 'none' else place} positions, {symbol}")
                if row < rows - 1:
                    ax.tick_params(labelbottom=False)
        say_below(figure, ds.attrs["reduced"])
        return figure


def draw_sinks(ds: xr.Dataset):
    return draw_grid(ds, average(learned(ds)), "share of sink heads")


def draw_accuracy(ds: xr.Dataset):
    return draw_grid(ds, average(ds.accuracy), "accuracy")


def lacking() -> str:
    return pretrained.missing(pretrained.needs_torch)


HOW = (
    "A head of the second layer is a sink if BOS has more than 90 % of its weight where the next "
    "symbol cannot be known; runs with accuracy below 0.95 do not count, red crosses: none did. "
    "“÷” is divided by the sum of its row. "
)

GALLERY.figure(
    "4",
    title="Sink heads after induction, by attention and number of heads",
    caption=f"{HOW}λ = 0.2, t' ≠ t, additive positions. Quick: a smaller task and model, one "
    "learning rate, one seed, stopped once learned; the paper preset is 660 runs.",
    quick=Sinks(),
    paper=PUBLISHED,
    draw=draw_4,
    tour=False,
    missing=lacking,
    trials=STUDY,
)(measured)

for number, weight, what, drawing in (
    ("14", 0.0, "Share of sink heads", draw_sinks),
    ("15", 0.2, "Share of sink heads", draw_sinks),
    ("16", 0.0, "Accuracy of induction", draw_accuracy),
    ("17", 0.2, "Accuracy of induction", draw_accuracy),
):
    small = dataclasses.replace(SMALL, random_weight=weight)
    GALLERY.figure(
        number,
        title=f"{what} with λ = {weight:g}, by positions and query symbol",
        caption=f"{HOW}With λ = 0 only the answer is trained. Rows: how positions enter; columns: "
        "whether the query is the symbol itself. Quick: five of the eleven attentions, four heads, "
        "a smaller task and model, one learning rate, one seed; the paper preset is 3,960 runs.",
        quick=Sinks(trial=small, attention=FIVE, heads=(4,), **GRIDS),
        paper=dataclasses.replace(PUBLISHED, trial=Trial(random_weight=weight), **GRIDS),
        draw=drawing,
        tour=False,
        missing=lacking,
        trials=STUDY,
    )(measured)


@dataclasses.dataclass(frozen=True)
class Patterns:
    """One training each of (attention, positions)."""

    trial: Trial = SMALL
    chosen: tuple[tuple[str, str], ...] = (
        ("softmax", "additive"),
        ("sigmoid", "concatenated"),
        ("linear", "concatenated"),
    )

    @property
    def grid(self) -> list[Trial]:
        return [
            dataclasses.replace(self.trial, attention=name, positions=place)
            for name, place in self.chosen
        ]


@mpl.rc_context(STYLE)
def draw_1(ds: xr.Dataset):
    figure, axes = canvas(1, ds.sizes["attention"], width=2.9, height=2.9)
    symbols = [["BOS", *map(str, row[1:])] for row in ds.tokens.values]
    shades: Any = None
    for ax, name, place, labels in zip(
        axes[0], ds.attention.values, ds.positions.values, symbols, strict=True
    ):
        own = ds.sel(attention=name)
        shades = ax.imshow(own.pattern, cmap="magma_r", vmin=0, vmax=1)
        ax.grid(visible=False)
        ax.set_xticks(range(len(labels)), labels, fontsize=7)
        ax.set_yticks(range(len(labels)), labels, fontsize=7)
        ax.set(xlabel="key", title=f"{name}, {place}\nsink score {float(own.score):.2f}")
    axes[0, 0].set_ylabel("query")
    figure.colorbar(shades, ax=axes[0], label="share of the row", shrink=0.8)
    say_below(figure, ds.attrs["reduced"])
    return figure


@GALLERY.figure(
    "1",
    title="Attention patterns of the second layer after induction",
    caption="The head with the greatest sink score, on one fresh sequence; rows are divided by the "
    "sum of their absolute weights. Softmax learns with additive positions, the "
    "others, which are divided by nothing, with concatenated ones, as in the paper. The last query "
    "looks for what followed its symbol; all others have nothing to look for.",
    quick=Patterns(),
    paper=Patterns(trial=Trial()),
    draw=draw_1,
    tour=False,
    missing=lacking,
    trials=STUDY,
)
def figure_1(config: Patterns, found: Sequence[xr.Dataset]) -> xr.Dataset:
    maps, scores = [], []
    for each in found:
        head = int(each.sink.values.argmax())
        weights = np.abs(each.pattern.isel(layer=-1, head=head).values)
        maps.append(weights / weights.sum(-1, keepdims=True))
        scores.append(float(each.sink[head]))
    names, places = zip(*config.chosen, strict=True)
    return xr.Dataset(
        {
            "pattern": (("attention", "query", "key"), np.array(maps)),
            "score": ("attention", scores),
            "tokens": (("attention", "query"), np.array([each.tokens.values for each in found])),
            "positions": ("attention", list(places)),
        },
        {"attention": list(names)},
        {"reduced": Sinks(trial=config.trial, rate=(config.trial.rate,)).reduced},
    )
