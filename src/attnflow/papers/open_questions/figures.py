"""Pictures of questions that the papers leave open.

dip-survival: does the initial dip of |M|² survive with more than two tokens?

Tokens are n orthonormal vectors, or n independent random unit vectors, in 2n dimensions. The start
is sharp-wrong: L(0) has zeros on the diagonal and every other entry drawn from U(low, high), so
each token prefers every wrong token to itself; M(0) = X⁺ L(0) X⁺ᵀ is the least-norm matrix with
these logits. Then M(t) stays in the tokens' span, and with the Gram matrix G = X Xᵀ

    |M|² = tr(G⁻¹ L G⁻¹ Lᵀ),   |x_iᵀ M|² = L_i G⁻¹ L_iᵀ  (the norm of row i).

The slope at 0 is d|M|²/dt = −2 Σ L_ij ∂ℒ/∂L_ij. A trough is a minimum inside the recorded times,
below both its neighbouring maxima (start and end among them) by more than `PROMINENCE` times the
start: less than that is rounding at rest. A run that still falls at the last time counts none.
Depth is 1 − min |M|² / |M(0)|².
"""

import dataclasses

import matplotlib as mpl
import numpy as np
import xarray as xr
from scipy.special import softmax

from attnflow.dynamics.flow import gradient_flow
from attnflow.models.self_attention import SelfAttention
from attnflow.papers.open_questions import _transformers
from attnflow.papers.open_questions._gallery import GALLERY
from attnflow.papers.style import COLORS, STYLE, canvas

del _transformers  # imported for what it registers

KINDS = ("orthonormal", "random unit")
PROMINENCE = 1e-6


@dataclasses.dataclass(frozen=True)
class DipSurvival:
    """`starts` random starts for each number of tokens and each kind of tokens."""

    tokens: tuple[int, ...] = (3, 4, 8)
    starts: int = 24
    low: float = 1.0
    high: float = 6.0
    t1: float = 3e3
    points: int = 400
    seed: int = 0


def sharp_wrong(n: int, config: DipSurvival, rng: np.random.Generator):
    """(X, L(0)) for the orthonormal runs, then the random ones."""
    random = rng.normal(size=(config.starts, n, 2 * n))
    random /= np.linalg.norm(random, axis=-1, keepdims=True)
    tokens = np.concatenate([np.broadcast_to(np.eye(n, 2 * n), random.shape), random])
    logits = rng.uniform(config.low, config.high, size=(2 * config.starts, n, n))
    return tokens, logits * (1 - np.eye(n))


def initial_slope(tokens: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """d|M|²/dt at the start, by the chain rule through A = softmax(L) and Z = A G."""
    gram = tokens @ tokens.mT
    attention = softmax(logits, axis=-1)
    error = softmax(attention @ gram, axis=-1) - np.eye(logits.shape[-1])
    by_attention = error @ gram
    mean = (attention * by_attention).sum(axis=-1, keepdims=True)
    return -2 * (logits * attention * (by_attention - mean)).sum(axis=(-2, -1))


def count_troughs(series: np.ndarray) -> np.ndarray:
    """Troughs along the last axis (see above)."""
    tolerance = PROMINENCE * series[..., 0]
    peak = series[..., 0].copy()
    trough = peak.copy()
    falling = np.zeros(peak.shape, bool)
    count = np.zeros(peak.shape, int)
    for value in np.moveaxis(series, -1, 0):
        trough = np.where(falling, np.minimum(trough, value), value)
        rose = falling & (value > trough + tolerance)
        count += rose
        peak = np.where(rose, value, np.where(falling, peak, np.maximum(peak, value)))
        falling = np.where(rose, False, falling | (value < peak - tolerance))
    return count


def ensemble(n: int, config: DipSurvival) -> xr.Dataset:
    tokens, logits = sharp_wrong(n, config, np.random.default_rng((config.seed, n)))
    inverse = np.linalg.pinv(tokens)
    starts = inverse @ logits @ inverse.mT
    flow = gradient_flow(
        SelfAttention(tokens=tokens[0], start=starts[0]),
        config.t1,
        points=config.points,
        over={"tokens": tokens, "start": starts},
        rtol=1e-8,
        atol=1e-10,
    )
    norm2, along = flow.norm2.values, flow.logits.values
    inverse_gram = np.linalg.inv(tokens @ tokens.mT)
    rows = np.einsum("rtij,rjk,rtik->rit", along, inverse_gram, along)
    row_troughs = count_troughs(rows)
    measured = {
        "slope": initial_slope(tokens, logits),
        "troughs": count_troughs(norm2),
        "depth": 1 - norm2.min(axis=1) / norm2[:, 0],
        "rows_with_one_trough": (row_troughs == 1).mean(axis=1),
    }
    shape = (len(KINDS), config.starts)
    ds = xr.Dataset(
        {name: (("kind", "start"), values.reshape(shape)) for name, values in measured.items()}
    )
    ds["norm2"] = (("kind", "start", "time"), norm2.reshape(*shape, -1))
    return ds.assign_coords(time=flow.time.values)


@mpl.rc_context(STYLE)
def draw_dip_survival(ds: xr.Dataset):
    figure, axes = canvas(2, 3, width=3.5, height=2.7)
    counts = ds.tokens.values
    place = np.arange(counts.size)
    fractions = (
        (axes[0, 0], (ds.slope < 0).mean("start"), "(a) $\\|M\\|^2$ falls at first"),
        (axes[0, 1], ds.rows_with_one_trough.mean("start"), "(b) rows with one trough (a U)"),
    )
    for kind, name in enumerate(KINDS):
        side = place + 0.2 * (2 * kind - 1)
        for ax, fraction, title in fractions:
            bars = ax.bar(side, fraction.isel(kind=kind), 0.38, color=COLORS[kind], label=name)
            ax.bar_label(bars, fmt="{:.0%}", fontsize=7)
            ax.set(title=title, ylim=(0, 1.35), yticks=(0, 0.5, 1), ylabel="fraction")
        depth = ds.depth.isel(kind=kind).transpose("start", "tokens").values
        black = {"color": "black"}
        boxes = axes[0, 2].boxplot(
            depth, positions=side, widths=0.32, patch_artist=True, sym=".", medianprops=black
        )
        for box in boxes["boxes"]:
            box.set_facecolor(COLORS[kind])
        troughs = ds.troughs.isel(kind=kind)
        most = int(ds.troughs.max())
        ax, base = axes[1, kind], np.zeros(counts.size)
        for many in range(most + 1):
            share = (troughs == many).mean("start").values
            color = mpl.colormaps["cividis"](many / max(most, 1))
            ax.bar(place, share, 0.7, bottom=base, color=color, label=f"{many}")
            base += share
        ax.set(title=f"({'de'[kind]}) troughs of $\\|M\\|^2$, {name}", ylabel="fraction")
        ax.set_xlim(-0.5, counts.size + 0.3)
        ax.legend(title="troughs", fontsize=7, loc="center right")
        example = ds.norm2.isel(tokens=-1, kind=kind)
        curves = (example / example.isel(time=0)).isel(time=slice(1, None), start=slice(6))
        lines = axes[1, 2].semilogx(ds.time[1:], curves.T, color=COLORS[kind], lw=1)
        lines[0].set_label(name)
    axes[0, 0].legend(loc="upper center", ncols=2, fontsize=7)
    axes[0, 2].set(title="(c) depth of the dip", ylabel=r"$1 - \min\|M\|^2/\|M(0)\|^2$")
    axes[1, 2].set(title=f"(f) six runs each, n = {counts[-1]}", xlabel="time $t$")
    axes[1, 2].set(ylim=(0.75, 1.6), ylabel=r"$\|M(t)\|^2/\|M(0)\|^2$")
    axes[1, 2].legend(loc="upper left", fontsize=7)
    for ax in (*axes[0], *axes[1, :2]):
        ax.set_xticks(place, [f"{n}" for n in counts])
        ax.set_xlabel("tokens $n$")
    return figure


@GALLERY.figure(
    "dip-survival",
    title="Does the dip survive with more tokens?",
    caption="Sharp-wrong starts of one attention layer with n tokens, every wrong logit "
    "drawn from U(1, 6). Orthonormal tokens (blue): |M|² always falls at first and each row makes "
    "one U, but the rows turn at different times, so that their sum has one to several troughs. "
    "Random unit tokens in 2n dimensions (orange): the norm mostly falls at first, not always, "
    "rows may have several troughs, and the dip fades with n. Followed until t = 3,000.",
    quick=DipSurvival(),
    paper=DipSurvival(tokens=(2, 3, 4, 8), starts=64, points=2000),
    draw=draw_dip_survival,
)
def dip_survival(config: DipSurvival) -> xr.Dataset:
    runs = [ensemble(n, config) for n in config.tokens]
    return xr.concat(runs, dim="tokens").assign_coords(tokens=list(config.tokens))
