"""A trajectory in the terminal and as a picture."""

from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from attnflow.papers.style import canvas, clock_axis

BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: np.ndarray, width: int = 32) -> str:
    """One character for each of `width` samples, from the least to the greatest value."""
    samples = values[np.linspace(0, len(values) - 1, width).round().astype(int)]
    low, high = samples.min(), samples.max()
    if high - low <= 1e-12 * max(abs(low), abs(high)):
        return "─" * width
    levels = np.rint((samples - low) / (high - low) * (len(BARS) - 1)).astype(int)
    return "".join(BARS[level] for level in levels)


def components(flow: xr.Dataset) -> dict[str, np.ndarray]:
    """Every observable as scalar series over time; entries of vectors and matrices by index."""
    series = {}
    for name in flow.data_vars:
        values = flow[name].values
        for index in np.ndindex(values.shape[1:]):
            label = str(name) + (f"[{', '.join(map(str, index))}]" if index else "")
            series[label] = values[(slice(None), *index)]
    return series


def show(flow: xr.Dataset, extras: dict[str, Any], title: str) -> None:
    last = float(flow.time[-1])
    table = Table(title=f"{title}, t = 0 … {last:g} (curves over log(1 + t))", title_justify="left")
    for column in ("", "start", "", "end"):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    for label, values in components(flow).items():
        table.add_row(label, f"{values[0]:.6g}", sparkline(values), f"{values[-1]:.6g}")
    console = Console()
    console.print(table)
    if extras:
        console.print(f"the squared norm: {extras['shape']}")
        for phase in extras["phases"]:
            end = "∞" if phase["end"] is None else f"{phase['end']:.9g}"
            console.print(f"  {phase['name']:<10} t = {phase['start']:.9g} … {end}")
        for time, height in zip(extras["critical_times"], extras["critical_norm2"], strict=True):
            console.print(f"  critical   t = {time:.12g}   |M|² = {height:.12g}")


def picture(flow: xr.Dataset, title: str) -> Figure:
    names = [str(name) for name in flow.data_vars]
    columns = 3
    figure, axes = canvas(-(-len(names) // columns), columns)
    for ax, name in zip(axes.flat, names, strict=False):
        values = flow[name].values
        ax.plot(flow.time.values, values.reshape(len(values), -1))
        ax.set_title(name)
        clock_axis(ax, float(flow.time[-1]))
        if values.ndim == 2 and values.shape[1] <= 8:
            kind = flow[name].dims[1]
            ax.legend([f"{kind} {index}" for index in range(values.shape[1])])
    for ax in axes.flat[len(names) :]:
        ax.set_visible(False)
    figure.suptitle(f"{title}, gradient flow")
    return figure
