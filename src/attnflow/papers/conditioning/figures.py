"""The figures of the conditioning paper; those that need no transformer are made here."""

import dataclasses

import matplotlib as mpl
import numpy as np
import optax
import xarray as xr
from matplotlib.figure import Figure

from attnflow.dynamics.descent import descend
from attnflow.instruments import log10_ratio, operator_extremes
from attnflow.models.prompt import StudentTeacher
from attnflow.papers.conditioning import _vision_figures, _vision_tables, _wikitext_figures
from attnflow.papers.conditioning._gallery import GALLERY
from attnflow.papers.conditioning._preconditioning import (
    Preconditioning,
    draw_preconditioning,
    preconditioning,
)
from attnflow.papers.conditioning._separated import Separated, factors_at_teacher, separated
from attnflow.papers.style import COLORS, STYLE, canvas

FLOOR = 1e-16
del _vision_figures, _vision_tables, _wikitext_figures  # imported for what they register


@dataclasses.dataclass(frozen=True)
class Runs:
    """Gradient descent on Gaussian students and teachers, n = d: (d, σ_p, step size, steps)."""

    cases: tuple[tuple[int, float, float, int], ...]
    trained: tuple[str, ...] = ("p", "v")
    attention: str = "softmax"
    samples: int = 100
    seed: int = 0


def training_curves(config: Runs) -> xr.Dataset:
    """Loss and log10 of the attention ratio over steps; the teacher's ratio beside them."""
    runs = []
    for d, sigma_p, step, steps in config.cases:
        model = StudentTeacher(
            d=d,
            n=d,
            samples=config.samples,
            sigma_p=sigma_p,
            trained=config.trained,
            attention=config.attention,
            seed=config.seed,
        ).model()
        run = descend(model, steps, optax.sgd(step))[["loss", "log10_ratio"]]
        ratio = np.mean(log10_ratio(model.inputs @ model.teacher["p"]))
        facts = {"d": d, "sigma_p": sigma_p, "samples": config.samples, "teacher_ratio": ratio}
        size = sum(np.size(model.start[block]) for block in config.trained)
        last = {"parameters": size, "end_ratio": float(run.log10_ratio[-1])}
        runs.append(run.assign(facts | last))
    joined = xr.concat(runs, "case", join="outer", combine_attrs="drop")
    assert isinstance(joined, xr.Dataset)
    return joined


@mpl.rc_context(STYLE)
def draw_curves(data: xr.Dataset) -> Figure:
    """A panel for each width; the ratios of teacher and final student in the legend."""
    widths = np.unique(data.d.values)
    figure, axes = canvas(1, len(widths), width=4.2, height=3.2)
    for ax, width in zip(axes.flat, widths, strict=True):
        here = data.isel(case=np.flatnonzero(data.d.values == width))
        for index in range(here.sizes["case"]):
            run = here.isel(case=index).dropna("step", subset=["loss"])
            label = f"$\\sigma_p$ = {float(run.sigma_p):g}"
            if run.end_ratio > 0:  # linear attention has no ratio
                ratios = f"{float(run.teacher_ratio):.1f} teacher, {float(run.end_ratio):.1f} end"
                label += f"; $\\log_{{10}} R$: {ratios}"
            ax.plot(run.step[1:], np.maximum(run.loss[1:], FLOOR), label=label)
        few = here.parameters.values[0] < here.samples.values[0]
        title = f"d = n = {width}: {'under' if few else 'over'}parameterized"
        ax.set(xscale="log", yscale="log", xlabel="step", ylabel="training loss", title=title)
        ax.legend(fontsize=7)
    return figure


def both(d: int, step: float, steps: int) -> tuple[tuple[int, float, float, int], ...]:
    """The published pair of teachers: spread attention and sparse attention."""
    return (d, 0.1, step, steps), (d, 1.0, step, steps)


GALLERY.figure(
    "1",
    title="Gradient descent under sparse attention",
    caption="Training loss of p and v on N = 100 samples. With d = 20 the run on the sparse "
    "teacher (σ_p = 1) stands still far above the teacher's loss; `simulate prompt --explain` "
    "finds no way down from there, so this is not slow convergence. With more parameters than "
    "samples both go down.",
    quick=Runs(cases=(*both(20, 0.1, 5000), *both(110, 0.1, 800))),
    paper=Runs(cases=(*both(20, 0.1, 50_000), *both(150, 0.1, 5000), *both(400, 0.1, 2000))),
    draw=draw_curves,
)(training_curves)

GALLERY.figure(
    "2a",
    title="The control: linear attention",
    caption="The same tasks with linear attention, teacher and student: without softmax the width "
    "of the teacher's scores acts through their size alone: small ones give a small gradient and "
    "a slow start, and nothing stalls.",
    quick=Runs(cases=both(20, 0.02, 5000), attention="linear"),
    paper=Runs(cases=(*both(20, 0.02, 50_000), *both(150, 0.005, 5000)), attention="linear"),
    draw=draw_curves,
)(training_curves)

GALLERY.figure(
    "6",
    title="Training W as well",
    caption="W, p and v trained together: d = 20 is then overparameterized too, with 440 weights "
    "for 100 labels, and still the sparse teacher is not reached.",
    quick=Runs(cases=both(20, 0.05, 5000), trained=("p", "v", "W")),
    paper=Runs(cases=(*both(20, 0.05, 20_000), *both(150, 0.05, 5000)), trained=("p", "v", "W")),
    draw=draw_curves,
)(training_curves)

SPREADS = (0.02, 0.1, 0.2, 0.4, 0.7, 1.0)

GALLERY.figure(
    "7",
    title="From uniform to sparse teachers",
    caption="d = 20, N = 100, six widths σ_p of the teacher's prompt. The more its attention "
    "concentrates, the higher the loss at which gradient descent stays; the least sparse teachers "
    "are learned.",
    quick=Runs(cases=tuple((20, s, 0.1, 5000) for s in SPREADS)),
    paper=Runs(cases=tuple((20, s, 0.1, 100_000) for s in SPREADS)),
    draw=draw_curves,
)(training_curves)


@mpl.rc_context(STYLE)
def draw_kappa(data: xr.Dataset) -> Figure:
    figure, axes = canvas(1, 1, width=5.0, height=3.4)
    ax = axes[0, 0]
    for color, size in zip(COLORS, data.important.values, strict=False):
        row = data.sel(important=size)
        ax.plot(row.delta, row.kappa, "o-", color=color, ms=3, label=f"κ, s = {size}")
        ax.plot(row.delta, row.printed, ":", color=color, label=f"$(a_I/a_U)^2/(n-s)$, s = {size}")
    ax.set(yscale="log", xlabel="score gap Δ", ylabel="condition number of $H_p$")
    ax.legend(fontsize=7, ncol=2)
    return figure


@GALLERY.figure(
    "kappa",
    title="Conditioning against the score gap",
    caption="Condition number of the Hessian at the teacher for one, two and three important keys "
    "among many, with no leakage; dotted, what the paper's bound grows like. With one important "
    "key κ stays bounded: both ends of the spectrum fall together. With two or three, whose values "
    "differ, it grows like e^2Δ.",
    quick=Separated(),
    paper=Separated(samples=1000, tokens=20, width=12),
    draw=draw_kappa,
)
def kappa(config: Separated) -> xr.Dataset:
    shape = (len(config.important), len(config.deltas))
    kappas, printed = np.zeros(shape), np.zeros(shape)
    for i, size in enumerate(config.important):
        for j, delta in enumerate(config.deltas):
            low, high = operator_extremes(factors_at_teacher(separated(config, size, delta)))
            kappas[i, j] = high / low
            printed[i, j] = np.exp(2 * delta) / (config.tokens - size)
    dims = ("important", "delta")
    return xr.Dataset(
        {"kappa": (dims, kappas), "printed": (dims, printed)},
        coords={"important": list(config.important), "delta": list(config.deltas)},
    )


GALLERY.figure(
    "preconditioning",
    title="Preconditioning undoes the score gap",
    caption="Steps until the squared distance to the teacher is 1e-10 of what it was, from "
    "0.01 off it in a random direction; two important keys of eight (paper preset: twelve). "
    "Descent and natural gradient take the step 1/λ_max of their own (preconditioned) Hessian; "
    "Adam the best of its learning rates 1e-2, 1e-3 and 1e-4; Gauss–Newton the step 1. "
    "An open triangle: not within the steps run; larger gaps were not tried. Dotted: "
    "the count by the linearized iteration, right to a percent where the runs end, a "
    "prediction beyond. Gradient descent needs 6 to 11 κ steps and κ grows in the end "
    "like e^2Δ; the natural gradient of the attention rows undoes one softmax Jacobian "
    "of the two, so its condition number grows like e^Δ; Gauss–Newton undoes both and "
    "is flat. Adam rescales coordinates, so it helps when the slow directions are "
    "coordinate axes, as in this task, and much less after a random rotation, which "
    "changes nothing for the others.",
    quick=Preconditioning(),
    paper=Preconditioning(
        task=Separated(samples=100, tokens=12, width=8, important=(2,)), cap=200_000
    ),
    draw=draw_preconditioning,
)(preconditioning)
