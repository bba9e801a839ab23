"""The value–softmax model on its own: logistic loss, divergence, and other maps than softmax.

Where the paper leaves a draw unsaid it is made here in this order from one legacy generator:
target, values, scores. Targets β* are normalised to length one.
"""

import dataclasses

import matplotlib as mpl
import numpy as np
import optax
import xarray as xr
from matplotlib.lines import Line2D

from attnflow.dynamics.descent import descend
from attnflow.dynamics.flow import gradient_flow
from attnflow.models.value_softmax import ValueSoftmax
from attnflow.papers.polarization._drawing import (
    GALLERY,
    descend_while_finite,
    legacy,
    renamed,
    softmax,
    token_colors,
    token_lines,
    unit,
)
from attnflow.papers.style import STYLE, canvas

FLOW_AND_DESCENT = [
    Line2D([], [], color="black", label="gradient flow"),
    Line2D([], [], color="black", ls="", marker="o", ms=3, label="gradient descent"),
]


@dataclasses.dataclass(frozen=True)
class Logistic:
    """p tokens in p dimensions, V(0) = value_scale · N(0, 1), a(0) = 0, descent by `step`.

    Tokens are numbered by their projection u(0), the largest first.
    """

    p: int = 8
    seed: int = 123
    value_scale: float = 0.1
    step: float = 0.1
    steps: int = 10_000
    records: int = 40
    points: int = 200


FIG_2 = Logistic(p=8, seed=123, value_scale=0.1, step=0.1, steps=1_000_000)


@mpl.rc_context(STYLE)
def draw_logistic(ds: xr.Dataset):
    figure, axes = canvas(1, 2, width=4.0, height=3.0)
    for ax, name in zip(axes[0], ("weights", "projections"), strict=True):
        token_lines(ax, ds.time, ds[f"flow_{name}"])
        token_lines(ax, ds.step * ds.attrs["step"], ds[f"descent_{name}"], ls="", marker="o", ms=3)
        ax.set(xlabel="time $t$ (descent: step × steps)")
    weights, projections = axes[0]
    weights.set(title="(a) attention weights", ylabel=r"$\sigma(a)_i$")
    projections.set(title="(b) value projections", ylabel=r"$u_i = \langle v_i, \beta_* \rangle$")
    weights.legend(handles=FLOW_AND_DESCENT, loc="upper left")
    tokens = [
        Line2D([], [], color=color, label=f"{token}")
        for token, color in enumerate(token_colors(ds.sizes["token"]))
    ]
    projections.legend(handles=tokens, title="token", ncols=2, loc="upper left", fontsize=7)
    return figure


@GALLERY.figure(
    "2",
    title="Logistic loss: attention becomes one-hot while the projections diverge",
    caption="Eight tokens, V(0) = 0.1·N(0, 1), a(0) = 0, unit target, legacy seed 123. The token "
    "with the largest projection at the start (blue) takes all the attention, and its projection "
    "grows like log t; the others fall behind without ever changing order. Lines: gradient flow; "
    "dots: plain gradient descent with step 0.1, at time 0.1 × steps (10⁶ steps as published).",
    quick=Logistic(),
    paper=FIG_2,
    draw=draw_logistic,
)
def logistic(config: Logistic) -> xr.Dataset:
    rng = legacy(config.seed)
    target = unit(rng.randn(config.p))
    values = config.value_scale * rng.randn(config.p, config.p)
    values = values[:, np.argsort(-values.T @ target)]
    model = ValueSoftmax(values=values, target=target)
    flow = gradient_flow(model, config.step * config.steps, points=config.points)
    descent = descend(model, config.steps, optax.sgd(config.step), record=config.records)
    kept = ("weights", "projections", "loss")
    ds = renamed(flow, "flow", kept).merge(renamed(descent, "descent", kept))
    ds.attrs["step"] = config.step
    return ds


@dataclasses.dataclass(frozen=True)
class Divergence:
    """A distribution over k classes, fitted by softmax(V σ(a)) with k tokens.

    The target is softmax(target_scale · U[0, 1]); V(0) = value_scale · N(0, 1) and a(0) = 0 are
    those of the logistic experiment, the text does not say them. `t1` ends the flow, which has
    converged by then; the descent goes on for `steps`.
    """

    k: int = 10
    seed: int = 0
    target_scale: float = 10.0
    value_scale: float = 0.1
    step: float = 0.1
    steps: int = 100_000
    records: int = 40
    t1: float = 2e3
    points: int = 200


FIG_10 = Divergence(k=10, target_scale=10.0, step=0.1, steps=10_000_000)


@mpl.rc_context(STYLE)
def draw_divergence(ds: xr.Dataset):
    figure, axes = canvas(1, 3, width=3.6, height=3.0)
    time = ds.step * ds.attrs["step"]
    for ax, name in zip(axes[0], ("weights", "scores"), strict=False):
        token_lines(ax, ds.time, ds[f"flow_{name}"])
        token_lines(ax, time, ds[f"descent_{name}"], ls="", marker="o", ms=3)
    weights, scores, loss = axes[0]
    floor = 1e-14
    loss.loglog(ds.time[1:], np.maximum(ds.flow_loss[1:], floor), color="black")
    loss.loglog(time[1:], np.maximum(ds.descent_loss[1:], floor), "o", color="black", ms=3)
    weights.set(title="(a) attention weights", ylabel=r"$\sigma(a)_i$", ylim=(-0.02, 1))
    scores.set(title="(b) attention scores", ylabel="$a_i$")
    loss.set(
        title="(c) divergence (floor $10^{-14}$)", ylabel=r"KL$(p_*\,\|\,$softmax$(V\sigma(a)))$"
    )
    loss.legend(handles=FLOW_AND_DESCENT)
    for ax in axes[0]:
        ax.set(xlabel="time $t$ (descent: step × steps)")
    return figure


@GALLERY.figure(
    "10",
    title="Divergence: attention polarizes only in part",
    caption="Ten tokens and ten classes, target distribution softmax(10·U[0, 1]), softmax head, "
    "V(0) = 0.1·N(0, 1), a(0) = 0. One token gathers most of the attention while the target is "
    "being fitted, and then everything stands still: the divergence reaches rounding long before "
    "the 10⁷ published steps end. Lines: gradient flow; dots: gradient descent with step 0.1.",
    quick=Divergence(),
    paper=FIG_10,
    draw=draw_divergence,
)
def divergence(config: Divergence) -> xr.Dataset:
    rng = legacy(config.seed)
    target = softmax(config.target_scale * rng.rand(config.k))
    values = config.value_scale * rng.randn(config.k, config.k)
    model = ValueSoftmax(values=values, target=target, objective="kl")
    flow = gradient_flow(model, config.t1, points=config.points)
    descent = descend(model, config.steps, optax.sgd(config.step), record=config.records)
    order = np.argsort(-flow.weights.values[-1])
    kept = ("weights", "scores", "loss")
    ds = renamed(flow, "flow", kept).merge(renamed(descent, "descent", kept)).isel(token=order)
    ds.attrs["step"] = config.step
    return ds


@dataclasses.dataclass(frozen=True)
class Maps:
    """The same start under several maps and two losses: a(0) = 1 + score_scale · N(0, 1).

    The seed is used twice, once for the target and once for the values and scores.
    """

    maps: tuple[str, ...] = (
        "softmax",
        "square_normalized",
        "relu_normalized",
        "identity_normalized",
        "sigmoid",
    )
    p: int = 10
    seed: int = 42
    value_scale: float = 0.1
    score_scale: float = 0.1
    square_step: float = 0.1
    square_steps: int = 1_000
    logistic_step: float = 0.5
    logistic_steps: int = 10_000
    records: int = 60


FIG_13 = Maps(
    maps=(
        "softmax",
        "softplus_normalized",
        "square_normalized",
        "abs_normalized",
        "relu_normalized",
        "identity_normalized",
        "sigmoid",
    ),
    p=10,
    seed=42,
    value_scale=0.1,
    score_scale=0.1,
    square_step=0.1,
    square_steps=5_000,
    logistic_step=0.5,
    logistic_steps=100_000,
    records=150,
)
LOSSES = ("square", "logistic")
TITLES = {
    "identity_normalized": "sum, $f = x$",
    "square_normalized": "$f = x^2$",
    "abs_normalized": "$f = |x|$",
    "relu_normalized": "$f$ = ReLU",
    "softplus_normalized": "$f$ = softplus",
    "sigmoid": "sigmoid, elementwise",
}


@mpl.rc_context(STYLE)
def draw_maps(ds: xr.Dataset):
    names = ds.attrs["maps"].split()
    figure, axes = canvas(2, len(names), width=2.1, height=2.3, sharey=False)
    for row, loss in enumerate(LOSSES):
        steps = ds[f"{loss}_step"]
        for column, name in enumerate(names):
            ax, panel = axes[row, column], ds.isel(map=column)
            weights = panel[f"{loss}_weights"].values
            token_lines(ax, steps, weights, lw=1.2)
            flow_steps = ds[f"{loss}_flow_time"] / ds.attrs[f"{loss}_step"]
            flow = panel[f"{loss}_flow_weights"].values
            token_lines(ax, flow_steps, flow, lw=0.8, ls="--")
            ax.set(xlim=(1, float(steps[-1])), ylim=(-0.04, 1.04))
            ax.set(title=TITLES.get(name, name) if row == 0 else "", xlabel="step")
            note = remark(steps.values, weights, flow_steps.values, flow)
            box = {"facecolor": "white", "alpha": 0.8, "lw": 0, "pad": 1}
            ax.text(0.03, 0.03, note, transform=ax.transAxes, va="bottom", fontsize=7, bbox=box)
            if "simplex" in note:
                ax.set_ylim(-1.04, 1.04)
        axes[row, 0].set_ylabel(f"{loss} loss\nweights")
    return figure


def remark(steps: np.ndarray, weights: np.ndarray, flow_steps: np.ndarray, flow: np.ndarray) -> str:
    """What a reader must know of a panel: weights below zero, a descent without its end."""
    notes = []
    for along, values in ((steps, weights), (flow_steps, flow)):
        outside = (values < 0).any(axis=1)
        if outside.any():
            notes = [f"leaves the simplex\nat step {along[np.argmax(outside)]:.0f}"]
    stopped = np.isnan(weights).any(axis=1)
    if stopped.any():
        last = steps[np.argmax(stopped) - 1]
        notes.append(f"lines: descent to {last}\ndashed: flow")
    return "\n".join(notes)


@GALLERY.figure(
    "13",
    title="Which maps polarize",
    caption="Weights of ten tokens under several maps and both losses, from V(0) = 0.1·N(0, 1), "
    "a(0) = 1 + 0.1·N(0, 1), legacy seed 42, plain descent (square: step 0.1 × 5,000; logistic: "
    "step 0.5 × 100,000). The square loss stops early on every path. Under the logistic loss "
    "softmax and the normalized x², |x| and ReLU become one-hot (ReLU exactly), "
    "softplus far more slowly; elementwise sigmoid does not. Division by the plain sum does not "
    "either: its weights turn negative and leave the simplex.",
    quick=Maps(),
    paper=FIG_13,
    draw=draw_maps,
)
def maps(config: Maps) -> xr.Dataset:
    target = unit(legacy(config.seed).randn(config.p))
    rng = legacy(config.seed)
    values = config.value_scale * rng.randn(config.p, config.p)
    scores = 1 + config.score_scale * rng.randn(config.p)
    start = {"values": values, "scores": scores, "target": target}
    ds = xr.Dataset(attrs={"maps": " ".join(config.maps)})
    for loss in LOSSES:
        step, steps = getattr(config, f"{loss}_step"), getattr(config, f"{loss}_steps")
        models = [ValueSoftmax(**start, map=name, objective=loss) for name in config.maps]
        runs = [descend_while_finite(model, steps, step, config.records) for model in models]
        weights = np.stack([run.weights.values for run in runs])
        ds[f"{loss}_step"] = (f"{loss}_step", runs[0].step.values)
        ds[f"{loss}_weights"] = (("map", f"{loss}_step", "token"), weights)
        times = np.expm1(np.linspace(0, np.log1p(step * steps), 200))
        on = np.full((len(models), times.size, config.p), np.nan)
        for index in np.flatnonzero(np.isnan(weights).any(axis=(1, 2))):
            on[index] = gradient_flow(models[index], times=times).weights
        ds[f"{loss}_flow_time"] = (f"{loss}_flow_time", times)
        ds[f"{loss}_flow_weights"] = (("map", f"{loss}_flow_time", "token"), on)
        ds.attrs[f"{loss}_step"] = step
    winners_first = np.argsort(-ds.logistic_weights.values[0, -1])
    return ds.isel(token=winners_first)
