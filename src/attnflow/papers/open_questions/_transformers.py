"""Questions to transformers that learn induction.

sink-remedies: do attentions that can give nothing, or that heads share, learn without sinks?
one-clock: what the five papers measure, in one training of one softmax model.
"""

import dataclasses
import importlib
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import xarray as xr

from attnflow.instruments.norms import norm_phases
from attnflow.papers import pretrained
from attnflow.papers.open_questions._gallery import GALLERY
from attnflow.papers.polarization._induction import INDUCTION, SMALL, Trial, build
from attnflow.papers.polarization._induction_figures import LEARNED, Sinks, lacking
from attnflow.papers.style import COLORS, STYLE, canvas, say_below
from attnflow.papers.trials import Trials
from attnflow.runs.config import grid
from attnflow.runs.sweeps import Experiment

REMEDIES = ("softmax", "softmax_1", "bayes_softmax", "sigmoid")


@dataclasses.dataclass(frozen=True)
class Remedies:
    """The same training with each attention; biases of softmax-1 and Bayes-softmax are learned."""

    trial: Trial = SMALL
    attention: tuple[str, ...] = REMEDIES
    seed: tuple[int, ...] = (0, 1, 2)

    @property
    def grid(self) -> list[Trial]:
        return grid(self.trial, attention=self.attention, seed=self.seed)


@mpl.rc_context(STYLE)
def draw_remedies(ds: xr.Dataset):
    figure, axes = canvas(1, 3, width=3.1, height=2.9)
    rng = np.random.default_rng(0)
    for k, name in enumerate(ds.attention.values):
        own = ds.sel(attention=name)
        for ax, values in ((axes[0, 0], own.sink), (axes[0, 1], own.first)):
            flat = values.values.ravel()
            ax.plot(k + rng.uniform(-0.2, 0.2, flat.size), flat, "o", ms=4, alpha=0.7)
        axes[0, 2].plot(np.full(own.sizes["seed"], k), own.accuracy, "o", ms=5, alpha=0.7)
    labels = [str(name).replace("_", "-") for name in ds.attention.values]
    titles = ("share of what a row gives", "weight itself", "accuracy")
    for ax, title in zip(axes[0], titles, strict=True):
        ax.set_xticks(range(len(labels)), labels, rotation=30, ha="right")
        ax.set(title=title)
        ax.grid(axis="x", visible=False)
    axes[0, 0].set(ylabel="share of BOS, a dot a head", ylim=(-0.03, 1.03))
    axes[0, 0].axhline(0.9, color="0.4", lw=0.8, ls="--")
    axes[0, 1].set_ylabel("weight of BOS, a dot a head")
    axes[0, 2].axhline(LEARNED, color="0.4", lw=0.8, ls="--")
    axes[0, 2].set_ylabel("accuracy of the answer")
    say_below(figure, ds.attrs["reduced"])
    return figure


@GALLERY.figure(
    "sink-remedies",
    title="Do softmax-1 and Bayes-softmax remove the sinks of induction?",
    caption="Heads of the second layer where the next symbol cannot be known (λ = 0.2, t' ≠ t, "
    "additive positions). Left: BOS's share of the weight that a row gives, by which a sink is "
    "defined (dashed: 0.9). Middle: its weight itself. softmax-1 may give less than one, "
    "Bayes-softmax shares one sum (the number of heads) among the heads, sigmoid is divided by "
    "nothing.",
    quick=Remedies(),
    paper=Remedies(trial=Trial(), seed=(0, 1, 2, 3, 4)),
    draw=draw_remedies,
    tour=False,
    missing=lacking,
    trials=Trials(INDUCTION, lambda config: config.grid),
)
def remedies(config: Remedies, found: Sequence[xr.Dataset]) -> xr.Dataset:
    shape = (len(config.attention), len(config.seed))

    def stacked(name: str) -> np.ndarray:
        values = np.stack([each[name].values for each in found])
        return values.reshape(shape + values.shape[1:])

    axes = ("attention", "seed")
    return xr.Dataset(
        {
            "sink": ((*axes, "head"), stacked("sink")),
            "first": ((*axes, "head"), stacked("first")),
            "accuracy": (axes, stacked("accuracy")),
        },
        {"attention": list(config.attention), "seed": list(config.seed)},
        {"reduced": Sinks(config.trial, rate=(config.trial.rate,), seed=config.seed).reduced},
    )


@dataclasses.dataclass(frozen=True)
class Clock:
    """One training, looked at every so many steps on so many sequences."""

    trial: Trial = dataclasses.field(
        default_factory=lambda: dataclasses.replace(SMALL, patience=0, rate=1e-3, steps=1200)
    )
    every: int = 10
    sequences: int = 32


MEASURED = {
    "relative_entropy": "entropy ÷ that of\neven attention",
    "first_mass": "share of BOS",
    "log10_kappa": "log₁₀ κ of the\nsoftmax Jacobian",
    "interaction_norm": "‖W_QᵀW_K‖",
    "redundancy": "cosine with the\nmost similar head",
}


def followed(config: Clock) -> xr.Dataset:
    """What the papers measure by (step, layer, head), and loss and accuracy by step."""
    pretrained.needs_torch()
    torch: Any = importlib.import_module("torch")
    from attnflow.torch import Budget, train, watch
    from attnflow.torch.training import last_accuracy

    trial = config.trial
    model = build(trial)
    budget = Budget(sequences=config.sequences, rows=trial.task.length, exact=8, skip=1)
    watcher = watch(model, every=config.every, budget=budget, gradients=False)
    record = train(
        model,
        lambda step: trial.task.batch(trial.seed, step, trial.batch),
        steps=trial.steps,
        optimizer=torch.optim.AdamW(model.parameters(), lr=trial.rate, fused=True),
        accuracy=last_accuracy,
        watch=watcher,
        record_every=config.every,
    )
    seen = watcher.history[list(MEASURED)].drop_attrs()
    seen = seen.drop_vars([name for name in seen.coords if name not in seen.dims])
    record = record.rename({name: f"training_{name}" for name in record.data_vars})
    return xr.merge([seen, record.sel(step=seen.step).drop_attrs()]).assign_attrs(
        reduced=Sinks(trial, rate=(trial.rate,)).reduced
    )


WATCHED = Experiment("induction_watched", followed)


@mpl.rc_context(STYLE)
def draw_clock(ds: xr.Dataset):
    figure, axes = canvas(1 + len(MEASURED), 2, width=4.0, height=1.35, sharex=True)
    for column in range(2):
        top = axes[0, column]
        top.plot(ds.step, ds.training_loss, color="black", label="loss (nats)")
        top.plot(ds.step, ds.training_accuracy, color=COLORS[3], label="accuracy")
        top.set_title(f"layer {column + 1}")
        for ax, (name, label) in zip(axes[1:, column], MEASURED.items(), strict=True):
            lines = ds[name].isel(layer=column)
            for head in range(ds.sizes["head"]):
                ax.plot(ds.step, lines.isel(head=head), color=COLORS[head % 8], lw=1.1)
            if column == 0:
                ax.set_ylabel(label, fontsize=7)
            if name == "interaction_norm":
                mark_phases(ax, ds.step.values, lines.mean("head").values)
        axes[-1, column].set(xlim=(0, float(ds.step[-1])), xlabel="step")
    axes[0, 0].legend(fontsize=7)
    axes[0, 0].set_ylabel("training", fontsize=7)
    figure.align_ylabels()
    say_below(figure, ds.attrs["reduced"])
    return figure


def mark_phases(ax: Any, steps: np.ndarray, norms: np.ndarray) -> None:
    shades = {"heating": COLORS[3], "forging": COLORS[1], "cooling": COLORS[0]}
    for phase in norm_phases(steps, norms):
        color = shades.get(phase.name, "0.5")
        ax.axvspan(phase.start, phase.end, color=color, alpha=0.12, lw=0)
        middle = (phase.start + phase.end) / 2
        style = {"fontsize": 6, "ha": "center", "va": "top", "color": color}
        ax.text(middle, 0.98, phase.name, transform=ax.get_xaxis_transform(), **style)


@GALLERY.figure(
    "one-clock",
    title="What five papers measure, in one training of a softmax transformer",
    caption="Two layers of four heads learn induction; a line a head. Entropy falls and the share "
    "of BOS grows in layer 2 as heads turn into sinks (polarization), the condition number of the "
    "softmax Jacobian grows with them (conditioning), ‖W_QᵀW_K‖ passes its phases (U-shape; by "
    "the mean of the heads), heads part and become alike again (specialization), the accuracy "
    "tells when the answer is routed (routing).",
    quick=Clock(),
    paper=Clock(trial=Trial()),
    draw=draw_clock,
    tour=False,
    missing=lacking,
    trials=Trials(WATCHED, lambda config: [config]),
)
def one_clock(config: Clock, found: Sequence[xr.Dataset]) -> xr.Dataset:
    return found[0]
