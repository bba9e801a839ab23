"""The published statistics of keys, values and conditioning, beside those of our students."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import xarray as xr

from attnflow.papers.conditioning._gallery import GALLERY
from attnflow.papers.conditioning._vision import TEACHERS
from attnflow.papers.conditioning._vision_figures import COLOR, SHARED
from attnflow.papers.conditioning._vision_study import VisionStudy, arranged
from attnflow.papers.style import STYLE, canvas, say_below

CAP = 1e3  # ρ above it, infinite ones too, are drawn there
Statistics = Mapping[str, Callable[[np.ndarray], Any]]
LEAKAGE: Statistics = {
    "median": np.median,
    "90th percentile": lambda x: np.quantile(x, 0.9, method="lower"),  # some are infinite
    "maximum": np.max,
    "share below 1": lambda x: np.mean(x < 1),
}
MARGIN: Statistics = {
    "median": np.median,
    "10th percentile": lambda x: np.quantile(x, 0.1),
    "minimum": np.min,
    "share above 0": lambda x: np.mean(x > 0),
}
CONDITION: Statistics = {
    "median": lambda x: 10 ** np.median(x),
    "90th percentile": lambda x: 10 ** np.quantile(x, 0.9),
}
READINGS = {"rho_sampled": "sampled", "rho": "all", "rho_pooled": "pooled"}


def table(runs: xr.Dataset, columns: Mapping[str, str], statistics: Statistics) -> xr.Dataset:
    """`value` (statistic, column): each statistic of each variable (name: title), of the students
    of both teachers, over layers, heads, seeds and, where it has them, examples."""
    titles, values = [], []
    for name, title in columns.items():
        for sparsity in TEACHERS:
            found = runs[name].sel(sparsity=sparsity).values.ravel()
            found = found[~np.isnan(found)]
            titles.append(f"{sparsity},\n{title}" if title else sparsity)
            values.append([float(statistic(found)) for statistic in statistics.values()])
    return xr.Dataset(
        {"value": (("statistic", "column"), np.array(values).T)},
        coords={"statistic": list(statistics), "column": titles},
        attrs=runs.attrs,
    )


def _draw_table(ax, data: xr.Dataset, printed: Sequence[float]) -> None:
    cells = [
        [_short(first), *(_short(float(x)) for x in row)]
        for first, row in zip(printed, data.value.values, strict=True)
    ]
    ax.axis("off")
    made = ax.table(
        cells,
        rowLabels=[str(each) for each in data.statistic.values],
        colLabels=["printed", *(str(each) for each in data.column.values)],
        cellLoc="center",
        bbox=(0.24, 0.1, 0.76, 0.8),
        edges="horizontal",
    )
    made.auto_set_font_size(False)
    made.set_fontsize(8)


def _short(value: float) -> str:
    if not np.isfinite(value):
        return "∞"
    if value and not 1e-3 <= abs(value) < 1e3:
        mantissa, power = f"{value:.1e}".split("e")
        return f"${mantissa}\\times 10^{{{int(power)}}}$"
    return f"{value:.3g}"


def _sorted_heads(ax, values: np.ndarray, marker: str, color: str, label: str) -> None:
    found = np.sort(values[~np.isnan(values)])
    ax.plot(np.arange(1, len(found) + 1), found, marker, ms=3, color=color, label=label)


LEAKED = (0.244, 0.365, 0.431, 1.0)


@mpl.rc_context(STYLE)
def draw_leakage(data: xr.Dataset):
    figure, axes = canvas(1, 2, width=6.4, height=3.0, width_ratios=(1.6, 1))
    _draw_table(axes[0, 0], data, LEAKED)
    for sparsity in TEACHERS:
        for (name, title), marker in zip(READINGS.items(), "o^x", strict=True):
            values = np.minimum(data[name].sel(sparsity=sparsity).values, CAP)
            _sorted_heads(axes[0, 1], values, marker, COLOR[sparsity], f"{sparsity}, {title}")
    axes[0, 1].axhline(1, color="0.4", ls="--", lw=1)
    axes[0, 1].set(yscale="log", xlabel="heads, sorted", ylabel=r"$\rho_U$")
    axes[0, 1].legend(fontsize=6)
    say_below(figure, data.attrs["setting"])
    return figure


@GALLERY.figure(
    "table-1",
    title="Leakage of important keys out of their subspace",
    caption="ρ_U of all layers, heads and seeds, for students of both teachers: the greatest of "
    "the held-out images over 200 random directions (sampled, as published) and over all "
    "directions, and over all with the keys of all images pooled (the paper does not say how "
    "images are joined). Some heads leak more than 1 in each reading. Right: head by head; values "
    "above 1,000 are drawn there.",
    draw=draw_leakage,
    **SHARED,
)
def table_1(study: VisionStudy, found: Sequence[xr.Dataset]) -> xr.Dataset:
    runs = arranged(study, found)
    return table(runs, READINGS, LEAKAGE).merge(runs[list(READINGS)])


MARGINS = (0.030, 0.001, 0.0002, 1.0)


@mpl.rc_context(STYLE)
def draw_margins(data: xr.Dataset):
    figure, axes = canvas(1, 2, width=4.6, height=2.8)
    _draw_table(axes[0, 0], data, MARGINS)
    for sparsity in TEACHERS:
        values = data.margin.sel(sparsity=sparsity).values
        _sorted_heads(axes[0, 1], values, "o", COLOR[sparsity], f"{sparsity} teacher")
    for level, style, label in zip(MARGINS, "-:", ("median", "10th percentile"), strict=False):
        axes[0, 1].axhline(level, color="0.4", ls=style, lw=1, label=f"printed {label}")
    axes[0, 1].set(yscale="log", xlabel="heads, sorted", ylabel=r"$\delta_{\min}$ over images")
    axes[0, 1].legend(fontsize=7)
    say_below(figure, data.attrs["setting"])
    return figure


@GALLERY.figure(
    "table-2",
    title="Margins of important keys' values",
    caption="δ_min: the least distance, over held-out images, of an important key's value from "
    "the attended mean, for all layers, heads and seeds. Distances of vectors are above zero "
    "unless two coincide, and decrease with the number of images; their size depends on that of "
    "the values.",
    draw=draw_margins,
    **SHARED,
)
def table_2(study: VisionStudy, found: Sequence[xr.Dataset]) -> xr.Dataset:
    runs = arranged(study, found)
    return table(runs, {"margin": ""}, MARGIN).merge(runs[["margin"]])


CONDITIONS = (4.4e5, 2.1e8)
WAYS = {"estimate": "(max a/min a)²", "kappa": "exact"}


@mpl.rc_context(STYLE)
def draw_condition(data: xr.Dataset):
    figure, axes = canvas(1, 2, width=5.6, height=2.8, width_ratios=(1.5, 1))
    _draw_table(axes[0, 0], data, CONDITIONS)
    for sparsity in TEACHERS:
        run = data.sel(sparsity=sparsity)
        dots = run.kappa_by_head.values.ravel(), run.estimate_by_head.values.ravel()
        axes[0, 1].plot(*dots, "o", ms=3, color=COLOR[sparsity], label=f"{sparsity} teacher")
    low, high = axes[0, 1].get_xlim()
    ends = np.array([low, high])
    axes[0, 1].plot(ends, ends, color="0.4", lw=1, label="equal")
    axes[0, 1].plot(ends, ends + 1, ":", color="0.4", lw=1, label="ten times")
    axes[0, 1].set(xlabel=r"$\log_{10}\kappa(J^2)$", ylabel=r"$\log_{10}(\max a/\min a)^2$")
    axes[0, 1].legend(fontsize=7)
    say_below(figure, data.attrs["setting"])
    return figure


@GALLERY.figure(
    "table-3",
    title="Condition numbers of softmax Jacobians, estimated and exact",
    caption="κ(J²) of the class token's rows, by the published estimate (max a/min a)² and "
    "exactly, over all layers, heads, seeds and held-out images; the estimate is an upper bound. "
    "Right: means of the logarithms, head by head.",
    draw=draw_condition,
    **SHARED,
)
def table_3(study: VisionStudy, found: Sequence[xr.Dataset]) -> xr.Dataset:
    runs = arranged(study, found)
    heads = runs[list(WAYS)].mean("example").rename({way: f"{way}_by_head" for way in WAYS})
    return table(runs, WAYS, CONDITION).merge(heads)
