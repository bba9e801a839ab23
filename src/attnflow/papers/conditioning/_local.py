"""Linearized dynamics around a global minimum: appendices G.1 and G.2."""

import numpy as np

from attnflow.instruments import (
    local_factors,
)
from attnflow.papers.conditioning._ledger import (
    LEDGER,
    Problem,
    gaussian_problem,
    rerun,
    softmax,
    softmax_jacobian,
    vanishing,
)
from attnflow.papers.ledger import Finding, corrected, identity, inequality

TINY = 1e-30


def complex_derivative(function, x):
    """The Jacobian of an analytic function, exactly, one complex step a coordinate."""
    columns = [function(x + 1j * TINY * e).imag / TINY for e in np.eye(x.size)]
    return np.stack(columns, axis=-1)


def local_operator(problem: Problem) -> np.ndarray:
    """The rows G with H_p = GᵀG at the teacher, square loss."""
    weights = problem.weights(problem.teacher)
    return local_factors(problem.keys, weights, problem.values, np.ones(problem.samples))


def random_problems(seed: int, count: int = 20, *, mixed: bool = True) -> list[Problem]:
    rng = np.random.default_rng(seed)
    return [gaussian_problem(rng, 3 + k % 4, 3 + k % 3, 3, mixed=mixed) for k in range(count)]


@LEDGER.claim(
    "equation-36",
    where="Equation (36)",
    statement="A GD step changes the attention rows by subtracting "
    "(η/N) Σⱼ KᵢKⱼᵀ J(aⱼ) ∇ℓ̃ⱼ(aⱼ) from φ(Kᵢp).",
    kind="identity",
    recorded="holds_corrected",
    broken={"scores": lambda problem, p: problem.keys @ (2 * p)},
)
def equation_36(scores=lambda problem, p: problem.keys @ p) -> Finding:
    rng, eta, rows = np.random.default_rng(17), 0.1, []
    for problem in random_problems(17):
        p = rng.normal(size=3)
        slopes = problem.residuals(p)[:, None] * problem.values
        pulls = np.einsum("ijk,ik->ij", softmax_jacobian(problem.weights(p)), slopes)
        shift = eta / problem.samples * problem.keys @ np.einsum("ijd,ij->d", problem.keys, pulls)
        truth = problem.weights(p - eta * problem.gradient(p))
        rows.append(
            [
                np.abs(problem.weights(p) - shift - truth).max(),
                np.abs(softmax(scores(problem, p) - shift) - truth).max(),
            ]
        )
    printed, mended = np.array(rows).T

    def off_the_simplex(_):
        return {
            "inputs": [[[0.0], [1.0]]],
            "v": [1.0],
            "p": [0.0],
            "labels": [0.0],
            "step": 1.0,
            "printed_sum_of_weights": 0.875,
            "run": rerun("X = np.array([0.0, 1.0]); g = 0.5 * 0.25; print((0.5 - X * g).sum())"),
        }

    return corrected(
        inequality(-printed, tolerance=1e-9, counterexample=off_the_simplex),
        inequality(-mended, tolerance=1e-12),
        "It is subtracted from the scores: φ(Kᵢp_{t+1}) = φ(Kᵢp_t − …). Equation (37) is right.",
    )


def printed_product_rule(x, value, derivative):
    """J(x)Df − x fᵀ + diag(f) − (xᵀf) I."""
    jacobian = softmax_jacobian(x)
    return (
        jacobian @ derivative - np.outer(x, value) + np.diag(value) - (x @ value) * np.eye(x.size)
    )


@LEDGER.claim(
    "equation-40",
    where="Equation (40)",
    statement="d(J(x)f(x))/dx = J(x)Df − x fᵀ + diag(f) − (xᵀf) I.",
    hypotheses="Any x; f(x) = sin(Ax) with a random A.",
    kind="identity",
    recorded="holds",
    broken={"rule": lambda x, f, df: softmax_jacobian(x) @ df + np.diag(f) - np.outer(x, f)},
)
def equation_40(rule=printed_product_rule) -> Finding:
    rng, pairs = np.random.default_rng(18), []
    for _ in range(20):
        x, A = rng.normal(size=4), rng.normal(size=(4, 4))
        product = complex_derivative(lambda z, A=A: z * np.sin(A @ z) - z * (z @ np.sin(A @ z)), x)
        value, derivative = np.sin(A @ x), np.cos(A @ x)[:, None] * A
        pairs.append((rule(x, value, derivative), product))
    measured, claimed = np.swapaxes(pairs, 0, 1)
    return identity(measured, claimed)


def attention_field(problem: Problem, a):
    """V(a) with Vᵢ = J(aᵢ) Σⱼ KᵢKⱼᵀ J(aⱼ) ∇ℓ̃ⱼ(aⱼ), rows stacked in one vector."""
    a = a.reshape(problem.keys.shape[:2])
    slope = (np.sum(a * problem.values, axis=1) - problem.labels)[:, None] * problem.values
    jacobians = softmax_jacobian(a)
    pulled = np.einsum("ijd,ijk,ik->d", problem.keys, jacobians, slope)
    return np.einsum("ijk,ikd,d->ij", jacobians, problem.keys, pulled).ravel()


def block_factors(problem: Problem):
    """B (Nn × d) and C (d × Nn) of appendix G.2 at the teacher."""
    jacobians = softmax_jacobian(problem.weights(problem.teacher))
    u = problem.values
    B = jacobians @ problem.keys
    C = np.swapaxes(B, 1, 2) @ (u[:, :, None] * u[:, None, :])
    return B.reshape(-1, problem.keys.shape[2]), np.concatenate(C, axis=1)


@LEDGER.claim(
    "equation-43",
    where="Equations (38) to (43)",
    statement="At a global minimum the attention rows linearize with the blocks J(aᵢ)KᵢKₖᵀJ(aₖ)Hₖ.",
    kind="identity",
    recorded="holds",
    broken={"blocks": lambda B, C: C.T @ B.T},
)
def equation_43(blocks=lambda B, C: B @ C) -> Finding:
    errors = []
    for problem in random_problems(19, 8):
        a = problem.weights(problem.teacher).ravel()
        exact = complex_derivative(lambda z, x=problem: attention_field(x, z), a)
        errors.append(np.abs(blocks(*block_factors(problem)) - exact).max() / np.abs(exact).max())
    return vanishing(errors)


@LEDGER.claim(
    "spectral-equivalence",
    where="Appendix G.2, equation (44)",
    statement="The non-symmetric Jacobian BC of the attention rows has the non-zero eigenvalues of "
    "the symmetric H_p = CB ⪰ 0: they are real and not negative.",
    kind="identity",
    recorded="holds",
    broken={"operator": lambda B, C: B.T @ B},
)
def spectral_equivalence(operator=lambda B, C: C @ B) -> Finding:
    errors = []
    for problem in random_problems(20):
        B, C = block_factors(problem)
        symmetric = np.linalg.eigvalsh(operator(B, C))
        scale = symmetric[-1]
        whole = np.linalg.eigvals(B @ C)
        largest = np.sort(whole.real)[-len(symmetric) :]
        rest = np.sort(np.abs(whole))[: -len(symmetric)]
        errors += [
            np.abs(largest - symmetric).max() / scale,
            np.abs(whole.imag).max() / scale,
            rest.max() / scale,
            max(-symmetric[0], 0) / scale,
            np.abs(C @ B - B.T @ C.T).max() / scale,
        ]
    return vanishing(errors, tolerance=1e-8)


@LEDGER.claim(
    "parameter-hessian",
    where="Section 3.2, parameter-space linearization",
    statement="Near p* the error of GD obeys e ← (I − (η/N)H_p)e with "
    "H_p = Σ KᵢᵀJ(aᵢ)HᵢJ(aᵢ)Kᵢ: H_p/N is the Hessian of the loss at p*.",
    kind="identity",
    recorded="holds",
    broken={"power": 0},
)
def parameter_hessian(power: int = 1) -> Finding:
    errors = []
    for problem in random_problems(21):
        G = local_operator(problem)
        exact = complex_derivative(problem.gradient, problem.teacher)
        claimed = G.T @ G / problem.samples**power
        errors.append(np.abs(claimed - exact).max() / np.abs(exact).max())
    return vanishing(errors)
