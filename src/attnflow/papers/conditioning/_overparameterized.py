"""Linear convergence in the overparameterized case: theorem 1 and lemmas 4 and 5."""

from typing import Any, NamedTuple

import numpy as np

from attnflow.papers.conditioning._ledger import (
    LEDGER,
    Problem,
    gaussian_problem,
    pair_problem,
    rerun,
)
from attnflow.papers.ledger import Finding, corrected, identity, inequality


def spectral_bound(problem: Problem) -> float:
    """C_σ, the largest singular value of any input."""
    return float(np.linalg.norm(problem.inputs, 2, axis=(1, 2)).max())


def printed_smoothness(problem: Problem, start, *, power: int = 3) -> float:
    """L' = σ²(W) C³ ‖v‖ (2C‖v‖ + 3√(2(ℒ₀ − ℒ*)))."""
    C, v = spectral_bound(problem), np.linalg.norm(problem.value)
    sigma = np.linalg.norm(problem.mixing, 2)
    return float(sigma**2 * C**power * v * (2 * C * v + 3 * np.sqrt(2 * problem.loss(start))))


class Margin(NamedTuple):
    """Lemma 4's quantities at a start; `slack` is σ_min(F(p₀)) minus what the lemma asks for."""

    smoothness: float
    eta: Any
    mu: Any
    travel: Any
    gamma: Any
    sigma: float
    slack: Any


def margin(problem: Problem, start, c1, c2, *, mended: bool = False, spread: Any = None) -> Margin:
    """As printed, or `mended`: C_p as (23) sums it, and √(μ/(mN)) for √(μ/2m).

    spread: the divisor under that root, if another one is to be tried.
    """
    samples, C = problem.samples, spectral_bound(problem)
    sigma_w, v = np.linalg.norm(problem.mixing, 2), np.linalg.norm(problem.value)
    smooth, distance = printed_smoothness(problem, start), np.sqrt(2 * problem.loss(start))
    mu, eta = c1 / smooth, c2 / smooth
    decay = mu * eta if mended else c1 * c2
    shrink = decay / (1 + np.sqrt(1 - decay))  # 1 − √(1 − decay), without cancellation
    scale = 1.0 if mended else 1 / np.sqrt(samples)
    travel = scale * distance * sigma_w * C**2 * v * eta / shrink
    gamma = np.minimum(2, 3 * C * sigma_w * travel) * C**2 * sigma_w * v / np.sqrt(samples)
    sigma = float(np.linalg.svd(problem.factors(start), compute_uv=False)[samples - 1])
    divisor = spread or (samples if mended else 2)
    return Margin(smooth, eta, mu, travel, gamma, sigma, sigma - gamma - np.sqrt(mu / divisor))


C1 = np.geomspace(1e-12, 1 - 1e-6, 300)[:, None]
C2 = np.minimum(2, 1 / C1) * np.linspace(0.01, 0.9999, 20)


def best_slack(problem: Problem, start) -> float:
    """The largest printed slack over c₁ and c₂, relative to σ_min(F(p₀))."""
    found = margin(problem, start, C1, C2)
    return float(np.max(found.slack) / found.sigma)


def five_copies(_) -> dict:
    problem, p = pair_problem(1.0, 1.0, 1.0, samples=5), np.zeros(5)
    gradient = float(np.linalg.norm(problem.gradient(p)))
    return {
        "samples": "five times the tokens e₁ and −e₁ of ℝ⁵",
        "v": "e₁",
        "p": 0.0,
        "label": float(problem.labels[0]),
        "gradient": gradient,
        "printed_bound": gradient_bound(problem, p) / np.sqrt(5),
        "run": rerun(
            "r = np.tanh(1); C2 = np.linalg.norm([[1], [-1]], 2)**2; print(r, np.sqrt(r*r/5) * C2)"
        ),
    }


def gradient_bound(problem: Problem, p) -> float:
    """√(2(ℒ − ℒ*)) C² σ(W) ‖v‖."""
    size = np.linalg.norm(problem.mixing, 2) * np.linalg.norm(problem.value)
    return float(np.sqrt(2 * problem.loss(p)) * spectral_bound(problem) ** 2 * size)


def scattered(seed: int, count: int = 30):
    """Random problems of all sizes, and points to look at them."""
    rng = np.random.default_rng(seed)
    found = []
    for k in range(count):
        samples, n = 1 + k % 4, 2 + k % 5
        problem = gaussian_problem(rng, samples, n, samples + k % 3, mixed=bool(k % 2))
        scale = 10 ** rng.uniform(-1.5, 1)
        inputs = scale * problem.inputs
        problem = Problem(inputs, problem.mixing, problem.value, problem.teacher / scale)
        found.append((problem, rng.normal(size=inputs.shape[2]) / scale))
    pairs = [pair_problem(x, 1.0, 1.0, samples=N) for x in (0.05, 1.0, 4.0) for N in (1, 2, 5, 9)]
    return found + [(pair, np.zeros(pair.samples)) for pair in pairs]


@LEDGER.claim(
    "equation-22",
    where="Proof of Lemma 4, equation (22)",
    statement="‖∇ℒ‖ ≤ √(2(ℒ − ℒ*)/(mN)) L C_σ² σ_max(W) ‖v‖.",
    kind="inequality",
    recorded="holds_corrected",
    broken={"factor": 0.49},
)
def equation_22(factor: float = 0.5) -> Finding:
    bounds = np.array([gradient_bound(problem, p) for problem, p in scattered(3)])
    sizes = np.array([np.linalg.norm(problem.gradient(p)) for problem, p in scattered(3)])
    samples = np.array([problem.samples for problem, _ in scattered(3)])
    return corrected(
        inequality(1 - sizes * np.sqrt(samples) / bounds, counterexample=five_copies),
        inequality(factor - sizes / bounds, tolerance=1e-12),
        "Without the 1/√N: the mean of |gᵢ| is bounded by the root of their mean square. Since "
        "λ_max(J) ≤ ½ the bound may be halved, and is then attained.",
    )


def small_inputs(_) -> dict:
    problem, p = pair_problem(0.05, 1.0, 0.0), np.zeros(1)
    return {
        "inputs": [[[0.05], [-0.05]]],
        "v": [1.0],
        "p": [0.0],
        "labels": [0.0],
        "curvature": float(problem.hessian(p)[0, 0]),
        "printed_bound": printed_smoothness(problem, p, power=4),
        "run": rerun("C = np.sqrt(2) * 0.05; print(0.05**4, C**4 * 2 * C)"),
    }


@LEDGER.claim(
    "equation-30",
    where="Proof of Lemma 4, equation (30)",
    statement="Where the loss is at most ℒ₀ the gradient is Lipschitz with the constant "
    "C_σ⁴ σ²(W) ‖v‖ L (2C_σ‖v‖ + 3√(2(ℒ₀ − ℒ*)/m)) = L'.",
    kind="inequality",
    recorded="holds_corrected",
    broken={"share": 0.05},
)
def equation_30(share: float = 0.5) -> Finding:
    cases = [*scattered(4), (pair_problem(0.05, 1.0, 0.0), np.zeros(1))]
    curvature = np.array([np.linalg.norm(problem.hessian(p), 2) for problem, p in cases])
    third = np.array([printed_smoothness(problem, p) for problem, p in cases])
    fourth = np.array([printed_smoothness(problem, p, power=4) for problem, p in cases])
    return corrected(
        inequality(1 - curvature / fourth, counterexample=small_inputs),
        inequality(share - curvature / third),
        "L' has C_σ³, as Lemma 4 defines it. Half of it is enough: ‖J‖ ≤ ½ and ‖∂J‖ ≤ 3/2.",
    )


@LEDGER.claim(
    "equation-32",
    where="Proof of Lemma 4, equation (32)",
    statement="A step η < 2/L' gives ℒ₁ ≤ ℒ₀ − (η/2)‖∇ℒ₀‖².",
    hypotheses="An L'-smooth loss allows this only up to η = 1/L', so the printed argument has a "
    "gap; the statement is saved because L'/2 is a smoothness constant too.",
    kind="inequality",
    recorded="holds",
    broken={"reach": 20.0},
)
def equation_32(reach: float = 2.0) -> Finding:
    slack = []
    for problem, p in scattered(5):
        gradient, smooth = problem.gradient(p), printed_smoothness(problem, p)
        for eta in reach * np.array([0.3, 0.6, 1.0]) / smooth:
            fall = problem.loss(p) - problem.loss(p - eta * gradient)
            slack.append(fall / (eta / 2 * np.sum(gradient**2)) - 1)
    return inequality(slack)


def mended_travel(smooth, c1, c2):
    """η / (1 − √(1 − ημ)) with ημ = c₁c₂/L'²."""
    return c2 / (smooth * (1 - np.sqrt(1 - c1 * c2 / smooth**2)))


@LEDGER.claim(
    "lemma-4",
    where="Lemma 4, equation (23)",
    statement="GD moves p by at most C_p, the sum of the bounds of its steps: the last factor of "
    "C_p is c₂/(L'(1 − √(1 − c₁c₂))).",
    hypotheses="ημ = c₁c₂/L'² by the lemma's own definitions of μ and η, and must be below 1. The "
    "1/√N in front is that of equation-22.",
    kind="identity",
    recorded="holds_corrected",
    broken={"formula": lambda smooth, c1, c2: mended_travel(smooth, c1, c2 / 2)},
)
def lemma_4(formula=mended_travel) -> Finding:
    rng = np.random.default_rng(6)
    smooth, c1 = rng.uniform(1.5, 8.0, 40), rng.uniform(0.3, 1, 40)
    c2 = rng.uniform(0.5, 1, 40) * np.minimum(2, 1 / c1)
    smooth[0], c1[0], c2[0] = 2.0, 0.75, 1.0
    eta, mu = c2 / smooth, c1 / smooth
    terms = (1 - eta * mu)[:, None] ** (np.arange(20_000) / 2)
    total = eta * terms.sum(axis=1)
    printed = c2 / (smooth * (1 - np.sqrt(1 - c1 * c2)))

    def shown(_):
        return {
            "L'": 2.0,
            "c1": 0.75,
            "c2": 1.0,
            "sum_of_steps": float(total[0]),
            "printed": float(printed[0]),
            "run": rerun(
                "eta, mu = 1/2, 0.75/2; print(eta*sum((1-eta*mu)**(s/2) for s in range(999)))"
            ),
        }

    return corrected(
        inequality(-np.abs(printed / total - 1), tolerance=1e-9, counterexample=shown),
        identity(formula(smooth, c1, c2) / total, np.ones(40)),
        "The factor is c₂/(L'(1 − √(1 − c₁c₂/L'²))), about 2L'/c₁ for large L'.",
    )
