"""The equations of motion, against automatic differentiation of the loss at random states."""

import dataclasses
import math

import numpy as np

from attnflow.papers.ledger import Finding, corrected, identity, inequality
from attnflow.papers.polarization._flows import EARLY, ensemble
from attnflow.papers.polarization._ledger import LEDGER, rerun, vanishing
from attnflow.papers.polarization._states import LOSSES, TOKENS, random_states, softmax_jacobian


def flat(*arrays):
    return np.concatenate([np.reshape(x, (len(x), -1)) for x in arrays], axis=1)


def push(matrices, vectors):
    """M v for every case."""
    return np.einsum("cij,cj->ci", matrices, vectors)


@LEDGER.claim(
    "equations-3-4",
    where="§2, equations (3)–(4); A, (12)–(13)",
    statement="With r = −∇ℓ(β) and J = diag(s) − s sᵀ the gradient flow is V' = r sᵀ, a' = J Vᵀ r, "
    "for every loss ℓ of β = V s.",
    kind="identity",
    recorded="holds",
    broken={"jacobian": lambda s: s[:, :, None] * np.eye(TOKENS)},
)
def equations_3_4(jacobian=softmax_jacobian) -> Finding:
    states = [random_states()[loss] for loss in LOSSES]
    measured = [flat(x.values_rate, x.scores_rate) for x in states]
    claimed = [
        flat(
            x.descent[:, :, None] * x.weights[:, None, :],
            push(jacobian(x.weights), push(x.values.swapaxes(1, 2), x.descent)),
        )
        for x in states
    ]
    return identity(np.concatenate(measured), np.concatenate(claimed))


@LEDGER.claim(
    "property-d.3",
    where="D.1, Property D.3, (25)–(29)",
    statement="The Jacobians of β = V s are sᵀ ⊗ I with respect to the columns of V and V J with "
    "respect to a.",
    kind="identity",
    recorded="holds",
    broken={"jacobian": lambda s: s[:, :, None] * np.eye(TOKENS)},
)
def property_d_3(jacobian=softmax_jacobian) -> Finding:
    x = random_states()["square"]
    width = x.values.shape[1]
    by_values = np.stack([np.kron(s, np.eye(width)) for s in x.weights])
    return identity(
        flat(x.values_jacobian, x.scores_jacobian),
        flat(by_values, x.values @ jacobian(x.weights)),
    )


def reduced_rates(x, gamma):
    """(γ|β*|² s, γ J u) side by side."""
    drift = x.weights * (x.u - x.margin)
    return flat(gamma * x.norm2 * x.weights, gamma * drift)


def sign_finding(x, gamma, printed_sign: int, mended_sign: int, loss: str) -> Finding:
    """Reduced equations with the printed sign, then with the other one."""
    measured, rates = flat(x.u_rate, x.scores_rate), reduced_rates(x, gamma)
    speed = 0.5 / (1 + math.exp(0.5)) if loss == "logistic" else 0.25
    printed = dataclasses.replace(
        identity(measured, printed_sign * rates),
        counterexample={
            "projections": [1.0, 0.0],
            "printed u0'": -speed,
            "true u0'": speed,
            "run": rerun(
                f"ValueSoftmax(projections=(1.0, 0.0), objective='{loss}')",
                "times=[0.0, 1e-6]",
                "f.projections.values[:, 0]",
            ),
        },
    )
    mended = identity(measured, mended_sign * rates)
    return corrected(printed, mended, "drop both minus signs: u' = γ|β*|² s, a' = γ J u")


@LEDGER.claim(
    "equations-6-7",
    where="§3.1, (6)–(7) and the two lines above; B, (15)–(16)",
    statement="For the logistic loss u = Vᵀβ* and a obey u' = −γ|β*|² s, a' = −γ J u with "
    "γ = 1/(1 + e^⟨u, s⟩).",
    kind="identity",
    recorded="holds_corrected",
    broken={"mended_sign": -1},
)
def equations_6_7(mended_sign: int = 1) -> Finding:
    x = random_states()["logistic"]
    return sign_finding(x, x.gamma, -1, mended_sign, "logistic")


@LEDGER.claim(
    "replicator",
    where="§3.1, intuition from replicator dynamics",
    statement="A coordinate of above-average fitness is amplified: a_i' and u_i'' both have the "
    "sign of u_i − ⟨u, s⟩.",
    hypotheses="The start of the theorems; u'' up to the change of γ, that is the sign of s_i'.",
    kind="sign",
    recorded="holds_corrected",
    broken={"mended": "weights"},
)
def replicator(mended: str = "scores") -> Finding:
    rows = []
    for k, run in enumerate(ensemble(EARLY)):
        fitness = run.u - (run.u * run.s).sum(axis=1, keepdims=True)
        scores = run.s * fitness
        weights = run.s * (scores - (run.s * scores).sum(axis=1, keepdims=True))
        for what, rate in (("scores", scores), ("weights", weights)):
            agree = rate * np.sign(fitness) / np.abs(rate).max(axis=1, keepdims=True)
            rows.append((what, agree[1:].min(), k))
    printed_slack, worst = min((slack, k) for what, slack, k in rows if what == "weights")
    shown = ensemble(EARLY)[worst]
    u, norm = shown.u[0].tolist(), math.sqrt(shown.norm2)
    printed = inequality(
        [printed_slack],
        counterexample=lambda _: {
            "projections": u,
            "target_norm": norm,
            "worst s_i' sign(u_i − ⟨u, s⟩) / max_j |s_j'|": float(printed_slack),
            "run": rerun(
                f"ValueSoftmax(projections={tuple(u)}, target_norm={norm})",
                "log_t1=30.0",
                "((f.weights.diff('time') < 0) & (f.projections > "
                "(f.weights * f.projections).sum('token'))).any('time').values",
            ),
        },
    )
    slack = [slack for what, slack, _ in rows if what == mended]
    found = inequality(slack, tolerance=1e-12)
    note = "true of a only: a weight can fall while its u is above average"
    return corrected(printed, found, note)


@LEDGER.claim(
    "lemma-d.1",
    where="D.1, Lemma D.1",
    statement="The loss does not feel a → a + c: its gradient in a is orthogonal to 1, and Σ a_i "
    "is conserved.",
    kind="identity",
    recorded="holds",
    broken={"law": "square_normalized"},
)
def lemma_d_1(law: str = "logistic") -> Finding:
    states = [random_states()[name] for name in {law, *LOSSES}]
    sums = [x.scores_rate.sum(axis=1) / np.abs(x.scores_rate).max(axis=1) for x in states]
    along = [run.a.sum(axis=1)[1:] / np.abs(run.a[1:]).max(axis=1) for run in ensemble(EARLY)]
    return vanishing(np.concatenate(sums + along))


def output_operator(x, power: int):
    """|s|² I + V J^power Vᵀ."""
    power_of_j = np.linalg.matrix_power(softmax_jacobian(x.weights), power)
    inner = x.values @ power_of_j @ x.values.swapaxes(1, 2)
    return (x.weights**2).sum(axis=1)[:, None, None] * np.eye(x.values.shape[1]) + inner


@LEDGER.claim(
    "lemma-d.2",
    where="D.1, Lemma D.2",
    statement="Along the flow of any loss, dℓ/dt ≤ −|∇ℓ|²/p, p the number of tokens.",
    kind="inequality",
    recorded="holds",
    broken={"constant": 1.0},
)
def lemma_d_2(constant: float = 1 / TOKENS) -> Finding:
    states = [random_states()[loss] for loss in LOSSES]
    fall = np.concatenate([(x.descent * x.output_rate).sum(axis=1) for x in states])
    size = np.concatenate([(x.descent**2).sum(axis=1) for x in states])
    return inequality(fall / size - constant)


@LEDGER.claim(
    "lemma-d.2-operator",
    where="D.1, proof of Lemma D.2 (the operator M)",
    statement="dβ/dt = [|s|² I + V J Vᵀ] r.",
    kind="identity",
    recorded="holds_corrected",
    broken={"mended_power": 3},
)
def lemma_d_2_operator(printed_power: int = 1, mended_power: int = 2) -> Finding:
    states = [random_states()[loss] for loss in LOSSES]
    measured = np.concatenate([x.output_rate for x in states])

    def law(power):
        return identity(
            measured, np.concatenate([push(output_operator(x, power), x.descent) for x in states])
        )

    printed = dataclasses.replace(
        law(printed_power),
        counterexample={
            "values": [[1.0, -1.0]],
            "target": [1.0],
            "printed dβ/dt": 0.75,
            "true dβ/dt": 0.5,
            "run": rerun(
                "ValueSoftmax(values=np.array([[1.0, -1.0]]), target=np.ones(1))",
                "times=[0.0, 1e-6]",
                "1e6 * np.diff((f.weights * f.projections).sum('token'))",
            ),
        },
    )
    return corrected(printed, law(mended_power), "V J² Vᵀ: the result is not affected")
