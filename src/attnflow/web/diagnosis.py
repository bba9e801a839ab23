"""The report of a diagnosis as one self-contained HTML page."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from attnflow.papers.style import canvas
from attnflow.web.pages import drawn, render

LIBRARIES = ("torch", "xarray", "numpy")
MAPS = (
    ("relative_entropy", "entropy / greatest possible", 0.0, 1.0),
    ("sink_mass", "share on the key that gets most", 0.0, 1.0),
    ("sparsity", "share of the greatest weight", 0.0, 1.0),
    ("log10_kappa", "log₁₀ κ of the softmax Jacobian", 0.0, None),
    ("redundancy", "cosine with the most similar head", 0.0, 1.0),
    ("contribution", "part in the output (1 = even)", 0.0, None),
)
COLUMNS = (
    ("relative_entropy", "entropy"),
    ("sink_mass", "sink share"),
    ("sink_key", "at key"),
    ("sparsity", "sparsity"),
    ("log10_kappa", "log₁₀ κ"),
    ("redundancy", "similarity"),
    ("twin", "to head"),
    ("contribution", "part"),
    ("value_dimension", "value dim."),
    ("interaction_norm", "‖W_QᵀW_K‖"),
)


def page(
    diagnosis: Any,
    text: str,
    history: xr.Dataset | None = None,
    dates: Any = None,
) -> str:
    """`diagnosis` is an `attnflow.torch.Diagnosis`; `text` says what it was measured on; history
    and dates are those of the checkpoints, if there were any."""
    pictures = [("Every head", maps(diagnosis.heads)), ("By depth", depth(diagnosis))]
    if history is not None:
        pictures.append(("Over the checkpoints", over_time(history)))
    return render(
        "diagnosis.html",
        LIBRARIES,
        diagnosis=diagnosis,
        text=text,
        pictures=[(title, drawn(figure)) for title, figure in pictures],
        kinds=KINDS,
        columns=COLUMNS,
        table=_table(diagnosis.heads, diagnosis.kinds),
        dates=None if dates is None else _dates(dates),
    )


KINDS: Mapping[str, str] = {
    "sink": "sinks",
    "focused": "fixed on another key",
    "diffuse": "diffuse",
    "twin": "redundant",
    "dead": "dead",
}


def maps(heads: xr.Dataset) -> Figure:
    layers, width = heads.sizes["layer"], heads.sizes["head"]
    figure, axes = canvas(2, 3, width=3.4, height=min(6.0, max(2.2, 0.13 * layers + 1.2)))
    for ax, (name, title, low, high) in zip(axes.flat, MAPS, strict=True):
        values = np.ma.masked_invalid(heads[name].values)
        image = ax.imshow(
            values, aspect="auto", vmin=low, vmax=high, cmap="viridis", interpolation="nearest"
        )
        ax.set_title(title)
        ax.set_xlabel("head")
        ax.set_ylabel("layer")
        ax.set_xticks(_ticks(width))
        ax.set_yticks(_ticks(layers))
        ax.grid(False)
        if values.mask.all():
            ax.text(0.5, 0.5, "not defined here", transform=ax.transAxes, ha="center", va="center")
        else:
            figure.colorbar(image, ax=ax)
    return figure


def _ticks(count: int, most: int = 10) -> list[int]:
    return list(range(0, count, -(-count // most)))


def depth(diagnosis: Any) -> Figure:
    heads = diagnosis.heads
    figure, axes = canvas(1, 3, width=3.4, height=2.6)
    layer = heads.layer.values
    _spread(axes[0, 0], layer, heads.first_mass, "share of attention\non the first token")
    _spread(axes[0, 1], layer, heads.first_value, "first token's value length\nby the others' mean")
    axes[0, 1].axhline(1, color="0.6", lw=0.8)
    ax = axes[0, 2]
    if diagnosis.stream is None:
        _spread(ax, layer, heads.value_dimension, "effective dimension of values")
        return figure
    stream = diagnosis.stream
    ax.plot(stream.depth, stream.first_length, marker=".", label="first token's length")
    ax.plot(stream.depth, stream.largest_entry, marker=".", label="largest entry")
    ax.set_yscale("log")
    ax.set_ylabel("residual stream,\nby its median")
    ax.set_xlabel("depth (layers passed)")
    ax.legend(fontsize=8)
    return figure


def _spread(ax, layer: np.ndarray, values: xr.DataArray, label: str) -> None:
    """The heads of each layer as dots, their mean as a line."""
    for head in range(values.sizes["head"]):
        ax.plot(layer, values.isel(head=head), ".", color="0.6", ms=3)
    ax.plot(layer, values.mean("head"), label="mean of the layer")
    ax.set_xlabel("layer")
    ax.set_ylabel(label)
    ax.set_ylim(bottom=0)


def over_time(history: xr.Dataset) -> Figure:
    figure, axes = canvas(1, 4, width=2.9, height=2.6)
    quantities = (
        ("first_mass", "share on the first token"),
        ("relative_entropy", "entropy / greatest"),
        ("redundancy", "similarity of heads"),
        ("interaction_norm", "‖W_QᵀW_K‖"),
    )
    layers = history.sizes["layer"]
    for ax, (name, label) in zip(axes.flat, quantities, strict=True):
        for layer in range(layers):
            shade = 0.15 + 0.7 * layer / max(layers - 1, 1)
            mean = history[name].isel(layer=layer).mean("head")
            ax.plot(history.step, mean, marker=".", color=(0.0, shade, 1 - shade))
        ax.set_xlabel("step")
        ax.set_ylabel(label)
    axes[0, 0].set_title("mean of each layer: first blue, last green", fontsize=8, loc="left")
    return figure


def _table(heads: xr.Dataset, kinds: Mapping[str, list[tuple[int, int]]]) -> list[dict[str, Any]]:
    rows = []
    for layer, head in np.ndindex(heads.sizes["layer"], heads.sizes["head"]):
        values = {name: float(heads[name].values[layer, head]) for name, _ in COLUMNS}
        if all(np.isnan(value) for value in values.values()):
            continue
        is_a = [KINDS[kind] for kind, pairs in kinds.items() if (layer, head) in pairs]
        rows.append({"layer": layer, "head": head, "kinds": ", ".join(is_a), "values": values})
    return rows


def _dates(dates: Any) -> list[str]:
    told = []
    if dates.first_sink is None:
        told.append("No head is a sink at the last checkpoint.")
    else:
        told.append(
            f"{len(dates.sinks)} heads are sinks at the end: the first since step "
            f"{dates.first_sink:g}, half of them since step {dates.half_of_sinks:g}."
        )
    parted = {layer: step for layer, step in dates.specialized.items() if step is not None}
    for layer, step in parted.items():
        told.append(f"The heads of layer {layer} have been different since step {step:g}.")
    if not parted:
        told.append("In no layer did the heads become clearly less alike than at the first one.")
    for layer, phases in dates.phases.items():
        if phases:
            named = ", ".join(f"{name} {start:g} to {end:g}" for name, start, end in phases)
            told.append(f"‖W_QᵀW_K‖ of layer {layer}: {named}.")
    return told
