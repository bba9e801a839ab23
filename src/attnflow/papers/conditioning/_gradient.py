"""The softmax Jacobian, the gradient and the Polyak–Łojasiewicz inequality: sections 2 and 3.1."""

import functools

import jax
import numpy as np
from scipy.special import expit

from attnflow.instruments import softmax_conditioning
from attnflow.models.prompt import Prompt
from attnflow.papers.conditioning._ledger import (
    LEDGER,
    Problem,
    gaussian_problem,
    pair_problem,
    rerun_gradient,
    softmax,
    softmax_jacobian,
)
from attnflow.papers.ledger import Finding, corrected, identity, inequality


@LEDGER.claim(
    "lemma-1",
    where="Lemma 1, equation (7)",
    statement="J(z) = diag(z) − zzᵀ is positive semidefinite, kills constants, and its other "
    "eigenvalues interlace the sorted weights, z₁ ≤ λ₂ ≤ z₂ ≤ … ≤ λₙ ≤ zₙ; sharper than printed, "
    "λₙ ≤ ½.",
    hypotheses="z inside the simplex. Interlacing at every place and the ½ are ours; the paper "
    "states the two ends.",
    kind="inequality",
    recorded="holds",
    broken={"largest": 0.25},
)
def lemma_1(largest: float = 0.5) -> Finding:
    rng = np.random.default_rng(0)
    slack = [largest - 0.5]  # z = (½, ½) has λ₂ = ½
    for n in range(2, 13):
        z = softmax(rng.normal(size=(40, n)) * rng.uniform(0, 3, size=(40, 1)))
        eigenvalues, ordered = np.linalg.eigvalsh(softmax_jacobian(z)), np.sort(z, axis=1)
        tangent = eigenvalues[:, 1:]
        slack += [
            -np.abs(eigenvalues[:, 0]).max(),
            -np.abs(softmax_jacobian(z).sum(axis=2)).max(),
            (tangent - ordered[:, :-1]).min(),
            (ordered[:, 1:] - tangent).min(),
            largest - tangent.max(),
        ]
        scores = np.sort(rng.normal(scale=60, size=(40, n)), axis=1)
        ends = softmax_conditioning(scores)
        logs = scores - scores[:, -1:] - np.log(np.exp(scores - scores[:, -1:]).sum(1))[:, None]
        slack += [(ends.log_min - logs[:, 0]).min(), (logs[:, -1] - ends.log_max).min()]
    return inequality(slack, tolerance=1e-14)


@functools.cache
def random_gradients(objective: str, cases: int = 40, seed: int = 1):
    """Random problems with a random W, (N, n, d) = (5, 4, 3), the loss slopes and the autodiff
    gradients at p, which stands in for the teacher because labels are random here."""
    rng = np.random.default_rng(seed)
    inputs, mixing = rng.normal(size=(cases, 5, 4, 3)), rng.normal(size=(cases, 3, 3))
    value, p = rng.normal(size=(cases, 3)), rng.normal(size=(cases, 3))
    labels = rng.normal(size=(cases, 5))
    labels = np.sign(labels) if objective == "logistic" else labels
    with jax.enable_x64(True):

        def look(inputs, labels, mixing, value, p):
            blocks = {"p": p, "v": value, "W": mixing}
            model = Prompt(inputs, labels, blocks, blocks, ("p",), objective)
            return jax.grad(model.loss)({"p": p})["p"], model.outputs({"p": p})

        seen = jax.jit(jax.vmap(look))(inputs, labels, mixing, value, p)
        gradients, outputs = map(np.asarray, seen)
    slopes = outputs - labels if objective == "square" else -labels * expit(-labels * outputs)
    problems = [Problem(*blocks) for blocks in zip(inputs, mixing, value, p, strict=True)]
    return problems, slopes, gradients


def printed_gradient(problem: Problem, p, slopes):
    """(1/N) Σ KᵢᵀJ(aᵢ)Xᵢv ℓ'ᵢ."""
    jacobians = softmax_jacobian(problem.weights(p))
    inner = np.einsum("ijk,ik,i->ij", jacobians, problem.values, slopes)
    return np.einsum("ijd,ij->d", problem.keys, inner) / problem.samples


@LEDGER.claim(
    "equation-8",
    where="Equation (8)",
    statement="The gradient in p is (1/N) Σ KᵢᵀJ(φ(Kᵢp))Xᵢv ℓ'(f(Xᵢ), yᵢ).",
    hypotheses="Square and logistic loss, W random.",
    kind="identity",
    recorded="holds",
    broken={"formula": lambda *case: case[0].samples * printed_gradient(*case)},
)
def equation_8(formula=printed_gradient) -> Finding:
    pairs = []
    for objective in ("square", "logistic"):
        problems, slopes, gradients = random_gradients(objective)
        for problem, slope, gradient in zip(problems, slopes, gradients, strict=True):
            pairs.append((formula(problem, problem.teacher, slope), gradient))
    measured, claimed = np.swapaxes(pairs, 0, 1)
    return identity(measured, claimed)


def uphill(_) -> dict:
    """One sample with the tokens 0 and 1, p = 0, label 0: a printed step raises the loss."""
    tokens = [[[0.0], [1.0]]]
    return {
        "inputs": tokens,
        "v": [1.0],
        "p": [0.0],
        "labels": [0.0],
        "step": 1.0,
        "loss_before": 0.125,
        "loss_after_printed_step": float(expit(0.125) ** 2 / 2),
        "run": rerun_gradient(
            tokens, [0.0], [1.0], [0.0], "m.loss(q), m.loss({'p': b['p'] + 1.0 * g})"
        ),
    }


@LEDGER.claim(
    "equation-10",
    where="Equation (10)",
    statement="With F of (9) and g the loss slopes, ∇ℒ = Fᵀg and a step is p + ηFᵀg.",
    kind="sign",
    recorded="holds_corrected",
    broken={"mended": lambda p, eta, pull: p - 2 * eta * pull},
)
def equation_10(mended=lambda p, eta, pull: p - eta * pull) -> Finding:
    problems, slopes, gradients = random_gradients("square")
    p = np.array([problem.teacher for problem in problems])
    pull = np.array([x.factors(x.teacher).T @ g for x, g in zip(problems, slopes, strict=True)])
    eta = 0.1
    step = p - eta * gradients
    wrong = np.abs(p + eta * pull - step).max(axis=1)
    printed = inequality(-wrong, tolerance=1e-9, counterexample=uphill)
    return corrected(printed, identity(mended(p, eta, pull), step), "The step is p − ηFᵀg.")


LOSSES = {
    "square": (lambda r: r**2 / 2, lambda r: r),
    "square + log cosh": (lambda r: r**2 / 2 + np.log(np.cosh(r)), lambda r: r + np.tanh(r)),
}
"""ℓ(r) and ℓ'(r) of residuals r, both 1-strongly convex with minimum 0."""


def polyak_excess(problem: Problem, p, constant: float, loss: str) -> float:
    """½‖∇ℒ‖² / (constant · σ_min²(F)(ℒ − ℒ*)) − 1."""
    value, slope = LOSSES[loss]
    r, rows = problem.residuals(p), problem.factors(p)
    smallest = np.linalg.svd(rows, compute_uv=False)[problem.samples - 1]
    return 0.5 * np.sum((rows.T @ slope(r)) ** 2) / (constant * smallest**2 * value(r).mean()) - 1


@LEDGER.claim(
    "lemma-2",
    where="Lemma 2, equation (11)",
    statement="½‖∇ℒ‖² ≥ 2m σ_min²(F)(ℒ − ℒ*) at every p.",
    hypotheses="d ≥ N; σ_min(F) is the N-th singular value. m = 1.",
    kind="inequality",
    recorded="holds_corrected",
    broken={"constant": lambda samples: 2 * samples},
)
def lemma_2(constant=lambda samples: samples) -> Finding:
    rng = np.random.default_rng(2)
    cases = [
        (gaussian_problem(rng, samples, 4, 6, mixed=True), rng.normal(size=6))
        for samples in (1, 1, 2, 3, 4, 6) * 5
    ]
    pair = pair_problem(1.0, 1.0, 1.0)
    cases.append((pair, np.zeros(1)))

    def excess(factor):
        return [polyak_excess(x, p, factor(x.samples), loss) for x, p in cases for loss in LOSSES]

    def one_sample(_):
        p, y = np.zeros(1), float(pair.labels[0])
        return {
            "inputs": [[[1.0], [-1.0]]],
            "v": [1.0],
            "p": [0.0],
            "labels": [y],
            "left": float(0.5 * np.sum(pair.gradient(p) ** 2)),
            "right": float(2 * np.sum(pair.factors(p) ** 2) * pair.loss(p)),
            "run": rerun_gradient(
                [[[1.0], [-1.0]]],
                [y],
                [1.0],
                [0.0],
                "g @ g / 2, 2 * m.loss(q) * (g / (m.outputs(q) - m.labels))**2",
            ),
        }

    return corrected(
        inequality(excess(lambda _: 2), tolerance=1e-12, counterexample=one_sample),
        inequality(excess(constant), tolerance=1e-12),
        "The constant is mN: smaller than printed for N = 1 (where 2m fails at every p with a "
        "square loss), larger for N > 2, and attained.",
    )
