"""The figures of the U-shape paper, and a map of where the U is a W."""

import dataclasses

import matplotlib as mpl
import numpy as np
import xarray as xr
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch
from scipy.interpolate import CubicSpline
from scipy.special import wrightomega

from attnflow.dynamics.flow import gradient_flow
from attnflow.models.two_token import TwoToken
from attnflow.papers.gallery import Gallery
from attnflow.papers.style import COLORS, STYLE, canvas
from attnflow.papers.u_shape._path import W_FIRST, W_SECOND, U, walk

GALLERY = Gallery("u_shape")
BLUE, ORANGE, GREEN, RED = COLORS[:4]
NORM2 = r"$\|M(t)\|_F^2$"


@dataclasses.dataclass(frozen=True)
class Trajectory:
    """One sharp-wrong flow of two tokens until t1."""

    p: float = 0.0
    c: float = 6.0
    t1: float = 1e5
    points: int = 200


@mpl.rc_context(STYLE)
def draw_trajectory(ds: xr.Dataset):
    figure, axes = canvas(width=5.0, height=3.3)
    ax = axes[0, 0]
    shown = ds.isel(time=slice(1, None))
    ax.semilogx(shown.time, shown.norm2, color="black", label="gradient flow")
    first, last = float(shown.time[0]), float(shown.time[-1])
    edges = np.clip([*ds.phase_start.values, last], first, last)
    for name, start, end in zip(ds.attrs["phases"].split(), edges[:-1], edges[1:], strict=True):
        ax.axvspan(start, end, color=ORANGE if "heating" in name else BLUE, alpha=0.12, lw=0)
        where = (np.sqrt(start * end), 0.93)
        ax.text(*where, name, transform=ax.get_xaxis_transform(), ha="center", style="italic")
    for time, norm2 in zip(ds.critical_time.values, ds.critical_norm2.values, strict=True):
        ax.plot(time, norm2, "o", color=RED)
        text = f"$T_1$ = {time:.1f}, {NORM2} = {norm2:.4g}"
        ax.annotate(text, (time, norm2), (0, -15), textcoords="offset points", ha="center")
    ax.axhline(float(ds.norm2[0]), color="grey", lw=0.8, ls=":")
    ax.text(first * 1.3, float(ds.norm2[0]), f"start: {float(ds.norm2[0]):.4g}", va="bottom")
    low, high = float(ds.norm2.min()), float(ds.norm2.max())
    ax.set(xlim=(first, last), ylim=(low - 0.2 * (high - low), high + 0.2 * (high - low)))
    ax.set(xlabel="time $t$", ylabel=NORM2)
    ax.set_title(f"p = {ds.attrs['p']:g}, $c_0 = c_1$ = {ds.attrs['c']:g}")
    return figure


@GALLERY.figure(
    "1",
    title="The norm of the interaction matrix contracts before it grows",
    caption="|M(t)|² of two orthogonal tokens (p = 0) in d = 2, started with both logit gaps at 6 "
    "toward the wrong token. The norm falls from 72 = 2·6² to exactly half of that, at T₁ ≈ 144 "
    "where both gaps pass through zero (heating), and grows like log² t ever after (forging).",
    quick=Trajectory(),
    paper=Trajectory(t1=1e6, points=2000),
    draw=draw_trajectory,
)
def trajectory(config: Trajectory) -> xr.Dataset:
    model = TwoToken(p=config.p, c0=config.c, c1=config.c)
    model.require_sharp_wrong()
    turns = model.critical_points(points=config.points)
    flow = gradient_flow(model, config.t1, points=config.points)
    ds = flow[["norm2", "loss", "xi"]]
    ds["critical_time"] = ("critical", turns.times)
    ds["critical_norm2"] = ("critical", turns.norm2)
    ds["phase_start"] = ("phase", [phase.start for phase in turns.phases])
    ds.attrs |= {
        "p": config.p,
        "c": config.c,
        "phases": " ".join(phase.name for phase in turns.phases),
    }
    return ds


@dataclasses.dataclass(frozen=True)
class Toy:
    """The decoupled example: orthogonal tokens, loss −log A₀₀ − log A₁₁, gaps c."""

    gaps: tuple[float, ...] = (2.0, 4.0, 6.0)
    t1: float = 2e3
    points: int = 200


def toy_gap(time, c):
    """ξ(t) of ξ' = −2σ(ξ), ξ(0) = c: ξ − e^-ξ = c − e^-c − 2t =: k, so ξ = k + W(e^-k)."""
    k = c - np.exp(-c) - 2 * np.asarray(time)
    return k + wrightomega(-k)


def toy_times(c):
    """(T1, T2): the gap is 0 at (c + 1 − e^-c)/2, and −c at c + sinh c."""
    c = np.asarray(c)
    return (c + 1 - np.exp(-c)) / 2, c + np.sinh(c)


@mpl.rc_context(STYLE)
def draw_toy(ds: xr.Dataset):
    figure, axes = canvas(1, 2, width=4.2, height=3.2)
    rho_axis, gap_axis = axes[0]
    every = slice(4, None, 8)
    for color, c in zip(COLORS, ds.gap.values, strict=False):
        run = ds.sel(gap=c)
        for ax, flow, closed in (
            (rho_axis, run.rho / c, run.rho_closed / c),
            (gap_axis, run.xi / c, run.xi_closed / c),
        ):
            ax.semilogx(ds.time[1:], flow[1:], color=color, label=f"c = {c:g}")
            ax.semilogx(ds.time[every], closed[every], "o", color=color, ms=3.5, mfc="white")
        for time, closed, marker in (
            (run.first_time, run.first_closed, "v"),
            (run.second_time, run.second_closed, "^"),
        ):
            y = toy_rho(float(time), c) / c
            rho_axis.semilogx(time, y, marker, color=color, ms=8, mec="black", mew=0.7, zorder=3)
            rho_axis.axvline(float(closed), color=color, lw=0.7, ls=":")
    rho_axis.axhline(2**-0.5, color="grey", lw=0.8, ls="--")
    rho_axis.text(float(ds.time[2]), 2**-0.5 + 0.01, r"$1/\sqrt{2}$", color="grey")
    gap_axis.axhline(0, color="grey", lw=0.8, ls="--")
    gap_axis.axhline(-1, color="grey", lw=0.8, ls="--")
    rho_axis.set(ylim=(0.65, 1.3), ylabel=r"row norm $\rho(t)\,/\,c$")
    gap_axis.set(ylim=(-2.2, 1.1), ylabel=r"logit gap $\xi(t)\,/\,c$")
    rho_axis.set_title("(a) trough $T_1$ (▼) and return $T_2$ (▲)")
    gap_axis.set_title("(b) flow (lines), closed form (circles)")
    for ax in axes[0]:
        ax.set(xlabel="time $t$")
        ax.legend(loc="upper left" if ax is rho_axis else "lower left")
    return figure


def toy_rho(time, c):
    """ρ² = u² + v² with u + v = c and v − u = ξ."""
    return np.sqrt((c**2 + toy_gap(time, c) ** 2) / 2)


@GALLERY.figure(
    "toy",
    title="The toy example, flow and closed form",
    caption="One row of M for orthogonal tokens under the loss −Σ log A_ii, from M(0) = "
    "[[0, c], [c, 0]] for several gaps c. The row norm ρ falls from c to c/√2 at T₁ = "
    "(c + 1 − e^−c)/2 and is back at c at T₂ = c + sinh c: melting takes a time linear in c, "
    "rebuilding an exponential one. Lines: the integrated flow; circles: ξ(t) by the Lambert "
    "function; triangles: times found on the flow; dotted: their closed forms.",
    quick=Toy(),
    paper=Toy(gaps=(1.0, 2.0, 4.0, 6.0, 8.0), t1=1e5, points=400),
    draw=draw_toy,
)
def toy(config: Toy) -> xr.Dataset:
    c = np.asarray(config.gaps)
    model = TwoToken(p=0.0, objective="attention")
    flow = gradient_flow(model, config.t1, points=config.points, over={"c0": c, "c1": c})
    xi = flow.xi.values[:, :, 0]
    closed_first, closed_second = toy_times(c)
    first, second = np.transpose(
        [[reached(flow.log_time, gap, 0), reached(flow.log_time, gap, -gap[0])] for gap in xi]
    )
    return xr.Dataset(
        {
            "xi": (("gap", "time"), xi),
            "xi_closed": (("gap", "time"), toy_gap(flow.time, c[:, None])),
            "rho": (("gap", "time"), np.sqrt(flow.norm2.values / 2)),
            "rho_closed": (("gap", "time"), toy_rho(flow.time, c[:, None])),
            "first_time": ("gap", first),
            "second_time": ("gap", second),
            "first_closed": ("gap", closed_first),
            "second_closed": ("gap", closed_second),
        },
        coords={"gap": c, "time": flow.time.values},
    )


def reached(log_time, gap, value: float) -> float:
    """The time at which a falling gap takes a value, by a spline through the flow's points."""
    (root,) = CubicSpline(log_time, gap).solve(value, extrapolate=False)
    return float(np.expm1(root))


@dataclasses.dataclass(frozen=True)
class Troughs:
    """A square grid of gaps for each p; `marked` are the (c0, c1) whose norms are shown."""

    p: tuple[float, ...] = (-0.8, -0.4, 0.0, 0.4)
    largest: float = 12.0
    cells: int = 25
    steps: int = 1500
    marked: tuple[tuple[float, float], ...] = ((6.0, 6.0), (9.0, 4.0))


SHAPES = {
    U: ("one trough (U)", "#F2F2F2"),
    W_FIRST: ("two troughs (W), the first is lower", "#56B4E9"),
    W_SECOND: ("two troughs (W), the second is lower", "#0072B2"),
}


@mpl.rc_context(STYLE)
def draw_troughs(ds: xr.Dataset):
    figure, axes = canvas(2, ds.sizes["p"], width=2.7, height=2.7)
    colors = ListedColormap([color for _, color in SHAPES.values()])
    marks = list(zip(ds.marked.values, (RED, "black", GREEN, ORANGE), "so^D", strict=False))
    for index, p in enumerate(ds.p.values):
        panel, (top, bottom) = ds.sel(p=p), axes[:, index]
        shape = panel["shape"].where(panel["shape"] > 0)
        top.pcolormesh(ds.c0, ds.c1, shape.T, cmap=colors, vmin=0.5, vmax=3.5, shading="nearest")
        top.set(title=f"p = {p:g}", xlabel="$c_0$", ylabel="$c_1$" if index == 0 else "")
        top.set_aspect("equal")
        top.grid(visible=False)
        last_turn = 1.0
        for mark, ((c0, c1), color, marker) in enumerate(marks):
            top.plot(c0, c1, marker, color=color, mec="white", ms=7)
            run = panel.isel(mark=mark)
            time, norm2 = run.time.values, run.norm2.values / run.norm2.values[0]
            label = f"$c_0$ = {c0:g}, $c_1$ = {c1:g}"
            bottom.semilogx(np.maximum(time, 1), norm2, color=color, label=label)
            turns = np.flatnonzero(np.diff(run.slope_sign.values))
            bottom.plot(time[turns], norm2[turns], marker, color=color, ms=4)
            last_turn = max(last_turn, time[turns[-1]])
        bottom.set(xlabel="time $t$", ylim=(-0.08, 2.6))
        bottom.set_ylabel("moving part of $\\|M\\|_F^2$\n(start = 1)" if index == 0 else "")
        bottom.set_xlim(1, 100 * last_turn)
    axes[1, 0].legend(loc="upper left", fontsize=7)
    present = [SHAPES[shape] for shape in np.unique(ds["shape"]) if shape in SHAPES]
    patches = [Patch(facecolor=color, label=label, ec="grey") for label, color in present]
    figure.legend(handles=patches, loc="outside upper center", ncols=3)
    return figure


@GALLERY.figure(
    "troughs",
    title="Where the U is a W",
    caption="Critical points of |M(t)|² over the sharp-wrong starts (c₀, c₁), for several inner "
    "products p of the tokens. Light: one trough. Blue: three critical points; the norm has risen "
    "again when the more wrong token turns at last, and falls a second time, in every such cell "
    "below the first trough, so that T₁ is not the global minimum. The W is the rule for unequal "
    "gaps, the more so the larger p; on the diagonal there is always one trough. Below: the part "
    "of |M|² that the flow can move, at the two marked starts, with its critical points.",
    quick=Troughs(),
    paper=Troughs(p=(-0.8, -0.4, 0.0, 0.4, 0.8), cells=97, steps=6000),
    draw=draw_troughs,
)
def troughs(config: Troughs) -> xr.Dataset:
    c = config.largest * np.arange(1, config.cells + 1) / config.cells
    marked = np.asarray(config.marked)
    padded = np.resize(marked, (config.cells, 2))  # the batch size that is compiled already

    def column(p: float) -> xr.Dataset:
        # For p > 0 the waiting token's gap rises by up to p (c0 + c1)/(1 − p) before it falls.
        options = {"length": 7 * config.largest / (1 - max(p, 0)), "steps": config.steps}
        run, few = walk(p, *padded.T, **options), slice(len(marked))
        return xr.Dataset(
            {
                "shape": (("c0", "c1"), [walk(p, c0, c, **options).shapes() for c0 in c]),
                "time": (("mark", "path"), run.time[few]),
                "norm2": (("mark", "path"), run.norm2[few]),
                "slope_sign": (("mark", "path"), run.slope_sign[few]),
            },
            coords={"c0": c, "c1": c},
        )

    columns = xr.Variable("p", np.asarray(config.p))
    ds = xr.concat([column(p) for p in config.p], dim="p").assign_coords(p=columns)
    ds["marked"] = (("mark", "gap"), marked)
    return ds
