"""SGD at finite dimension beside the flow of its order parameters."""

import dataclasses
from typing import Any

import matplotlib as mpl
import numpy as np
import xarray as xr
from matplotlib.lines import Line2D

from attnflow.dynamics.sgd import sgd
from attnflow.instruments import split_times
from attnflow.models.single_location import SingleLocation
from attnflow.papers.specialization._drawing import GALLERY
from attnflow.papers.specialization._figures_flow import (
    ACTIVATIONS,
    flow_from,
    params_at,
    risk,
    signal_of,
)
from attnflow.papers.style import COLORS, STYLE, canvas


@dataclasses.dataclass(frozen=True)
class Comparison:
    """SGD with batches of D sequences, τ up to `last`, and the flow from where SGD starts."""

    signal: tuple = ("flipping", 2.0, 2.0)
    tokens: int = 10
    heads: int = 2
    activations: tuple[str, ...] = ("softmax",)
    dimension: int = 4000
    rate: float = 0.1
    last: float = 100.0
    level: str = "fast"
    records: int = 40
    samples: int = 8192
    seed: int = 2

    def model(self, activation: str) -> SingleLocation:
        return SingleLocation(
            signal_of(self.signal),
            tokens=self.tokens,
            heads=self.heads,
            activation=activation,
            dimension=self.dimension,
            samples=self.samples,
        )


def overlap_params(run: xr.Dataset) -> dict[str, np.ndarray]:
    """Order parameters of one recorded step: m, and a root of q − m p⁻¹ mᵀ."""
    m, q, p = run.m.values, run.q.values, run.p.values
    params = {"m": m, "r": np.linalg.cholesky(q - m @ np.linalg.solve(p, m.T))}
    names = {"b": "bias", "v": "gain"}
    return params | {x: run[y].values for x, y in names.items() if y in run}


def comparison(config: Comparison) -> xr.Dataset:
    parts = [_compared(config, config.model(activation)) for activation in config.activations]
    ds = xr.concat(parts, "activation", join="outer", data_vars="all")
    return ds.assign_coords(activation=list(config.activations))


def _compared(config: Comparison, model: SingleLocation) -> xr.Dataset:
    run = sgd(
        model,
        round(config.last / config.rate),
        config.rate,
        level=config.level,
        record=config.records,
        seed=config.seed,
    ).isel(run=0, drop=True)
    seen = [overlap_params(run.isel(step=step)) for step in range(run.sizes["step"])]
    flow = flow_from(model, seen[0], np.linspace(0, config.last, 80), rtol=1e-3)
    along = [params_at(flow, time) for time in range(flow.sizes["time"])]
    data: dict[str, Any] = {
        "sgd_loss": ("record", [risk(model, params) for params in seen]),
        "loss": ("time", [risk(model, params) for params in along]),
    }
    for prefix, rows, lead in (("sgd_", seen, "record"), ("", along, "time")):
        m = np.stack([row["m"] for row in rows])
        noise = np.stack([row["r"] @ row["r"].T for row in rows])
        data[f"{prefix}m"] = ((lead, "head", "feature"), m)
        data[f"{prefix}q"] = ((lead, "head", "other_head"), m @ m.mT + noise)
        absent = np.full((len(rows), config.heads), np.nan)
        data[f"{prefix}b"] = (
            ((lead, "head"), np.stack([row["b"] for row in rows]))
            if "b" in rows[0]
            else ((lead, "head"), absent)
        )
        data[f"{prefix}v"] = (lead, [float(row.get("v", np.nan)) for row in rows])
    data["split_time"] = ("feature", split_times(flow.time.values, flow.m.values))
    data["sgd_split_time"] = ("feature", split_times(run.time.values, run.m.values))
    return xr.Dataset(data, {"time": flow.time.values, "sgd_time": ("record", run.time.values)})


FLOW_AND_SGD = [
    Line2D([], [], color="black", label="flow (Prop. III.2)"),
    Line2D([], [], color="black", ls="", marker="o", ms=3, label="SGD at finite $D$"),
]


@mpl.rc_context(STYLE)
def draw_comparison(ds: xr.Dataset):
    biased = bool(ds.b.notnull().any())
    columns = 5 if biased else 4
    figure, axes = canvas(ds.sizes["activation"], columns, width=2.7, height=2.1)
    for row, activation in enumerate(ds.activation.values):
        here = ds.isel(activation=row)
        dots = {"ls": "", "marker": "o", "ms": 2.5}
        panels = (("loss", "risk"), ("m", "$m_{h1}$"), ("m", "$m_{h2}$"), ("q", "$q_{hh'}$"))
        for column, (name, label) in enumerate(panels):
            ax = axes[row, column]
            line, dot = here[name].values, here[f"sgd_{name}"].values
            if name == "m":
                line, dot = line[..., column - 1], dot[..., column - 1]
            line, dot = line.reshape(len(line), -1), dot.reshape(len(dot), -1)
            for each in range(line.shape[1]):
                color = _pair_color(each, ds.sizes["head"]) if name == "q" else COLORS[each]
                ax.plot(here.time, line[:, each], color=color, lw=1.4)
                ax.plot(here.sgd_time, dot[:, each], color=color, **dots)
            ax.set_ylabel(label)
        split = here.split_time.values[-1]
        if np.isfinite(split):
            axes[row, 2].axvline(split, color="0.5", lw=0.8, ls="--")
        if biased:
            _bias_and_gain(axes[row, 4], here, dots)
        for ax in axes[row]:
            ax.set_xlabel(r"$\tau$" if row + 1 == ds.sizes["activation"] else "")
        title = ACTIVATIONS[str(activation)]
        axes[row, 0].set_title(title, loc="left")
    axes[0, 0].legend(handles=FLOW_AND_SGD, fontsize=7)
    return figure


def _pair_color(place: int, heads: int) -> str:
    """q_hh in the colour of head h, the overlaps of different heads in grey."""
    head, other = divmod(place, heads)
    return COLORS[head] if head == other else COLORS[-1]


def _bias_and_gain(ax, ds: xr.Dataset, dots: dict) -> None:
    if ds.b.isnull().all():
        ax.set_axis_off()
        return
    for head in range(ds.sizes["head"]):
        ax.plot(ds.time, ds.b[:, head], color=COLORS[head], lw=1.4)
        ax.plot(ds.sgd_time, ds.sgd_b[:, head], color=COLORS[head], **dots)
    ax.set_ylabel("$b_h$")
    if ds.v.notnull().any():
        ax.plot(ds.time, ds.v, color="black", lw=1.4)
        ax.plot(ds.sgd_time, ds.sgd_v, color="black", **dots)
        ax.set_ylabel("$b_h$, $v$ (black)")


HOW = (
    " Lines: the flow from SGD's own overlaps at the start; dots: SGD with batches of D sequences "
    "(their risk is the asymptotic one at their overlaps), without D-dimensional vectors, tokens "
    "taken as orthonormal (an error of order 1/D). Published: D = 10⁴, rate 0.02; "
    "quick: D = 4,000 and 2,000, rate 0.1 and 0.2."
)
FIG_1 = Comparison(dimension=10_000, rate=0.02, last=100.0)

GALLERY.figure(
    "1",
    title="SGD follows the flow of its order parameters",
    caption="Flipping spike ν₁ = ν₂ = 2, L = 10, two softmax heads, η = 1. Both heads take up the "
    "constant feature within τ of about 10 and stay alike; then they part along the flipping one. "
    "Dashed: when the flow's heads are 0.5 apart. The text says τ ≈ 10 for D = 10⁴; these "
    "equations give 40 to 90 over five random starts at D = 10⁴, as SGD does. In the last panel "
    "colours are q_hh, grey the overlap of the two heads." + HOW,
    quick=Comparison(),
    paper=FIG_1,
    draw=draw_comparison,
)(comparison)

ALL = tuple(ACTIVATIONS)
FLIPPING = Comparison(tokens=5, activations=ALL, dimension=2000, rate=0.2, samples=4096)
GAUSSIAN = dataclasses.replace(FLIPPING, signal=("gaussian", 2, 8.0, 2.0), heads=4, samples=8192)


def published(config: Comparison) -> Comparison:
    return dataclasses.replace(config, dimension=10_000, rate=0.02, samples=32_768)


GALLERY.figure(
    "9",
    title="SGD and flow for the three activations",
    caption="Flipping spike ν₁ = ν₂ = 2, L = 5, two heads, η = 1: softmax, softmax-1, B-softmax "
    "from the top, with the biases and, for softmax-1, the gain. B-softmax parts first. Under "
    "softmax-1 biases and gain move on slowly to the end." + HOW,
    quick=FLIPPING,
    paper=published(FLIPPING),
    draw=draw_comparison,
)(comparison)

GALLERY.figure(
    "10",
    tour=False,
    title="SGD and flow on Gaussian features",
    caption="Gaussian features ν₁ = 8, ν₂ = 2, L = 5, four heads, η = 1: softmax, softmax-1, "
    "B-softmax from the top. The strong feature is learned first, in two even groups; the weak "
    "one later. Differences between dots and lines are shifts in time: noise of order D^(−1/2) "
    "moves the moment at which a saddle is left." + HOW,
    quick=GAUSSIAN,
    paper=published(dataclasses.replace(GAUSSIAN, last=300.0)),
    draw=draw_comparison,
)(comparison)
