"""Where trained heads look, and how alike they end."""

import dataclasses

import jax
import matplotlib as mpl
import numpy as np
import xarray as xr
from matplotlib.patches import Rectangle

from attnflow.instruments import head_similarity
from attnflow.models.single_location import SingleLocation
from attnflow.papers.specialization._drawing import GALLERY
from attnflow.papers.specialization._figures_flow import (
    ACTIVATIONS,
    Training,
    params_at,
    trained,
)
from attnflow.papers.style import STYLE, canvas


@dataclasses.dataclass(frozen=True)
class Maps:
    """The same `sequences` drawn sequences through three trained models."""

    features: int = 3
    nu: float = 9.0
    heads: int = 4
    tokens: int = 5
    last: float = 300.0
    samples: int = 2048
    sequences: int = 5
    seed: int = 3


def maps(config: Maps) -> xr.Dataset:
    rng = np.random.default_rng(config.seed)
    columns = config.features + config.heads
    theta = np.sqrt(config.nu) * rng.standard_normal((config.features, config.sequences))
    noise = rng.standard_normal((config.tokens, columns, config.sequences))
    relevant = rng.integers(config.tokens, size=config.sequences)
    weights = []
    for activation in ACTIVATIONS:
        training = Training(
            ("gaussian", config.features, config.nu),
            tokens=config.tokens,
            heads=config.heads,
            activation=activation,
            last=config.last,
            samples=config.samples,
            records=2,
        )
        weights.append(_attention(training.model(), params_at(trained(training)), theta, noise))
    placed = np.stack(weights)
    for sequence, place in enumerate(relevant):  # the model has the relevant token first
        placed[..., sequence] = np.roll(placed[..., sequence], place, axis=-1)
    return xr.Dataset(
        {
            "weights": (("activation", "head", "token", "sequence"), placed),
            "relevant": ("sequence", relevant),
        },
        {"activation": list(ACTIVATIONS)},
    )


def _attention(model: SingleLocation, params, theta, noise) -> np.ndarray:
    with jax.enable_x64(True):
        return np.asarray(model.weights(params, theta, noise))


@mpl.rc_context(STYLE)
def draw_maps(ds: xr.Dataset):
    rows, columns = ds.sizes["activation"], ds.sizes["sequence"]
    figure, axes = canvas(rows, columns, width=1.7, height=1.45)
    for row, activation in enumerate(ds.activation.values):
        top = float(ds.weights[row].max())
        for column in range(columns):
            ax = axes[row, column]
            ax.grid(False)
            image = ax.imshow(ds.weights[row, ..., column], cmap="Blues", vmin=0, vmax=top)
            place = int(ds.relevant[column])
            heads = ds.sizes["head"]
            box = Rectangle((place - 0.5, -0.5), 1, heads, fill=False, color="red", lw=1.8)
            box.set_clip_on(False)
            ax.add_patch(box)
            ax.set_xticks(range(ds.sizes["token"]), range(1, ds.sizes["token"] + 1), fontsize=7)
            ax.set_yticks(range(heads), range(1, heads + 1), fontsize=7)
            if row == 0:
                ax.set_title(f"sequence {column + 1}", fontsize=8)
            if row + 1 == rows:
                ax.set_xlabel("token")
        axes[row, 0].set_ylabel(f"{ACTIVATIONS[str(activation)]}\nhead")
        figure.colorbar(image, ax=axes[row], shrink=0.9, pad=0.01)
    return figure


GALLERY.figure(
    "6",
    tour=False,
    title="Attention maps",
    caption="Five sequences (the same in each row) through trained heads, H = 4, L = 5, isotropic "
    "Gaussian F = 3, ν = 9; the relevant token is framed in red. A softmax head always spends all "
    "its attention, so heads that point away from the signal spend it on the wrong tokens; "
    "softmax-1 damps such heads, and B-softmax, normalized over all heads at once (weights up to "
    "H = 4), nearly silences them. Sequences are drawn from the asymptotic law of the scores. "
    "Quick: 2,048 points and τ = 300; paper preset: 10⁵ and 1,000.",
    quick=Maps(),
    paper=Maps(last=1e3, samples=100_000),
    draw=draw_maps,
)(maps)


@dataclasses.dataclass(frozen=True)
class Similarity:
    """Cosine between two trained heads over a grid of strengths of the flipping spike."""

    strengths: tuple[float, ...] = (0.5, 1.0, 2.0, 3.0, 4.0, 6.0)
    tokens: int = 4
    last: float = 2e3
    samples: int = 4096
    rtol: float = 1e-3


def similarity(config: Similarity) -> xr.Dataset:
    count = len(config.strengths)
    cosine = np.empty((count, count))
    for row, column in np.ndindex(count, count):
        training = Training(
            ("flipping", config.strengths[column], config.strengths[row]),
            tokens=config.tokens,
            last=config.last,
            samples=config.samples,
            records=2,
            rtol=config.rtol,
        )
        cosine[row, column] = head_similarity(trained(training).m.values[-1])[0, 1]
    strengths = list(config.strengths)
    return xr.Dataset({"cosine": (("nu2", "nu1"), cosine)}, {"nu1": strengths, "nu2": strengths})


@mpl.rc_context(STYLE)
def draw_similarity(ds: xr.Dataset):
    figure, axes = canvas(1, 1, width=4.2, height=3.4)
    ax = axes[0, 0]
    ax.grid(False)
    image = ax.imshow(ds.cosine, origin="lower", cmap="viridis", vmax=1, aspect="auto")
    if ds.sizes["nu1"] <= 8:
        for (row, column), value in np.ndenumerate(ds.cosine.values):
            color = "black" if value > 0.5 else "white"
            ax.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=7, color=color)
    for axis, name in ((ax.xaxis, "nu1"), (ax.yaxis, "nu2")):
        axis.set_ticks(range(ds.sizes[name]), [f"{nu:g}" for nu in ds[name].values])
    ax.set(xlabel=r"$\nu_1$ (constant)", ylabel=r"$\nu_2$ (flipping)")
    figure.colorbar(image, ax=ax, label="cosine between the heads")
    return figure


GALLERY.figure(
    "11",
    title="How alike two heads stay",
    caption="Cosine in feature space between two softmax heads at the end, flipping spike, L = 4, "
    "η = 1. Heads are the more alike the stronger the constant feature; it is the likeness that "
    "grows with ν₁, not the specialization as the text has it. With ν₂ it falls, but not "
    "monotonically everywhere: at ν₁ = 3 it is 0.865, 0.850, 0.850, 0.880 for ν₂ = 2, 3, 6, 12 "
    "(32,768 points). Where the value is 1 the heads have not parted by the end (τ = 2,000): on "
    "that side the plateau either holds them for a very long time or is stable. Quick: 6 × 6 "
    "strengths, 4,096 points; paper preset 12 × 12 and 10⁵ (the published grid is not stated).",
    quick=Similarity(),
    paper=Similarity(
        strengths=(0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0),
        samples=100_000,
        rtol=1e-4,
    ),
    draw=draw_similarity,
)(similarity)
