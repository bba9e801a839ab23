"""Conditioning: what a sparse attention row does to descent."""

import dataclasses
from typing import Annotated, Any

import numpy as np
import optax
from typing_extensions import Doc

from attnflow.dynamics.descents import descents, recorded_steps
from attnflow.dynamics.preconditioning import (
    gauss_newton,
    levenberg_marquardt,
    simplex_natural_gradient,
)
from attnflow.instruments import softmax_conditioning
from attnflow.models.prompt import StudentTeacher
from attnflow.web.answers import Answer, Axis, Fact, Plot, bars, call, command, dots, line
from attnflow.web.fields import Bars, Choice, Slider
from attnflow.web.views import View, picked

RECORDS = 41


@dataclasses.dataclass(frozen=True)
class Row:
    row: Annotated[
        tuple[float, ...], Doc("an attention row: relative weights, divided by their sum")
    ] = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02)


@dataclasses.dataclass(frozen=True)
class Descent:
    steps: Annotated[int, Doc("steps of the optimizer")] = 10_000
    step: Annotated[float, Doc("step size")] = 0.1
    optimizer: Annotated[str, Doc("what gradient descent is compared with, at the same step")] = (
        "sgd"
    )


def _sgd(step):
    return optax.sgd(step)


def _natural(model, step):
    return optax.chain(simplex_natural_gradient(model.scores), optax.scale(-step))


def _gauss_newton(model, step):
    return optax.chain(gauss_newton(model.outputs, model.loss_of_outputs), optax.scale(-step))


def _levenberg_marquardt(model, step):
    del step  # it chooses its own
    return levenberg_marquardt(model.outputs, model.loss_of_outputs)


OPTIMIZERS = {
    "natural": _natural,
    "gauss_newton": _gauss_newton,
    "levenberg_marquardt": _levenberg_marquardt,
}


def compute(values: dict[str, Any]) -> Answer:
    row_plots, row_facts = of_row(np.asarray(values["row"]) / np.sum(values["row"]))
    given: dict[str, Any] = picked(StudentTeacher, values) | {"trained": ("p",)}
    plots, facts = of_student(StudentTeacher(**given), values)
    return Answer(
        [*row_plots, *plots],
        [*row_facts, *facts],
        command("prompt", (StudentTeacher, given), (Descent, values)),
        "import attnflow as af, numpy as np, optax\n\n"
        f"row = np.array({list(values['row'])!r})\n"
        "print(np.exp(af.instruments.softmax_conditioning(np.log(row)).log_kappa))\n"
        f"model = {call('af.StudentTeacher', StudentTeacher, given)}.model()\n"
        f"optimizer = {PYTHON[values['optimizer']].format(step=values['step'])}\n"
        f"print(af.descend(model, {values['steps']}, optimizer).loss.values[-1])",
    )


def of_student(task: StudentTeacher, values: dict[str, Any]) -> tuple[list[Plot], list[Fact]]:
    """Gradient descent against another optimizer, from the same start."""
    model, rate = task.model(), {"step": values["step"]}
    steps, name = recorded_steps(values["steps"], RECORDS), values["optimizer"]
    other = name.replace("_", " ")
    runs = {
        "gradient descent": descents(model, _sgd, [rate], steps)[0],
        other: descents(model, OPTIMIZERS[name], [rate], steps)[0],
    }
    for each, run in runs.items():
        if not np.isfinite(run["loss"]).all():
            raise ValueError(f"step: {each} diverges, take a smaller one")

    def curves(key: str, least: float = -np.inf) -> list:
        paths = {each: np.maximum(run[key], least) for each, run in runs.items()}
        return [line(steps + 1, y, each, i) for i, (each, y) in enumerate(paths.items())]

    clock, sparsity = Axis("step + 1", log=True), Axis("mean log₁₀ (max a / min a)")
    plots = [
        Plot("A student and a teacher", clock, Axis("loss", log=True), curves("loss", 1e-33)),
        Plot("How sparse its attention is", clock, sparsity, curves("log10_ratio")),
    ]
    facts = [
        Fact("loss, gradient descent", float(runs["gradient descent"]["loss"][-1])),
        Fact(f"loss, {other}", float(runs[other]["loss"][-1]), "loss"),
    ]
    return plots, facts


PYTHON = {
    "natural": "optax.chain(af.simplex_natural_gradient(model.scores), optax.scale(-{step!r}))",
    "gauss_newton": "optax.chain(af.gauss_newton(model.outputs, model.loss_of_outputs), "
    "optax.scale(-{step!r}))",
    "levenberg_marquardt": "af.levenberg_marquardt(model.outputs, model.loss_of_outputs)",
}


def of_row(weights: np.ndarray) -> tuple[list[Plot], list[Fact]]:
    """Spectrum of the Jacobian diag(a) − aaᵀ on the tangent space, and what bounds its κ."""
    found = softmax_conditioning(np.log(weights))
    spectrum = np.linalg.eigvalsh(np.diag(weights) - np.outer(weights, weights))
    spectrum = np.delete(spectrum, np.argmin(np.abs(spectrum)))  # the direction of all ones
    spectrum[0], spectrum[-1] = np.exp(found.log_min), np.exp(found.log_max)
    kappa, lower, upper, printed = (
        float(np.exp(x))
        for x in (found.log_kappa, found.log_lower, found.log_upper, found.log_printed)
    )
    ordered = np.sort(weights)
    keys = [f"key {i}" for i in range(len(weights))]
    numbers = ("at least", "κ(J)", "at most", "κ(J²)", "printed")
    plots = [
        Plot("The row", Axis(""), Axis("weight a", low=0), [bars(keys, weights, "a", 0)]),
        Plot(
            "Eigenvalues of J between weights",
            Axis("rank"),
            Axis("value", log=True),
            [
                dots(np.arange(1, len(weights) + 1), ordered, "weights", 7, "line-ew"),
                dots(np.arange(1, len(weights)) + 0.5, spectrum, "eigenvalues", 0),
            ],
        ),
        Plot(
            "Condition numbers and their bounds",
            Axis(""),
            Axis("", log=True),
            [bars(numbers, [lower, kappa, upper, kappa**2, printed], "", 2)],
        ),
    ]
    facts = [
        Fact("κ(J)", kappa),
        Fact("bounds by interlacing", [lower, upper]),
        Fact("κ(J²)", kappa**2),
        Fact("(max a / min a)², printed for it", printed),
        Fact("spectrum", spectrum.tolist()),
    ]
    return plots, facts


VIEW = View(
    "conditioning",
    "Conditioning",
    "A gradient passes through the softmax Jacobian J of every attention row; the sparser the row, "
    "the worse its condition number κ. Drag the bars of a row. Below, a student "
    "learns the prompt p of a teacher whose attention is as sharp as you make it.",
    (Row, StudentTeacher, Descent),
    {
        "row": Bars(1e-4, 1.0, (1.0, 0.5, 0.2, 0.1, 0.05, 0.02), log=True),
        "sigma_p": Slider(0.1, 6, step=0.05, label="sigma_p, the teacher's sharpness", default=2.0),
        "near": Slider(0.01, 1, log=True, default=0.1),
        "d": Slider(2, 8, default=5),
        "n": Slider(2, 8, default=6),
        "samples": Slider(5, 60, default=40),
        "seed": Slider(0, 200),
        "optimizer": Choice(tuple(OPTIMIZERS), "natural"),
        "step": Slider(0.01, 2, log=True, default=0.5),
        "steps": Slider(10, 1000, log=True, default=300),
    },
    compute,
)
