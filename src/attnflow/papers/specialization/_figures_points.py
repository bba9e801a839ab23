"""What the averages cost: changed against fixed points, random against quasi-random ones."""

import dataclasses

import equinox as eqx
import jax
import matplotlib as mpl
import numpy as np
import xarray as xr

from attnflow.models.single_location import SingleLocation
from attnflow.models.single_location.points import Image, sobol
from attnflow.papers.specialization._drawing import GALLERY
from attnflow.papers.specialization._figures_flow import Training, params_at, start, trained
from attnflow.papers.style import COLORS, STYLE, canvas


@eqx.filter_jit
def _sampled(model, params, uniforms, normals, signs):
    """Risk and gradient over given numbers, features and heads with `signs` (the model's own points
    are not used)."""
    features = model.signal.features
    theta = signs[:features, None] * model.signal.theta(model.signal.latent(uniforms))
    noise = signs[:, None] * normals.reshape(model.tokens, features + model.heads, -1)
    count = uniforms.shape[1]
    return jax.value_and_grad(lambda p: model.squared_error(p, theta, noise) / count)(params)


def drawn(model: SingleLocation, rng: np.random.Generator, count: int):
    normals = model.tokens * (model.signal.features + model.heads)
    return rng.random((model.signal.inputs, count)), rng.standard_normal((normals, count))


@dataclasses.dataclass(frozen=True)
class Changed:
    """Descent over `samples` random points, drawn once or anew at every step, from one start."""

    nu: float = 2.0
    tokens: int = 8
    step: float = 0.5
    last: float = 100.0
    samples: int = 4096
    runs: int = 3
    records: int = 50


def changed(config: Changed) -> xr.Dataset:
    training = Training(("flipping", config.nu, config.nu), tokens=config.tokens, samples=64)
    model = training.model()
    signs = np.ones(model.signal.features + model.heads)
    steps = round(config.last / config.step)
    kept = np.unique(np.linspace(0, steps, config.records).astype(int))
    paths = np.empty((config.runs, 2, kept.size, model.heads, model.signal.features))
    with jax.enable_x64(True):
        for run in range(config.runs):
            rng = np.random.default_rng(run)
            fixed = drawn(model, rng, config.samples)
            for anew in (0, 1):
                params = start(model, run)
                seen = []
                for _ in range(steps + 1):
                    seen.append(np.asarray(params["m"]))
                    points = drawn(model, rng, config.samples) if anew else fixed
                    slope = _sampled(model, params, *points, signs)[1]
                    params = {
                        x: np.asarray(params[x]) - config.step * np.asarray(slope[x])
                        for x in params
                    }
                paths[run, anew] = np.stack(seen)[kept]
    return xr.Dataset(
        {"m": (("run", "anew", "time", "head", "feature"), paths)}, {"time": config.step * kept}
    )


@mpl.rc_context(STYLE)
def draw_changed(ds: xr.Dataset):
    figure, axes = canvas(1, 2, width=3.8, height=2.8)
    histogram, paths = axes[0]
    first = ds.m.isel(head=0)
    difference = (first.isel(anew=1) - first.isel(anew=0)).values
    edges = np.linspace(difference.min(), difference.max(), 40)
    for feature, name in enumerate(("constant", "flipping")):
        label = f"feature {feature + 1} ({name})"
        values = difference[..., feature].ravel()
        histogram.hist(values, edges, color=COLORS[feature], alpha=0.6, label=label)
        for run in range(ds.sizes["run"]):
            for anew, style in enumerate(("-", "--")):
                values = first.isel(run=run, anew=anew, feature=feature)
                paths.plot(ds.time, values, ls=style, color=COLORS[feature], lw=1)
    histogram.set(xlabel="$m_{1f}$, new points − same points", ylabel="count (times, runs)")
    histogram.legend(fontsize=7)
    paths.set(xlabel=r"$\tau$", ylabel="$m_{1f}$ (same points —, new points - -)")
    return figure


GALLERY.figure(
    "8",
    title="The same points at every step, or new ones",
    caption="Flipping spike ν₁ = ν₂ = 2, L = 8, two softmax heads: differences of the first head's "
    "alignments, at all times, between descent over new random points at every step and over the "
    "same ones. On the constant feature they are small, as published. On the flipping one they "
    "are not while the saddle is being left: fixed random points push a head to one side, so the "
    "moment of the split, and in an unlucky run (here one of three) its sign, is the points' and "
    "not the start's; mirrored points have no such push. Quick: 4,096 points "
    "and steps of 0.5; published: 10⁵ and 0.02, which makes the push five times smaller.",
    quick=Changed(),
    paper=Changed(step=0.02, samples=100_000, runs=1, records=200),
    draw=draw_changed,
)(changed)


@dataclasses.dataclass(frozen=True)
class Quadrature:
    """Errors over `replicates` independent sets of 2^k points each, at the same parameters: those
    of a training at τ = `last`, the second feature not learned; the true risk is from
    2^`reference` mirrored points."""

    tokens: int = 5
    heads: int = 4
    last: float = 30.0
    powers: tuple[int, ...] = (10, 12, 13, 14)
    replicates: int = 4
    reference: int = 16


METHODS = ("random", "quasi-random", "quasi-random, mirrored")
BLOCK = 128  # times eight mirror images is the least number of points


def quadrature(config: Quadrature) -> xr.Dataset:
    training = Training(
        ("gaussian", 2, 8.0, 2.0),
        tokens=config.tokens,
        heads=config.heads,
        last=config.last,
        records=2,
    )
    model, params = training.model(), params_at(trained(training))
    params["m"] = params["m"] * [1, 0]
    seeds = range(config.replicates)
    with jax.enable_x64(True):
        found = np.array(
            [
                [[averaged(model, params, method, 2**power, seed) for seed in seeds]]
                for method in METHODS
                for power in config.powers
            ]
        ).reshape(len(METHODS), len(config.powers), config.replicates, -1)
        true = averaged(model, params, METHODS[-1], 2**config.reference, config.replicates)
    error = found[..., 0] - true[0]
    push = found[..., 1:]  # whose true value is 0, by symmetry
    dims = ("method", "samples")
    return xr.Dataset(
        {
            "risk_error": (dims, np.sqrt((error**2).mean(axis=-1))),
            "push": (dims, np.sqrt((push**2).sum(axis=-1).mean(axis=-1))),
        },
        {"method": list(METHODS), "samples": 2 ** np.array(config.powers)},
    )


def averaged(model: SingleLocation, params, method: str, samples: int, seed: int) -> np.ndarray:
    """The risk, and its gradient along the second feature, of `samples` sequences, mirror images
    counted."""
    features = model.signal.features
    columns = features + model.heads
    same = Image((1.0,) * features, 1.0, 0)
    images = model.points.images if method == METHODS[-1] else (same,)
    if method == "random":
        numbers = drawn(model, np.random.default_rng(seed), samples)
    else:
        points = sobol(model.signal.inputs, model.tokens * columns, samples, seed, images, False)
        blocks = [points.numbers(move) for move in points.blocks()]
        numbers = [np.concatenate(part, axis=1) for part in zip(*blocks, strict=True)]
    rows = []
    for image in images:
        signs = np.array([*image.features, *[image.heads] * model.heads])
        for begin in range(0, numbers[0].shape[1], BLOCK):
            uniforms, normals = (x[:, begin : begin + BLOCK] for x in numbers)
            risk, slope = _sampled(model, params, uniforms, normals, signs)
            rows.append([float(risk), *np.asarray(slope["m"])[:, 1]])
    return np.mean(rows, axis=0)


@mpl.rc_context(STYLE)
def draw_quadrature(ds: xr.Dataset):
    figure, axes = canvas(1, 2, width=3.7, height=2.9)
    names = (
        ("risk_error", "(a) error of the risk"),
        ("push", "(b) push off the saddle (true value 0)"),
    )
    for ax, (name, title) in zip(axes[0], names, strict=True):
        for method, label in enumerate(ds.method.values):
            values = ds[name][method]
            if float(values.max()) > 1e-12:
                ax.loglog(ds.samples, values, "o-", ms=4, color=COLORS[method], label=label)
            else:
                note = f"{label}: below {10 ** np.ceil(np.log10(float(values.max()))):.0e}"
                ax.text(0.04, 0.05, note, transform=ax.transAxes, color=COLORS[method], fontsize=8)
        half = float(ds[name][0].mean()) * np.sqrt(float(ds.samples.median()) / ds.samples)
        ax.loglog(ds.samples, half, color="0.6", ls=":", label="$n^{-1/2}$")
        ax.set(title=title, xlabel="sequences evaluated $n$", ylabel="root mean square")
        ax.set_xticks(ds.samples.values, [f"$2^{{{int(np.log2(n))}}}$" for n in ds.samples.values])
        ax.set_xticks([], minor=True)
    axes[0, 0].set_ylim(float(ds.risk_error.min()) / 6)  # room for the legend
    axes[0, 1].set_ylim(float(ds.push[1].min()) / 3)
    axes[0, 0].legend(fontsize=7, loc="lower left", ncols=2)
    return figure


GALLERY.figure(
    "quadrature",
    tour=False,
    title="Random and quasi-random averages",
    caption="Root mean square over independent sets, against the number of sequences evaluated "
    "(mirror images counted), for four softmax heads on Gaussian features (ν = 8, 2; L = 5) that "
    "have learned the first feature only. (a) Error of the averaged risk: quasi-random points are "
    "several times better than random ones, but only from 2¹⁰ of them on; mirroring spends the "
    "same sequences on eight times fewer independent points and so gains later, from 2¹³. (b) What "
    "it buys: the gradient along the feature not yet learned, zero by symmetry, which otherwise "
    "leaves the saddle in place of the start's own D^(−1/2). Not a figure of the paper. Quick: 4 "
    "sets of up to 2¹⁴.",
    quick=Quadrature(),
    paper=Quadrature(powers=(10, 11, 12, 13, 14, 15, 16, 17), replicates=32, reference=21),
    draw=draw_quadrature,
)(quadrature)
