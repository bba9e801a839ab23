"""Section 4's toys: one score matrix for many queries, and the tied model."""

import functools

import numpy as np
import optax

from attnflow.dynamics.descent import descend
from attnflow.dynamics.flow import gradient_flow
from attnflow.models.sink_matrix import SinkMatrix
from attnflow.models.tied import TiedValueSoftmax
from attnflow.papers.ledger import Finding, corrected, inequality
from attnflow.papers.polarization._ledger import LEDGER, rerun

TOKENS = 4
SHOWN = (0.3, 0.1, -0.1, -0.2)
LATE = 2000.0  # log(1 + t)


@functools.cache
def sink_flows():
    """The final weights (run, query, key) for rows that start alike at 0, and for rows of which
    each starts on its own token (A(0) = 6 I)."""
    rng = np.random.default_rng(1)
    u = np.stack([SHOWN, *(np.sort(rng.normal(size=TOKENS))[::-1] for _ in range(7))])
    alike, own = np.zeros((len(u), TOKENS, TOKENS)), np.tile(6 * np.eye(TOKENS), (len(u), 1, 1))
    flow = gradient_flow(
        SinkMatrix(projections=SHOWN, scores=alike[0]),
        log_t1=LATE,
        points=2,
        over={"projections": np.concatenate([u, u]), "scores": np.concatenate([alike, own])},
    )
    weights = flow.weights.values[:, -1]
    return {"alike": weights[: len(u)], "own": weights[len(u) :]}


@LEDGER.claim(
    "sink-matrix",
    where="§4.1, attention sinks",
    statement="With a T × T score matrix every row converges to e_0, token 0 having the largest "
    "u(0): an attention sink.",
    hypotheses=f"log t = {LATE:g}; mended form: A(0) = 0. Margin: 10⁻³ minus what is off token 0.",
    kind="limit",
    recorded="holds_corrected",
    broken={"mended": "own"},
)
def sink_matrix(printed: str = "own", mended: str = "alike") -> Finding:
    def reading(start):
        return inequality(
            1e-3 - (1 - sink_flows()[start][:, :, 0]),
            counterexample=lambda _: {
                "projections": list(SHOWN),
                "A(0)": "6 × the identity",
                "weight of each row on its own token at log t = 2000": np.diagonal(
                    sink_flows()["own"][0]
                ).tolist(),
                "run": rerun(
                    f"SinkMatrix(projections={SHOWN}, scores=6 * np.eye(4))",
                    "log_t1=2000.0, points=2",
                    "f.weights.values[-1].round(3)",
                ),
            },
        )

    return corrected(
        reading(printed),
        reading(mended),
        "needs a(0) = 0 in every row: rows that start apart can stay on different tokens (γ is "
        "larger where u is behind, which keeps the used values level), and rows that start alike "
        "but not at 0 share a sink that need not be token 0",
    )


@LEDGER.claim(
    "tied-model",
    where="§4.1, massive activations, figure 11",
    statement="For ℓ(U σ(U a)) with the logistic loss the weights polarize and the norm of the "
    "column of U at the largest a diverges.",
    hypotheses="D = 10, U(0) = I, a(0) = 1 + 0.1 N(0, 1), β* = 1/√D, eight seeds, gradient descent "
    "with step 0.5 from t = 10³ to 10⁴: top weight above 0.99, that norm grows by 0.9 to 1.1 for "
    "each unit of log t. Margin: the worst deviation of that growth from 1.",
    kind="limit",
    recorded="holds",
    broken={"column": "smallest"},
)
def tied_model(column: str = "largest") -> Finding:
    run = descend(
        TiedValueSoftmax(dimension=10),
        20_000,
        optax.sgd(0.5),
        record=[2_000, 20_000],
        runs=8,
        key=0,
        progress=False,
    )
    query = run["query"].values[:, -1]
    chosen = query.argmax(axis=1) if column == "largest" else query.argmin(axis=1)
    norms = np.take_along_axis(run.column_norms.values, chosen[:, None, None], axis=2)[..., 0]
    growth = (norms[:, 1] - norms[:, 0]) / np.log(10)
    top = run.weights.values[:, -1].max(axis=1)
    error = float(np.abs(growth - 1).max())
    holds = bool((top > 0.99).all()) and error < 0.1
    return Finding("holds" if holds else "refuted", error, len(top))
