"""How often one exchanged token flips the prediction, and where CLS looks while it learns."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from attnflow.papers.polarization._drawing import GALLERY
from attnflow.papers.polarization._induction import ATTENTIONS
from attnflow.papers.polarization._induction_figures import lacking, shown
from attnflow.papers.polarization._swaps import GROUPS, Swap
from attnflow.papers.style import COLORS, STYLE, canvas, clock_axis, say_below
from attnflow.papers.trials import Trials, reductions, table
from attnflow.runs.config import grid

SMALL = Swap(width=64, batch=64, rate=3e-3, steps=200)
RATES, SEEDS = (1e-2, 1e-3, 1e-4), (0, 1, 2, 3, 4)


@dataclasses.dataclass(frozen=True)
class Flips:
    """Trainings that differ from `trial` in every combination of the other fields."""

    trial: Swap = SMALL
    attention: tuple[str, ...] = ATTENTIONS
    vocabulary: tuple[int, ...] = (40,)
    layers: tuple[int, ...] = (1,)
    heads: tuple[int, ...] = (1,)
    mlp: tuple[bool, ...] = (True,)
    norm: tuple[bool, ...] = (True,)
    rate: tuple[float, ...] = (3e-3,)
    seed: tuple[int, ...] = (0, 1, 2)

    @property
    def axes(self) -> dict[str, tuple[Any, ...]]:
        fields = [each.name for each in dataclasses.fields(self) if each.name != "trial"]
        return {name: getattr(self, name) for name in fields}

    @property
    def grid(self) -> list[Swap]:
        return grid(self.trial, **self.axes)

    @property
    def reduced(self) -> str:
        parts = reductions(self.trial, Swap(), {x: x for x in ("width", "batch", "steps")})
        rates = ", ".join(f"{rate:g}" for rate in self.rate)
        return "; ".join([*parts, f"rates {rates}, seeds {len(self.seed)}"])


def published(**fields: Any) -> Flips:
    return Flips(trial=Swap(), rate=RATES, seed=SEEDS, **fields)


FLIPPED = Trials(GROUPS, lambda config: config.grid)


def measured(config: Flips, found: Sequence[xr.Dataset]) -> xr.Dataset:
    """The greatest flip rate of a training's heads, that of random tokens, and its accuracy."""
    data = table(
        config.axes,
        found,
        flip=lambda each: each.flip.max(skipna=False),
        chance=lambda each: each.chance,
        accuracy=lambda each: each.accuracy,
    )
    return data.assign_attrs(reduced=config.reduced)


def bars(ax: Axes, ds: xr.Dataset, by: str = "", label: str = "") -> None:
    """Flip rates by attention, grouped by the field `by`: means and deviations over rates and
    seeds; a small black line where it is for random tokens."""
    groups = [ds.isel({by: k}) for k in range(ds.sizes[by])] if by else [ds]
    place, wide = np.arange(ds.sizes["attention"]), 0.8 / len(groups)
    for k, own in enumerate(groups):
        own = own.squeeze([name for name in own.dims if name not in ("attention", "rate", "seed")])
        x = place + (k - (len(groups) - 1) / 2) * wide
        mean, spread = own.flip.mean(("rate", "seed")), own.flip.std(("rate", "seed"))
        name = label.format(ds[by].values[k] + 1) if by else None
        style = {"error_kw": {"lw": 0.8, "ecolor": "0.35"}, "label": name}
        below = np.minimum(spread, mean)
        ax.bar(x, mean, wide, color=COLORS[k], yerr=[below, spread], **style)
        chance = own.chance.mean(("rate", "seed"))
        ax.hlines(chance, x - wide / 2, x + wide / 2, color="black", lw=1)
    ax.set(ylim=(0, 1.05))
    ax.set_xticks(place, [shown(name) for name in ds.attention.values], rotation=60, ha="right")
    ax.grid(axis="x", visible=False)
    if by:
        ax.legend(fontsize=8)


@mpl.rc_context(STYLE)
def draw_6(ds: xr.Dataset):
    figure, axes = canvas(1, 1, width=6.0, height=3.4)
    bars(axes[0, 0], ds, "vocabulary", "|V| = {}")
    axes[0, 0].set_ylabel("flips by one token")
    say_below(figure, ds.attrs["reduced"])
    return figure


def draw_panels(ds: xr.Dataset, rows: str, columns: str, title: Any):
    with mpl.rc_context(STYLE):
        shape = ds.sizes[rows], ds.sizes[columns]
        figure, axes = canvas(*shape, width=3.8, height=2.3, sharey=True, sharex=True)
        for (row, column), ax in np.ndenumerate(axes):
            bars(ax, ds.isel({rows: [row], columns: [column]}))
            ax.set_title(title(ds[rows].values[row], ds[columns].values[column]))
            if column == 0:
                ax.set_ylabel("flips by one token")
        say_below(figure, ds.attrs["reduced"])
        return figure


def draw_parts(ds: xr.Dataset):
    def title(mlp: bool, norm: bool) -> str:
        return f"{'MLP' if mlp else 'no MLP'}, {'LayerNorm' if norm else 'no LayerNorm'}"

    return draw_panels(ds, "mlp", "norm", title)


def draw_21(ds: xr.Dataset):
    return draw_panels(
        ds, "heads", "layers", lambda heads, layers: f"heads {heads}, layers {layers}"
    )


HOW = (
    "Two inputs of different labels exchange the token to which CLS gives most; counted is how "
    "often the label goes with it, for the head where that is most often. Black lines: the same "
    "with a random token; grey: one deviation over runs. “÷” is divided by the sum of its row. "
)
LESS = "Quick: smaller width and batch, fewer steps, one learning rate, three seeds."


def register(name: str, title: str, caption: str, drawing: Any, **fields: Any) -> None:
    GALLERY.figure(
        name,
        title=title,
        caption=f"{HOW}{caption} {LESS}",
        quick=Flips(**fields),
        paper=published(**fields),
        draw=drawing,
        tour=False,
        missing=lacking,
        trials=FLIPPED,
    )(measured)


register(
    "6",
    "One exchanged token flips softmax attention, one layer of one head",
    "With MLP and LayerNorm, for three sizes of the vocabulary (CLS counted).",
    draw_6,
    vocabulary=(40, 80, 160),
)
for number, size in (("18", 40), ("19", 80), ("20", 160)):
    register(
        number,
        f"Flips with and without MLP and LayerNorm, |V| = {size + 1}",
        "One layer of one head.",
        draw_parts,
        vocabulary=(size,),
        mlp=(True, False),
        norm=(True, False),
    )
register(
    "21",
    "Flips by number of heads and layers, without MLP and LayerNorm",
    "|V| = 41.",
    draw_21,
    layers=(1, 2),
    heads=(1, 2, 4),
    mlp=(False,),
    norm=(False,),
)


@dataclasses.dataclass(frozen=True)
class Evolution:
    """CLS's weights while it trains, without MLP and LayerNorm."""

    trial: Swap
    attention: tuple[str, ...] = ("softmax", "sigmoid", "linear")

    @property
    def grid(self) -> list[Swap]:
        return grid(self.trial, attention=self.attention)


@mpl.rc_context(STYLE)
def draw_5(ds: xr.Dataset):
    kinds = ds.attention.values
    figure, axes = canvas(2, len(kinds), width=3.0, height=2.2, sharex=True)
    colors = mpl.colormaps["viridis"](np.linspace(0, 0.92, ds.sizes["key"] - 1))
    for (row, column), ax in np.ndenumerate(axes):
        own = ds.weights.isel(sequence=row, attention=column)
        for key in range(ds.sizes["key"] - 1):
            ax.plot(ds.step, own.isel(key=key), color=colors[key], lw=1.2)
        ax.plot(ds.step, own.isel(key=-1), color="black", ls="--", lw=1.2, label="CLS itself")
        clock_axis(ax, float(ds.step[-1]), "step" if row else "")
        if row == 0:
            ax.set_title(kinds[column])
        if column == 0:
            ax.set_ylabel(f"weight of a token,\nlabel {row + 1}")
    axes[0, 0].legend(fontsize=8)
    say_below(figure, ds.attrs["reduced"])
    return figure


@GALLERY.figure(
    "5",
    title="CLS's attention while it learns, in two inputs of different labels",
    caption="One layer, one head, no MLP, no LayerNorm; a line for each of the ten tokens and for "
    "CLS. Softmax ends with almost all weight on one token of each input; sigmoid and linear "
    "attention, which are divided by nothing, keep many. Quick: less width, batch and steps.",
    quick=Evolution(dataclasses.replace(SMALL, mlp=False, norm=False, looks=30)),
    paper=Evolution(Swap(mlp=False, norm=False, looks=60)),
    draw=draw_5,
    tour=False,
    missing=lacking,
    trials=FLIPPED,
)
def figure_5(config: Evolution, found: Sequence[xr.Dataset]) -> xr.Dataset:
    rows = [each.weights.isel(layer=0, head=0).drop_attrs() for each in found]
    weights = np.stack([each.values for each in rows])
    return xr.Dataset(
        {"weights": (("attention", "step", "sequence", "key"), weights)},
        {"attention": list(config.attention), "step": found[0].step.values},
        {"reduced": Flips(trial=config.trial, rate=(config.trial.rate,), seed=(0,)).reduced},
    )
