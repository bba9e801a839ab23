"""Sparsity scores of all heads: softmax against unnormalized sigmoid."""

import matplotlib as mpl
import numpy as np
import xarray as xr

from attnflow.papers import pretrained
from attnflow.papers.ledger import Finding, inequality
from attnflow.papers.polarization._drawing import GALLERY
from attnflow.papers.polarization._language import ATTENTIONS, Pair, compare, pretrained_scores
from attnflow.papers.polarization._ledger import LEDGER
from attnflow.papers.style import COLORS, STYLE, canvas

QUICK = Pair()
FIG_7 = Pair(
    layers=6,
    heads=8,
    width=256,
    length=256,
    batch=32,
    steps=6000,
    rate=1e-3,
    seeds=(0, 1, 2),
    model="smollm2",
)
STUDIED = Pair(seeds=(0, 1, 2))
SINK = 0.3


@mpl.rc_context(STYLE)
def draw(ds: xr.Dataset):
    names = [name for name in ("pretrained", "partner") if f"{name}_sparsity" in ds]
    figure, axes = canvas(1, 3 if names else 2, width=3.5, height=2.9)
    bins = np.linspace(0, 1, 11)
    for color, kind in zip(COLORS, ATTENTIONS, strict=False):
        own = ds.sel(attention=kind)
        label = f"{kind}, loss {float(own.loss.mean()):.3f}"
        axes[0, 0].hist(own.sparsity.values.ravel(), bins, alpha=0.6, color=color, label=label)
        layers = own.sparsity.mean("seed")
        for head in range(ds.sizes["head"]):
            axes[0, 1].plot(ds.layer + 1, layers.isel(head=head), ".", color=color, ms=4)
        axes[0, 1].plot(ds.layer + 1, layers.mean("head"), color=color, label=kind)
    axes[0, 0].set(xlabel="sparsity score", ylabel="heads", title="a pair trained alike")
    for ax in axes[0, ::2]:
        ax.yaxis.get_major_locator().set_params(integer=True)
        ax.margins(y=0.35)  # room for the legend
    axes[0, 0].legend(fontsize=8, loc="upper left")
    axes[0, 1].set(xlabel="layer", ylabel="sparsity score", ylim=(0, 1), title="by depth")
    axes[0, 1].set_xticks(ds.layer + 1)
    axes[0, 1].legend(fontsize=8, loc="upper left")
    titles = {"pretrained": "pretrained, softmax", "partner": "pretrained, sigmoid"}
    for color, name in zip(COLORS, names, strict=False):
        values = ds[f"{name}_sparsity"].values.ravel()
        axes[0, 2].hist(values, bins, alpha=0.6, color=color, label=titles[name])
        first = ds[f"{name}_first"].values.ravel()
        label = "share on the first token"
        axes[0, 2].hist(first, bins, histtype="step", color="black", label=label)
    if names:
        axes[0, 2].set(xlabel="sparsity score", ylabel="heads", title="a model that exists")
        axes[0, 2].legend(fontsize=8)
    return figure


def lacking() -> str:
    return pretrained.missing(pretrained.needs_torch, lambda: pretrained.text(QUICK.text))


@GALLERY.figure(
    "7",
    title="Sparsity scores of heads: softmax against unnormalized sigmoid",
    caption="The mean share of the greatest weight in its row, for every head. Two Llamas trained "
    "on the bytes of TinyShakespeare, all else equal (data, order, start, schedule); sigmoid is "
    "σ(score − log T), divided by nothing. The published pair has 7 billion parameters; here 3 "
    "layers of 4 heads, width 96, 1,000 steps, one seed (quick), or 6 layers of 8 heads, width "
    "256, 6,000 steps, three seeds, and SmolLM2-135M on WikiText-2 (paper preset; `model` and "
    "`partner` name a pair of your own).",
    quick=QUICK,
    paper=FIG_7,
    draw=draw,
    tour=False,
    missing=lacking,
)
def figure_7(config: Pair) -> xr.Dataset:
    return compare(config)


@LEDGER.claim(
    "pretrained-sinks",
    where="Section 4.1, figure 7",
    statement="Language models with softmax attention have sparser heads than matched ones with "
    "unnormalized sigmoid, and heads that are sinks.",
    hypotheses="Llamas of 3 layers trained alike on TinyShakespeare, three seeds: the difference "
    "of median scores is above twice its spread over seeds. Sinks are looked for in SmolLM2-135M: "
    "a tenth of its heads at least has more than 30 % of its attention on the first token.",
    kind="inequality",
    recorded="holds",
    broken={"sparse": "sigmoid", "dense": "softmax"},
    slow=True,
)
def pretrained_sinks(sparse: str = "softmax", dense: str = "sigmoid") -> Finding:
    _, first = pretrained_scores("smollm2", 4, 256)
    found = compare(STUDIED)
    median = found.sparsity.median(("layer", "head"))
    difference = (median.sel(attention=sparse) - median.sel(attention=dense)).values
    clear = float(difference.mean() - 2 * difference.std(ddof=1))
    sinks = float(np.mean(first > SINK))
    return inequality(
        [clear, sinks - 0.1],
        counterexample=lambda _: {
            "median score": {k: float(median.sel(attention=k).mean()) for k in ATTENTIONS},
            "difference by seed": difference.round(3).tolist(),
            "share of sinks": sinks,
        },
    )
