"""The square loss: the same path as the logistic one, but it ends."""

import dataclasses
import functools

import numpy as np

from attnflow.papers.ledger import Finding, corrected, identity, inequality
from attnflow.papers.polarization._equations import flat, sign_finding
from attnflow.papers.polarization._flows import Start, softmax_flows
from attnflow.papers.polarization._ledger import LEDGER, close, rerun, vanishing
from attnflow.papers.polarization._states import random_states
from attnflow.papers.polarization._tau_path import tau_path

START = "V(0) = 0 and s_0(0) > s_1(0) > … (Assumption 3.4)"
HORIZON = 6.0  # log(1 + t): the error is below rounding long before
SMALL = 1e-5  # spread of a(0) in the runs that start next to the uniform weights


@functools.cache
def starts() -> tuple[list[Start], list[Start]]:
    """From well-separated scores, and from nearly equal ones."""
    rng = np.random.default_rng(3)

    def draw(row, spread):
        p = 3 + row % 4
        scores = np.sort(rng.normal(size=p))[::-1] * spread
        return Start(np.zeros(p), (0.5, 1.0, 2.0, 3.0)[row // 4 % 4], scores - scores.mean())

    return [draw(row, 1.0) for row in range(20)], [draw(row, SMALL) for row in range(16)]


@functools.cache
def flows(objective: str = "square", log_t1: float = HORIZON):
    """Runs from both kinds of starts."""
    apart, near = starts()
    runs = softmax_flows(apart + near, log_t1, objective)
    return runs[: len(apart)], runs[len(apart) :]


@LEDGER.claim(
    "lemma-3.5a",
    where="Lemma 3.5(a)",
    statement="V keeps the form β* uᵀ/|β*|²: at such a V, V' is along β* too.",
    hypotheses="Square loss; V(0) = 0 is the case u = 0.",
    kind="identity",
    recorded="holds",
    broken={"state": "square"},
)
def lemma_3_5a(state: str = "aligned") -> Finding:
    x = random_states()[state]
    along = x.target[:, :, None] * (x.u_rate / x.norm2)[:, None, :]
    size = np.abs(x.values_rate).max(axis=(1, 2), keepdims=True)
    return vanishing((x.values_rate - along) / size)


@LEDGER.claim(
    "lemma-3.5b",
    where="Lemma 3.5(b), (9)–(10)",
    statement="Then u' = −γ|β*|² s, a' = −γ J u with γ = 1 − ⟨u, s⟩/|β*|².",
    hypotheses="Square loss with the factor ½, V = β* uᵀ/|β*|².",
    kind="identity",
    recorded="holds_corrected",
    broken={"mended_sign": -1},
)
def lemma_3_5b(mended_sign: int = 1) -> Finding:
    x = random_states()["aligned"]
    return sign_finding(x, 1 - x.margin / x.norm2, -1, mended_sign, "square")


@LEDGER.claim(
    "equations-20-22",
    where="C, (20)–(24)",
    statement="The gradient flow of |β − β*|² is V' = (β* − β) sᵀ, a' = J Vᵀ(β* − β).",
    kind="identity",
    recorded="holds_corrected",
    broken={"mended_factor": 2.0},
)
def equations_20_22(printed_factor: float = 1.0, mended_factor: float = 0.5) -> Finding:
    x = random_states()["square"]  # autodiff of ½|β − β*|²
    residual = x.target - x.output
    pulled = np.einsum("cdp,cd->cp", x.values, residual)
    drift = x.weights * (pulled - (pulled * x.weights).sum(axis=1, keepdims=True))
    claimed = flat(residual[:, :, None] * x.weights[:, None, :], drift)

    def law(factor):
        return identity(2 * factor * flat(x.values_rate, x.scores_rate), claimed)

    shown = {
        "values": [[0.0, 0.0]],
        "target": [1.0],
        "printed V_0'": 0.5,
        "true V_0' for |β − β*|²": 1.0,
        "true V_0' for ½|β − β*|²": 0.5,
        "run": rerun(
            "ValueSoftmax(values=np.zeros((1, 2)), target=np.ones(1), objective='square')",
            "times=[0.0, 1e-6]",
            "f.projections.values[1] / 1e-6",
        ),
    }
    printed = dataclasses.replace(law(printed_factor), counterexample=shown)
    return corrected(printed, law(mended_factor), "the loss is ½|β − β*|², as in (8)")


@LEDGER.claim(
    "regression-no-crossing",
    where="§3.2 and C.1",
    statement="Theorem 3.2 carries over: u and s keep their order and the gaps of u grow.",
    hypotheses=START,
    kind="inequality",
    recorded="holds",
    broken={"order": -1},
)
def regression_no_crossing(order: int = 1) -> Finding:
    slack = []
    for run in flows()[0]:
        moving = run.loss[1:] > 1e-16
        gaps = -np.diff(run.u, axis=1)
        slack += [gaps[1:], -np.diff(run.a, axis=1)[1:], np.diff(gaps, axis=0)[moving] / gaps[-1]]
    return inequality(order * np.concatenate([np.ravel(x) for x in slack]))


@LEDGER.claim(
    "regression-partial",
    where="§3.2 and C.1",
    statement="∫γ dt stays finite (it is at most p), the loss vanishes, and s does not become "
    "one-hot: every weight stays positive.",
    hypotheses=START + "; margin: the least final weight.",
    kind="inequality",
    recorded="holds",
    broken={"objective": "logistic", "log_t1": 1e3},
)
def regression_partial(objective: str = "square", log_t1: float = HORIZON) -> Finding:
    runs = [run for kind in flows(objective, log_t1) for run in kind]
    finite = all(run.tau[-1] <= run.p * (1 + 1e-9) for run in runs)
    solved = all(run.loss[-1] < 1e-12 for run in runs)
    least = float(min(run.s[-1].min() for run in runs))
    holds = finite and solved and least > 0
    return Finding("holds" if holds else "refuted", least, len(runs))


@LEDGER.claim(
    "regression-rate",
    where="C.1",
    statement="|β − β*|² ≤ e^(−2t/p)|β(0) − β*|²: twice the printed exponent 1/p, and no more than "
    "twice is true (equality while s is uniform).",
    hypotheses=START,
    kind="inequality",
    recorded="holds",
    broken={"factor": 2.1},
)
def regression_rate(factor: float = 2.0) -> Finding:
    tolerance = 1e-6
    least = (2 * 1e-10 / tolerance) ** 2  # below, the error of the flow exceeds the tolerance
    slack = []
    for run in (run for kind in flows() for run in kind):
        t = np.expm1(run.log_t)
        seen = run.loss > least * run.loss[0]
        slack.append(np.log(run.loss[0] / run.loss[seen]) - factor * t[seen] / run.p)
    return inequality(np.concatenate(slack), tolerance=tolerance)


@LEDGER.claim(
    "regression-amplification",
    where="Ours, beside C.1",
    statement="How partial: small differences of a(0) are multiplied by cosh|β*|, whatever p: "
    "linearly δa'' = |β*|² δa/p² in τ, and the path ends at τ = p.",
    hypotheses=f"V(0) = 0; spread of a(0) of {SMALL:g}.",
    kind="limit",
    recorded="holds",
    broken={"gain": np.exp},
)
def regression_amplification(gain=np.cosh) -> Finding:
    near = flows()[1]
    gains = [np.ptp(run.a[-1]) / np.ptp(run.a[0]) for run in near]
    return close(gains, gain(np.sqrt([run.norm2 for run in near])), tolerance=1e-3)


@LEDGER.claim(
    "loss-free-path",
    where="Ours, beside C.1",
    statement="In τ = ∫γ dt the logistic and the square loss follow one path u' = |β*|² s, "
    "a' = J u; the square loss stops on it where ⟨u, s⟩ = |β*|².",
    hypotheses="Same u(0) and a(0), V(0) along β*.",
    kind="identity",
    recorded="holds",
    broken={"stretch": 1.01},
)
def loss_free_path(stretch: float = 1.0) -> Finding:
    measured, claimed = [], []
    for start, square, logistic in zip(
        starts()[0][:6], flows()[0][:6], flows("logistic", 30.0)[0][:6], strict=True
    ):
        measured.append((square.u[-1] * square.s[-1]).sum(keepdims=True))
        claimed.append(np.array([square.norm2]))
        for run in (square, logistic):
            taus, rows = np.unique(run.tau, return_index=True)
            path = tau_path("softmax", start.u, start.a, run.norm2, stretch * taus)
            measured.append(flat(run.u[rows], run.a[rows]).ravel())
            claimed.append(flat(*path).ravel())
    return identity(np.concatenate(measured), np.concatenate(claimed), tolerance=1e-8)
