"""How fast the error shrinks near a global minimum: corollary 1."""

import numpy as np

from attnflow.papers.conditioning._ledger import LEDGER, Problem, rerun, vanishing
from attnflow.papers.conditioning._local import local_operator, random_problems
from attnflow.papers.ledger import Finding, corrected, inequality


def local_decay(problem: Problem, eta: float, steps: int):
    """GD from very near p*: the factor left of the error along the slowest eigenvector, that of
    its length, and the cosine between the first error and that eigenvector."""
    slow = np.linalg.eigh(local_operator(problem).T @ local_operator(problem))[1][:, 0]
    error = 1e-7 * np.random.default_rng(22).normal(size=slow.size)
    *_, last = problem.descent(problem.teacher + error, eta, steps)
    left, size = last - problem.teacher, np.linalg.norm(error)
    return left @ slow / (error @ slow), np.linalg.norm(left) / size, error @ slow / size


@LEDGER.claim(
    "corollary-1",
    where="Corollary 1, equations (15), (16) and (47)",
    statement="Near p* a step shrinks the error along the slowest eigenvector of H_p by 1 − ηλ_min "
    "for η up to 2/λ_max; with η = 1/λ_max, |e_t|² ≥ (1 − 1/κ)^(2t) |e_0|² cos²θ₀.",
    hypotheses="λ are eigenvalues of H_p, the sum over samples; GD on the mean loss, started 1e-7 "
    "from p*.",
    kind="identity",
    recorded="holds_corrected",
    broken={"power": 0},
)
def corollary_1(power: int = 1) -> Finding:
    steps, printed, mended, lengths = 40, [], [], []
    for problem in random_problems(23, 10):
        low, high = np.linalg.eigvalsh(local_operator(problem).T @ local_operator(problem))[[0, -1]]
        measured, _, _ = local_decay(problem, 1 / high, steps)
        printed.append(measured / (1 - low / high) ** steps - 1)
        eta = problem.samples / high
        measured, length, cosine = local_decay(problem, eta, steps)
        mended.append(measured / (1 - eta * low / problem.samples**power) ** steps - 1)
        lengths.append(length / abs((1 - low / high) ** steps * cosine) - 1)

    def half_a_step(_):
        return {
            "samples": "two copies of the tokens 1 and −1",
            "v": 1.0,
            "teacher": 0.0,
            "lambda_of_H_p": 2.0,
            "step": 0.5,
            "printed_factor": 0.0,
            "factor": 0.5,
            "run": rerun("p = 1e-6; print((p - 0.5 * np.tanh(p) / np.cosh(p)**2) / p)"),
        }

    found = vanishing(mended, tolerance=1e-4)
    if not inequality(lengths, tolerance=1e-4).good:
        found = Finding("refuted", min(lengths), len(lengths))
    return corrected(
        inequality(-np.abs(printed), tolerance=1e-4, counterexample=half_a_step),
        found,
        "e_{t+1} = (I − (η/N)H_p)e_t, so the factor is 1 − ηλ_min/N, stability needs η ≤ 2N/λ_max "
        "and the rate 1 − 1/κ belongs to η = N/λ_max.",
    )
