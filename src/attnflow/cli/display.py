"""A trajectory in the terminal and as a picture."""

import contextlib
import math
import sys
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: np.ndarray, width: int = 28) -> str:
    """One character for each of `width` samples, from the least to the greatest value."""
    samples = values[np.linspace(0, len(values) - 1, width).round().astype(int)]
    low, high = samples.min(), samples.max()
    if high - low <= 1e-12 * max(abs(low), abs(high)):
        return "─" * width
    levels = np.rint((samples - low) / (high - low) * (len(BARS) - 1)).astype(int)
    return "".join(BARS[level] for level in levels)


def clock(trajectory: xr.Dataset) -> tuple[str, np.ndarray]:
    """The name and values of the axis along which it moves: "time" or "step"."""
    name = "time" if "time" in trajectory.dims else "step"
    return name, trajectory[name].values


def components(trajectory: xr.Dataset) -> dict[str, np.ndarray]:
    """Every observable as scalar series; entries of vectors and matrices by index."""
    series = {}
    for name in trajectory.data_vars:
        values = trajectory[name].values
        for index in np.ndindex(values.shape[1:]):
            label = str(name) + (f"[{', '.join(map(str, index))}]" if index else "")
            series[label] = values[(slice(None), *index)]
    return series


def show(trajectory: xr.Dataset, extras: dict[str, Any], title: str) -> None:
    name, ticks = clock(trajectory)
    even = np.allclose(np.diff(ticks), ticks[-1] / (len(ticks) - 1))
    over = name if even else f"log(1 + {name})"
    title = f"{title}, {name} 0 … {ticks[-1]:g} (curves over {over})"
    table = Table(title=title, title_justify="left")
    for column in ("", "start", "", "end"):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    for label, values in components(trajectory).items():
        table.add_row(label, f"{values[0]:.5g}", sparkline(values), f"{values[-1]:.5g}")
    console = Console()
    console.print(table)
    if "phases" in extras:
        console.print(f"the squared norm: {extras['shape']}")
        for phase in extras["phases"]:
            end = "∞" if math.isinf(phase["end"]) else f"{phase['end']:.9g}"
            console.print(f"  {phase['name']:<10} t = {phase['start']:.9g} … {end}")
        for time, height in zip(extras["critical_times"], extras["critical_norm2"], strict=True):
            console.print(f"  critical   t = {time:.12g}   |M|² = {height:.12g}")
    if "heads" in extras:
        _tell_heads(console, extras["heads"])
    if "routing" in extras:
        _tell_routing(console, extras["routing"])
    if "stall" in extras:
        numbers = dict(extras["stall"])
        console.print(f"[bold]{numbers.pop('cause')}[/]: {numbers.pop('words')}", soft_wrap=True)
        for label, value in numbers.items():
            console.print(f"  {label:<18} {value:.6g}", highlight=False)


def _tell_heads(console: Console, found: dict[str, Any]) -> None:
    def when(time: float) -> str:
        return "not in this time" if math.isinf(time) else f"at t = {time:.4g}"

    lines = [f"Bayes risk  {found['bayes_risk']:.5f} ± {found['bayes_risk_error']:.5f}"]
    if not math.isinf(found["mean_learned"]):
        lines.append(f"the signal's mean is half learned {when(found['mean_learned'])}")
    lines += [
        f"heads are 0.5 apart on feature {feature} {when(time)}"
        for feature, time in enumerate(found["split_times"])
    ]
    if "predicted_split" in found:
        growth, time = found["plateau_growth"][0], found["predicted_split"]
        lines.append(
            f"on the plateau differences grow like e^({growth:.3g} t), from 1/√D to 1 in {time:.4g}"
            if growth > 0
            else "on the plateau differences between heads do not grow"
        )
    groups = "  ".join("{" + ", ".join(map(str, group)) + "}" for group in found["groups"])
    lines.append(f"heads of the same signs at the end: {groups}")
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)


def _tell_routing(console: Console, found: dict[str, Any]) -> None:
    for what, key in (("attention", "attention_freezes"), ("values", "values_freeze")):
        at = found[key]
        console.print(
            f"{what:<9} stays within 5 % of its way of its end from step {at['near_end']:.0f}, "
            f"is slower than 5 % of its top speed from {at['slow']:.0f}, is half way at "
            f"{at['half_way']:.0f}",
            highlight=False,
            soft_wrap=True,
        )
    console.print(
        f"values    {found['value_components']} components carry 90 % of their variance "
        f"(participation ratio {found['value_participation']:.3g})",
        highlight=False,
        soft_wrap=True,
    )
    signs = found.get("signs")
    if signs:
        names = ("attention_collapse", "value_explosion", "diffuse_routing")
        seen = [name.replace("_", " ") for name in names if signs[name]]
        seen += [f"{signs['dead_keys']:.0%} of the keys unused"] if signs["dead_keys"] else []
        console.print(f"signs of failure: {', '.join(seen) or 'none'}", highlight=False)


def picture(trajectory: xr.Dataset, title: str) -> "Figure":
    from attnflow.papers.style import canvas, clock_axis  # matplotlib, only for those who plot

    axis, ticks = clock(trajectory)
    names = [str(name) for name in trajectory.data_vars]
    columns = 3
    figure, axes = canvas(-(-len(names) // columns), columns)
    for ax, name in zip(axes.flat, names, strict=False):
        values = trajectory[name].values
        ax.plot(ticks, values.reshape(len(values), -1))
        ax.set_title(name)
        clock_axis(ax, float(ticks[-1]), "time t" if axis == "time" else "step")
        if values.ndim == 2 and values.shape[1] <= 8:
            kind = trajectory[name].dims[1]
            ax.legend([f"{kind} {index}" for index in range(values.shape[1])])
    for ax in axes.flat[len(names) :]:
        ax.set_visible(False)
    figure.suptitle(title)
    return figure


@contextlib.contextmanager
def warnings_as_lines(command: str) -> Iterator[None]:
    """Each warning as one line of this command."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield
        finally:
            for each in caught:
                print(f"attnflow {command}: {each.message}", file=sys.stderr)
