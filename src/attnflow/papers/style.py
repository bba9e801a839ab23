"""One look for every figure: readable at column width, safe for colour-blind eyes."""

import textwrap
from typing import Any

import matplotlib as mpl
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLORS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000", "#999999")

STYLE: dict[Any, Any] = {
    "axes.prop_cycle": cycler(color=COLORS),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "font.size": 9,
    "axes.titlesize": 10,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "figure.dpi": 150,
    "svg.fonttype": "none",
}


def canvas(
    rows: int = 1, columns: int = 1, *, width: float = 3.6, height: float = 2.8, **options
) -> tuple[Figure, np.ndarray]:
    """A figure with a rows × columns array of axes, without pyplot's global state."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False, **options)
    return figure, axes


def clock_axis(ax: Axes, last: float, label: str = "time t") -> None:
    """The x axis even in log(1 + t), the integrator's clock, with ticks at 0 and powers of ten."""
    ax.set_xscale("function", functions=(np.log1p, np.expm1))
    decades = int(np.floor(np.log10(max(last, 1.0))))
    every = max(1, -(-decades // 5))
    powers = range(0, decades + 1, every)
    ax.set_xticks([0, *(10.0**k for k in powers)], ["0", *(f"$10^{{{k}}}$" for k in powers)])
    ax.set_xticks([], minor=True)
    ax.set_xlim(0, last)
    ax.set_xlabel(label)


def say_below(figure: Figure, text: str) -> None:
    """A small grey line under all axes: what was reduced, or how it was made."""
    if text:
        columns = int(17 * figure.get_figwidth())
        figure.supxlabel(textwrap.fill(text, columns), fontsize=7, color="0.4")
