"""Vision transformers on MNIST: losses with even and sparse teachers, maps, keys and values."""

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
import xarray as xr
from matplotlib.colors import LogNorm

from attnflow.papers.conditioning._gallery import GALLERY
from attnflow.papers.conditioning._vision import TEACHERS
from attnflow.papers.conditioning._vision_study import (
    PAPER,
    QUICK,
    TRIALS,
    VisionStudy,
    arranged,
    lacking,
)
from attnflow.papers.style import COLORS, STYLE, canvas, say_below

COLOR = dict(zip(TEACHERS, COLORS, strict=False))
SHARED = {"quick": QUICK, "paper": PAPER, "tour": False, "missing": lacking, "trials": TRIALS}


@mpl.rc_context(STYLE)
def draw_losses(data: xr.Dataset):
    figure, axes = canvas(1, 2, width=4.4, height=3.2)
    left, right = axes[0]
    for sparsity in TEACHERS:
        run, color = data.sel(sparsity=sparsity), COLOR[sparsity]
        mean, spread = run.normalized.mean("seed"), run.normalized.std("seed")
        ratios = f"{float(run.teacher.mean()):.1f} teacher, {float(run.student.mean()):.1f} student"
        label = f"{sparsity} teacher; $\\log_{{10}} R$: {ratios}"
        left.plot(run.step, mean, color=color, label=label)
        left.fill_between(run.step, mean - spread, mean + spread, color=color, alpha=0.2, lw=0)
        for name, style in (("teacher", "--"), ("student", "-")):
            values = np.sort(run[name].values.ravel())
            share = np.arange(1, len(values) + 1) / len(values)
            right.step(values, share, style, color=color, where="post", label=f"{sparsity}, {name}")
    left.set(xlabel="step", ylabel="training loss / first loss", ylim=(0, 1.3))
    left.set(title=f"SGD, rate {float(data.rate):g}")
    left.legend(fontsize=7, loc="lower left")
    right.set(xlabel=r"$\log_{10} R$ of a head", ylabel="share of heads", title="attention ratio R")
    right.legend(fontsize=7)
    say_below(figure, data.attrs["setting"])
    return figure


@GALLERY.figure(
    "2b",
    title="A vision transformer, and teachers of even and sparse attention",
    caption="Loss of SGD on labels of MNIST that a random vision transformer gives, 6 layers of 4 "
    "heads, width 64, like its student; mean and one standard deviation over seeds of both. The "
    "teacher's query and key weights are scaled so that R = max a/min a of its class token's "
    "rows has the geometric mean 20 (even) or 1e7 (sparse) over layers, heads and images; labels "
    "are the greatest of its logits, each less its mean over images, or one class would get "
    "nearly all. The labels of the sparse teacher are learned more slowly; but the attention of "
    "its student is no sparser than that of the other (right).",
    draw=draw_losses,
    **SHARED,
)
def figure_2b(study: VisionStudy, found: Sequence[xr.Dataset]) -> xr.Dataset:
    kept = ("normalized", "rate", "teacher", "student", "start", "end", "accuracy", "classes")
    return arranged(study, found)[list(kept)]


@mpl.rc_context(STYLE)
def draw_maps(data: xr.Dataset):
    layers, heads = data.sizes["layer"], data.sizes["head"]
    figure, axes = canvas(heads, layers, width=1.5, height=1.55)
    least = max(float(data["map"].min()), 1e-8)
    shown = LogNorm(least, 1)
    image = None
    for layer in range(layers):
        for head in range(heads):
            ax = axes[head, layer]
            rows = np.maximum(data["map"][layer, head], least)
            image = ax.imshow(rows, norm=shown, cmap="viridis")
            ax.set(xticks=[], yticks=[])
            ax.grid(visible=False)
            title = f"$\\log_{{10}} R$ = {float(data.decades[layer, head]):.1f}"
            ax.set_title(f"layer {layer + 1}\n{title}" if head == 0 else title, fontsize=8)
        axes[-1, layer].set_xlabel("key")
    for head in range(heads):
        axes[head, 0].set_ylabel(f"head {head + 1}\nquery")
    assert image is not None
    figure.colorbar(image, ax=axes.ravel().tolist(), label="weight", shrink=0.6)
    say_below(figure, data.attrs["setting"])
    return figure


def _maps(sparsity: str):
    def maps(study: VisionStudy, found: Sequence[xr.Dataset]) -> xr.Dataset:
        run = arranged(study, found).isel(seed=0).sel(sparsity=sparsity)
        return run[["map", "pixels"]].assign(decades=run.student).drop_vars(("sparsity", "seed"))

    return maps


for name, kind, size in (("4", "even", "R ≈ 20"), ("5", "sparse", "R ≈ 1e7")):
    GALLERY.figure(
        name,
        title=f"Attention maps after training on the {kind} teacher",
        caption=f"All maps of one held-out image, for the student of the teacher with {size}; the "
        "first row and column are the class token's, the others patches row by row. Above each: "
        "the mean over held-out images of log₁₀ R of the class token's row. A student's ratio is "
        "not its teacher's: it begins near 4 and grows while it learns, whoever teaches.",
        draw=draw_maps,
        **SHARED,
    )(_maps(kind))


@mpl.rc_context(STYLE)
def draw_keys(data: xr.Dataset):
    figure, axes = canvas(1, 3, width=3.7, height=3.0)
    heads = np.arange(data.sizes["head"])
    for shift, sparsity in zip((-0.2, 0.2), TEACHERS, strict=True):
        run, color = data.sel(sparsity=sparsity), COLOR[sparsity]
        for k, (rho, marker, name) in enumerate(
            (
                ("rho_sampled", "o", "200 directions"),
                ("rho", "^", "all"),
                ("rho_pooled", "x", "pooled"),
            )
        ):
            values = np.minimum(run[rho], 100)
            place = heads + 1 + shift + 0.08 * (k - 1)
            axes[0, 0].plot(place, values, marker, ms=5, color=color, label=f"{sparsity}, {name}")
        share = run.outside.sum("head") / run.outside.sum()
        inside = float(run.mostly_inside.mean())
        label = f"{sparsity}: {inside:.1%} below 0"
        axes[0, 1].step(data.edge, share, where="post", color=color, label=label)
        bars = axes[0, 2].bar(heads + 1 + shift, run.dimension, 0.36, color=color, label=sparsity)
        words = [f"{float(x):.0%}" for x in run.explained]
        axes[0, 2].bar_label(bars, words, fontsize=7)
    axes[0, 0].axhline(1, color="0.4", ls="--", lw=1)
    axes[0, 0].set(yscale="log", xlabel="head", ylabel=r"$\rho_U$", title="leakage, last layer")
    axes[0, 0].margins(y=0.5)
    axes[0, 0].legend(fontsize=6, ncol=2, loc="upper center")
    axes[0, 1].axvline(0, color="0.4", ls="--", lw=1)
    axes[0, 1].set(xlabel=r"$\log_{10}(\|k_U\|/\|k_I\|)$", ylabel="share of important keys")
    axes[0, 1].set_title("where important keys lie")
    axes[0, 1].set_xlim(-1.75, 1)
    axes[0, 1].legend(fontsize=7, loc="upper right", handlelength=1)
    axes[0, 2].set(xlabel="head", ylabel="dimension of I, of 16", title="signal subspace")
    axes[0, 2].set(ylim=(0, 20))
    axes[0, 2].legend(fontsize=7, ncol=2, loc="upper center", title="share of variance on top")
    for ax in axes[0, ::2]:
        ax.set_xticks(heads + 1)
    say_below(figure, data.attrs["setting"])
    return figure


@GALLERY.figure(
    "8",
    title="Important keys and the rest of their space, last layer",
    caption="Of the class token of trained students (first seed). Left: the greatest leakage ρ_U "
    "of a held-out image, over 200 random directions as published, over all directions, and over "
    "all directions with the keys of all images pooled; values above 100 are drawn at 100. "
    "Middle: how far important keys, those with half of the greatest weight or more, leave the "
    "signal subspace I. Right: its dimension, at which 90 % of the variance of important keys is "
    "explained.",
    draw=draw_keys,
    **SHARED,
)
def figure_8(study: VisionStudy, found: Sequence[xr.Dataset]) -> xr.Dataset:
    kept = ("rho", "rho_sampled", "rho_pooled", "outside", "mostly_inside", "dimension")
    return arranged(study, found).isel(seed=0, layer=-1)[[*kept, "explained"]].drop_vars("seed")
