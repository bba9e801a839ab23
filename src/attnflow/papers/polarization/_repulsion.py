"""Order and repulsion of the coordinates: Theorem 3.2, its proof, and what it does not say."""

import dataclasses

import numpy as np

from attnflow.papers.ledger import Finding, corrected, identity, inequality
from attnflow.papers.polarization._equations import flat
from attnflow.papers.polarization._flows import EARLY, LATE, SHOWN, ensemble
from attnflow.papers.polarization._ledger import LEDGER, close, rerun
from attnflow.papers.polarization._states import random_states

START = "a(0) = 0 and u_0(0) > u_1(0) > … (Assumption 3.1)"


def pairs(p: int):
    """All i < j."""
    return np.triu_indices(p, 1)


@LEDGER.claim(
    "theorem-3.2a",
    where="Theorem 3.2(a)",
    statement="The flow keeps u_0 > u_1 > … and, for t > 0, s_0 > s_1 > ….",
    hypotheses=START,
    kind="inequality",
    recorded="holds",
    broken={"first_score": -1.0},
)
def theorem_3_2a(first_score: float = 0.0) -> Finding:
    runs = ensemble(EARLY, first_score) + (ensemble(LATE) if first_score == 0 else [])
    gaps = [-np.diff(x[1:], axis=1).ravel() for run in runs for x in (run.u, run.a)]
    return inequality(np.concatenate(gaps))


@LEDGER.claim(
    "theorem-3.2b",
    where="Theorem 3.2(b)",
    statement="u_i − u_j grows strictly with time for every i ≠ j.",
    hypotheses=START,
    kind="inequality",
    recorded="holds_corrected",
    broken={"mended_order": -1},
)
def theorem_3_2b(mended_order: int = 1) -> Finding:
    def steps(run):
        i, j = pairs(run.p)
        return np.diff(run.u[:, i] - run.u[:, j], axis=0).ravel()

    growth = np.concatenate([steps(run) for run in ensemble(EARLY)])
    shown = {
        "i": 1,
        "j": 0,
        "projections": [0.3, 0.1],
        "run": rerun(
            "ValueSoftmax(projections=(0.3, 0.1))",
            "t1=10.0, points=5",
            "(f.projections[:, 1] - f.projections[:, 0]).values",
        ),
    }
    printed = inequality(np.append(growth, -growth), counterexample=lambda _: shown)
    return corrected(printed, inequality(mended_order * growth), "for i < j")


@LEDGER.claim(
    "lyapunov",
    where="§3.1 and proof of Theorem 3.2",
    statement="Φ_ij = −(e^−a_i − e^−a_j)(u_i − u_j) has dΦ/dt = γ/A [(u_i − u_j)² + "
    "|β*|²(e^a_i − e^a_j)² e^−(a_i + a_j)] with A = Σ e^a: it can only grow.",
    kind="identity",
    recorded="holds",
    broken={"second": 0.5},
)
def lyapunov(second: float = 1.0) -> Finding:
    x = random_states()["logistic"]
    i, j = pairs(x.scores.shape[1])
    inverse = np.exp(-x.scores)
    gap, y = x.u[:, i] - x.u[:, j], inverse[:, j] - inverse[:, i]
    gap_rate = x.u_rate[:, i] - x.u_rate[:, j]
    inverse_rate = -inverse * x.scores_rate
    measured = gap_rate * y + gap * (inverse_rate[:, j] - inverse_rate[:, i])
    force = (np.exp(x.scores[:, i]) - np.exp(x.scores[:, j])) ** 2 * inverse[:, i] * inverse[:, j]
    total = np.exp(x.scores).sum(axis=1, keepdims=True)
    return identity(measured, x.gamma / total * (gap**2 + second * x.norm2 * force))


@LEDGER.claim(
    "lyapunov-bracket",
    where="Proof of Theorem 3.2, first display",
    statement="da_i/dt = γ s_i [u_i − γ⟨s, u⟩].",
    kind="identity",
    recorded="holds_corrected",
    broken={"mended": lambda gamma: 0.5 + 0 * gamma},
)
def lyapunov_bracket(printed=lambda gamma: gamma, mended=lambda gamma: 1 + 0 * gamma) -> Finding:
    x = random_states()["logistic"]

    def law(factor):
        rates = x.gamma * x.weights * (x.u - factor(x.gamma) * x.margin)
        return identity(x.scores_rate, rates)

    shown = {
        "projections": [1.0, 1.0],
        "printed a_0'": float(0.5 / (1 + np.e) * (1 - 1 / (1 + np.e))),
        "true a_0'": 0.0,
        "run": rerun("ValueSoftmax(projections=(1.0, 1.0))", "t1=1.0, points=2", "f.scores.values"),
    }
    refuted = dataclasses.replace(law(printed), counterexample=shown)
    return corrected(refuted, law(mended), "no γ inside the bracket; it cancels in the differences")


def gap_steps(run, kind: str):
    """Changes of a_i − a_j and s_i − s_j from one output time to the next; i < j, or i = 0."""
    i, j = pairs(run.p)
    keep = i == 0 if kind == "maximum" else np.ones(i.size, bool)
    gaps = [x[:, i[keep]] - x[:, j[keep]] for x in (run.a, run.s)]
    return flat(*(np.diff(gap, axis=0) / np.ptp(gap, axis=0) for gap in gaps))


def score_gaps(kind: str) -> Finding:
    early, late = ensemble(EARLY)[-1], ensemble(LATE)[-1]
    gap = early.a[:, 1] - early.a[:, 2]
    peak = int(np.argmax(gap))
    finding = inequality(
        [gap_steps(run, kind).min() for run in ensemble(EARLY)],
        counterexample=lambda _: {
            "projections": list(SHOWN),
            "largest a_1 − a_2": float(gap[peak]),
            "at log t": float(early.log_t[peak]),
            "a_1 − a_2 at log t = 30": float(gap[-1]),
            "a_1 − a_2 at log t = 10⁴": float(late.a[-1, 1] - late.a[-1, 2]),
            "s_1/s_2 at log t = 10⁴": float(late.s[-1, 1] / late.s[-1, 2]),
            "run": rerun(
                f"ValueSoftmax(projections={SHOWN})",
                "log_t1=1e4, points=41",
                "(f.scores[:, 1] - f.scores[:, 2]).values",
            ),
        },
    )
    if finding.good:
        return finding
    return dataclasses.replace(finding, correction="true of pairs with the maximum (i = 0) only")


@LEDGER.claim(
    "score-gaps",
    where="End of the proof of Theorem 3.2",
    statement="The gaps a_i − a_j and s_i − s_j (i < j) grow with time as those of u do.",
    hypotheses=START,
    kind="inequality",
    recorded="refuted",
    broken={"kind": "maximum"},
)
def score_gaps_all(kind: str = "all") -> Finding:
    return score_gaps(kind)


@LEDGER.claim(
    "score-gaps-of-the-maximum",
    where="Ours, beside Theorem 3.2",
    statement="a_0 − a_j and s_0 − s_j grow strictly for every j ≠ 0.",
    hypotheses=START,
    kind="inequality",
    recorded="holds",
    broken={"kind": "all"},
)
def score_gaps_of_the_maximum(kind: str = "maximum") -> Finding:
    return score_gaps(kind)


@LEDGER.claim(
    "score-ratio-rate",
    where="Ours, beside Theorem 3.2",
    statement="Non-maximal scores become equal: for 1 ≤ i < j, log(s_i/s_j) falls like "
    "(log t)^(−2/p), so s_i/s_j → 1.",
    hypotheses=START + "; p ≥ 3; the exponent fitted on log t from 5·10³ to 10⁴.",
    kind="limit",
    recorded="holds",
    broken={"exponent": lambda p: -1 / p},
)
def score_ratio_rate(exponent=lambda p: -2 / p) -> Finding:
    fitted, claimed = [], []
    for run in ensemble(LATE):
        late = run.log_t > LATE / 2
        i, j = pairs(run.p)
        gaps = run.a[late][:, i[i > 0]] - run.a[late][:, j[i > 0]]
        if gaps.size:
            slopes = np.polyfit(np.log(run.log_t[late]), np.log(gaps), 1)[0]
            fitted.extend(slopes)
            claimed.extend([exponent(run.p)] * len(slopes))
    return close(fitted, claimed, tolerance=0.1)
