"""How fast the logistic flow polarizes: Theorem 3.3 and its proof."""

import dataclasses

import numpy as np

from attnflow.papers.ledger import Finding, identity, inequality
from attnflow.papers.polarization._flows import EARLY, LATE, ensemble
from attnflow.papers.polarization._ledger import LEDGER, close, rerun
from attnflow.papers.polarization._repulsion import START
from attnflow.papers.polarization._states import random_states


def runs():
    return ensemble(EARLY) + ensemble(LATE)


def every(function):
    """The values of `function(run)` over the runs of both horizons, in one row."""
    return np.concatenate([np.ravel(function(run)) for run in runs()])


def late_slope(run, y):
    """dy/d(log t) fitted on the last half of the late horizon."""
    late = run.log_t > LATE / 2
    return np.polyfit(run.log_t[late], y[late], 1)[0]


@LEDGER.claim(
    "theorem-3.3a",
    where="Theorem 3.3(a)",
    statement="The loss tends to 0.",
    hypotheses=START,
    kind="limit",
    recorded="holds",
    broken={"limit": 1e-3},
)
def theorem_3_3a(limit: float = 0.0) -> Finding:
    falls = all((np.diff(run.loss) < 0).all() for run in ensemble(EARLY))
    rest = float(max(abs(run.loss[-1] - limit) for run in ensemble(EARLY)))
    return Finding("holds" if falls and rest < 1e-10 else "refuted", rest, len(ensemble(EARLY)))


@LEDGER.claim(
    "loss-rate",
    where="Ours, beside Theorem 3.3(a)",
    statement="t · loss → 1/|β*|².",
    hypotheses=START,
    kind="limit",
    recorded="holds",
    broken={"constant": lambda norm2: 1.0},
)
def loss_rate(constant=lambda norm2: 1 / norm2) -> Finding:
    at = [(run, int(np.searchsorted(run.log_t, 600))) for run in ensemble(LATE)]
    log_measured = [np.log(run.loss[k]) + run.log_t[k] for run, k in at]
    return close(np.exp(log_measured), [constant(run.norm2) for run, _ in at], tolerance=1e-6)


@LEDGER.claim(
    "ratio-evolution",
    where="Proof of Theorem 3.3, evolution of the ratios",
    statement="q_i = s_i/s_0 obeys q_i' = −γ s_i [q_i (u_0 − u_i) + (1 − q_i)(u_0 − ⟨u, s⟩)].",
    kind="identity",
    recorded="holds",
    broken={"weight": 0.0},
)
def ratio_evolution(weight: float = 1.0) -> Finding:
    x = random_states()["logistic"]
    q = x.weights[:, 1:] / x.weights[:, :1]
    top = x.u[:, :1]
    bracket = q * (top - x.u[:, 1:]) + weight * (1 - q) * (top - x.margin)
    measured = q * (x.scores_rate[:, 1:] - x.scores_rate[:, :1])
    return identity(measured, -x.gamma * x.weights[:, 1:] * bracket)


@LEDGER.claim(
    "theorem-3.3b",
    where="Theorem 3.3(b)",
    statement="s_j/s_0 ≤ 1/(1 + (δ/p) ∫γ dt) for j ≠ 0, δ the least gap of u(0). The proof sets "
    "|β*| = 1; it holds for every |β*|.",
    hypotheses=START,
    kind="inequality",
    recorded="holds",
    broken={"factor": 1.5},
)
def theorem_3_3b(factor: float = 1.0) -> Finding:
    def slack(run):
        delta = -np.diff(run.u[0]).max()
        bound = 1 / (1 + factor * delta / run.p * run.tau[1:, None])
        return bound / run.ratios[1:] - 1

    return inequality(every(slack))


@LEDGER.claim(
    "equation-17",
    where="Proof of Theorem 3.3, (17)–(18)",
    statement="u_0(t) ≥ log(|β*|² t/(2p) + c) with c = (u_0(0) + e^u_0(0))/2, and "
    "∫γ dt ≥ (u_0(t) − u_0(0))/|β*|² (printed for |β*| = 1).",
    hypotheses=START,
    kind="inequality",
    recorded="holds",
    broken={"factor": 4.0},
)
def equation_17(factor: float = 1.0) -> Finding:
    slack = []
    for run in ensemble(EARLY):
        top, t = run.u[1:, 0], np.expm1(run.log_t[1:])
        shift = (run.u[0, 0] + np.exp(run.u[0, 0])) / 2
        floor = np.maximum(factor * run.norm2 * t / (2 * run.p) + shift, 1e-300)
        slack += [top - np.log(floor), run.tau[1:] - (top - run.u[0, 0]) / run.norm2]
    return inequality(np.concatenate(slack))


@LEDGER.claim(
    "proof-margin",
    where="Proof of Theorem 3.3(a), last display",
    statement="⟨β*, β⟩ ≥ u_0/p along the flow.",
    hypotheses=START,
    kind="inequality",
    recorded="refuted",
    broken={"with_start": True},
)
def proof_margin(with_start: bool = False) -> Finding:
    def slack(run):
        floor = run.u[:, 0] / run.p + (min(0.0, run.u[0, -1]) if with_start else 0.0)
        return (run.u * run.s).sum(axis=1) - floor

    finding = inequality(
        every(slack),
        counterexample=lambda _: {
            "projections": [1.0, -5.0],
            "⟨β*, β⟩ at t = 0": -2.0,
            "u_0/p at t = 0": 0.5,
            "run": rerun(
                "ValueSoftmax(projections=(1.0, -5.0))",
                "t1=1.0, points=2",
                "(f.weights * f.projections).sum('token').values, f.projections.values[:, 0] / 2",
            ),
        },
    )
    if finding.good:
        return finding
    return dataclasses.replace(
        finding, correction="⟨β*, β⟩ ≥ u_0/p + min(0, u_(p−1)(0)): enough for the theorem"
    )


@LEDGER.claim(
    "theorem-3.3c",
    where="Theorem 3.3(c)",
    statement="∫γ dt = Θ(log t), and s tends to the one-hot vector e_0.",
    hypotheses=START + "; the power of log t fitted on log t from 5·10³ to 10⁴.",
    kind="limit",
    recorded="holds",
    broken={"power": 2.0},
)
def theorem_3_3c(power: float = 1.0) -> Finding:
    fitted = []
    for run in ensemble(LATE):
        late = run.log_t > LATE / 2
        fitted.append(np.polyfit(np.log(run.log_t[late]), np.log(run.tau[late]), 1)[0])
    rest = max(1 - run.s[-1, 0] for run in ensemble(LATE))
    finding = close(fitted, power, tolerance=0.01)
    return finding if rest < 1e-5 else dataclasses.replace(finding, verdict="refuted")


@LEDGER.claim(
    "polarization-rate",
    where="Ours, beside Theorem 3.3(c)",
    statement="∫γ dt / log t → 1/|β*|².",
    hypotheses=START,
    kind="limit",
    recorded="holds",
    broken={"constant": lambda norm2: 1 / np.sqrt(norm2)},
)
def polarization_rate(constant=lambda norm2: 1 / norm2) -> Finding:
    slopes = [late_slope(run, run.tau) for run in ensemble(LATE)]
    return close(slopes, [constant(run.norm2) for run in ensemble(LATE)], tolerance=1e-6)
