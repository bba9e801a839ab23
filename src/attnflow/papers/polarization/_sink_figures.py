"""From one row of attention to a sink: the tied model, and many queries over shared values."""

import dataclasses

import matplotlib as mpl
import numpy as np
import optax
import xarray as xr

from attnflow.dynamics.descent import descend
from attnflow.dynamics.flow import gradient_flow
from attnflow.models.sink_matrix import SinkMatrix
from attnflow.models.tied import TiedValueSoftmax
from attnflow.papers.polarization._drawing import GALLERY, legacy, token_lines
from attnflow.papers.style import COLORS, STYLE, canvas


@dataclasses.dataclass(frozen=True)
class Tied:
    """U(0) = I, a(0) = 1 + query_scale · N(0, 1), target 1/√D (the text gives none)."""

    dimensions: tuple[int, ...] = (10, 20)
    seed: int = 0
    query_scale: float = 0.1
    step: float = 0.05
    steps: int = 10_000
    records: int = 100


FIG_11 = Tied(dimensions=(10, 20, 50, 100), step=0.05, steps=10_000)


@mpl.rc_context(STYLE)
def draw_tied(ds: xr.Dataset):
    dimensions = ds.dimension.values
    figure, axes = canvas(2, dimensions.size, width=2.7, height=2.4, sharey="row")
    for column, dimension in enumerate(dimensions):
        run = ds.isel(dimension=column, token=slice(dimension))
        for ax, name in zip(axes[:, column], ("weights", "column_norms"), strict=True):
            values = run[name].values
            others = ax.semilogx(ds.step[1:], values[1:, 1:], color=COLORS[1], lw=0.7)
            others[0].set_label("the others")
            ax.semilogx(ds.step[1:], values[1:, 0], color=COLORS[0], lw=2.2, label="token $m$")
        axes[0, column].set(title=f"D = {dimension}", ylim=(-0.02, 1.02))
        axes[1, column].set(xlabel="descent step")
    axes[0, 0].set_ylabel(r"weights $\sigma(Ua)_i$")
    axes[1, 0].set_ylabel(r"column norms $\|U^{(i)}\|$")
    axes[0, 0].legend(loc="upper left")
    return figure


@GALLERY.figure(
    "11",
    title="The tied model: a sparse attention and one massive column",
    caption="Uσ(Ua) with the logistic loss, U(0) = I, a(0) = 1 + 0.1·N(0, 1), step 0.05 × 10,000, "
    "in several dimensions D. All the weight goes to the token m of the largest entry of a "
    "(blue), and the norm of the column of U that belongs to it keeps growing like log t, while "
    "the other columns (orange) stop near 1: a massive activation beside the sink.",
    quick=Tied(),
    paper=FIG_11,
    draw=draw_tied,
)
def tied(config: Tied) -> xr.Dataset:
    runs = []
    for dimension in config.dimensions:
        query = 1 + config.query_scale * legacy(config.seed).randn(dimension)
        model = TiedValueSoftmax(dimension=dimension, query=query)
        run = descend(model, config.steps, optax.sgd(config.step), record=config.records)
        order = np.argsort(-run["query"].values[-1])
        runs.append(run[["weights", "column_norms", "query", "loss"]].isel(token=order))
    widest = range(max(config.dimensions))
    ds = xr.concat(
        [run.assign_coords(token=range(run.sizes["token"])).reindex(token=widest) for run in runs],
        dim="dimension",
    )
    return ds.assign_coords(dimension=list(config.dimensions)).drop_attrs()


@dataclasses.dataclass(frozen=True)
class Sink:
    """T queries over T shared values, u(0) = projection_scale · N(0, 1), the largest first.

    The rows of A(0) are all zero, or drawn on their own as row_scale · N(0, 1). Weights are kept
    at the values `shown` of log(1 + t).
    """

    tokens: int = 8
    seed: int = 0
    projection_scale: float = 0.1
    row_scale: float = 1.0
    log_t1: float = 100.0
    points: int = 201
    shown: tuple[float, ...] = (0.0, 10.0, 15.0, 100.0)


STARTS = ("identical rows", "independent rows")


@mpl.rc_context(STYLE)
def draw_sink(ds: xr.Dataset):
    figure, axes = canvas(2, ds.sizes["shown"] + 1, width=2.3, height=2.4)
    image = None
    for row, start in enumerate(STARTS):
        run = ds.isel(start=row)
        for column, log_time in enumerate(ds.shown.values):
            ax = axes[row, column]
            image = ax.imshow(run.weights[column], vmin=0, vmax=1, cmap="viridis")
            ax.grid(visible=False)
            ax.set(xlabel="key" if row else "", ylabel=f"{start}\nquery" if column == 0 else "")
            ax.set_title(f"log(1 + t) = {log_time:g}" if row == 0 else "")
        ax = axes[row, -1]
        token_lines(ax, ds.log_time, run.sink_mass)
        ax.set(
            ylim=(-0.02, 1.02), xlabel="log(1 + t)" if row else "", ylabel="mean weight of a key"
        )
        ax.set_title("share of each key" if row == 0 else "")
    assert image is not None
    figure.colorbar(image, ax=axes[:, :-1].ravel().tolist(), label="weight", shrink=0.7)
    return figure


@GALLERY.figure(
    "sink",
    title="A sink needs rows that start alike",
    caption="Row-softmax of a square score matrix over shared values, logistic loss averaged over "
    "queries, u(0) = 0.1·N(0, 1). Top: with A(0) = 0 every query ends on the key of the largest "
    "u(0), key 0 (blue): a sink. Bottom: with independent rows N(0, 1) queries settle on "
    "different keys, and the division stays as far as the flow is followed, where t is far "
    "beyond every number of steps. Right: mean weight that each key receives.",
    quick=Sink(),
    paper=Sink(tokens=16, log_t1=1000.0, points=2001, shown=(0.0, 10.0, 15.0, 100.0, 1000.0)),
    draw=draw_sink,
)
def sink(config: Sink) -> xr.Dataset:
    rng = legacy(config.seed)
    projections = np.sort(config.projection_scale * rng.randn(config.tokens))[::-1]
    shape = (config.tokens, config.tokens)
    scores = np.stack([np.zeros(shape), config.row_scale * rng.randn(*shape)])
    model = SinkMatrix(projections=tuple(projections), scores=scores[0])
    flow = gradient_flow(
        model,
        log_t1=config.log_t1,
        points=config.points,
        over={"scores": scores, "projections": np.tile(projections, (2, 1))},
    )
    ds = flow[["sink_mass", "entropy", "loss"]].swap_dims(time="log_time").drop_vars("time")
    weights = flow.weights.swap_dims(time="log_time").sel(
        log_time=list(config.shown), method="nearest"
    )
    ds["weights"] = (("run", "shown", "query", "key"), weights.values)
    ds = ds.assign_coords(shown=list(config.shown))
    return ds.rename(run="start").drop_attrs()
