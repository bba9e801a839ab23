"""Maps that act on each score alone, s_i = f(a_i): no coordinate sees another.

In τ each pair moves by itself, u' = |β*|² f(a), a' = f'(a) u, and keeps u²/2 − |β*|² ∫ f/f' da.
For relu (a > 0) that is linear, u ± |β*|a ∝ e^(±|β*|τ): a coordinate with u + |β*|a > 0 at the
start grows with that weight, any other dies at a = 0 and stays there.
"""

import functools
import math

import numpy as np

from attnflow.papers.ledger import Finding, identity, inequality
from attnflow.papers.polarization._ledger import LEDGER, close
from attnflow.papers.polarization._tau_path import tau_path, weights, where_margin_is

SETTING = "p = 10, V(0) = 0.1 N(0, 1), a(0) = 1 + 0.1 N(0, 1), β* ~ N(0, 1) (figure 13), four seeds"
CONSERVED = {"sigmoid": lambda a: a + np.exp(a), "relu": lambda a: a**2 / 2}  # ∫ f/f' da


@functools.cache
def starts(seeds: int = 4):
    """u(0), a(0) and |β*|² of figure 13's setting."""
    drawn = []
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        beta, values = rng.normal(size=10), 0.1 * rng.normal(size=(10, 10))
        drawn.append((values.T @ beta, 1 + 0.1 * rng.normal(size=10), float(beta @ beta)))
    return drawn


def shares(law: str, a):
    """s_i/Σs."""
    s = weights(law, a)
    return s / s.sum(axis=-1, keepdims=True)


def top_shares(law: str, tau: float) -> np.ndarray:
    """The largest share: along the logistic path up to `tau`, and where the square loss ends."""
    found = []
    for u, a, norm2 in starts():
        path = tau_path(law, u, a, norm2, np.linspace(0.0, tau, 50))
        _, _, end = where_margin_is(norm2, law, u, a, norm2, longest=20.0)
        found += [shares(law, path[1]).max(), shares(law, end).max()]
    return np.array(found)


@LEDGER.claim(
    "sigmoid",
    where="§3.2, elementwise maps, figure 13",
    statement="The elementwise sigmoid does not polarize, under either loss: no share s_i/Σs comes "
    "near 1.",
    hypotheses=SETTING + "; no share above 0.2 = 2/p, up to τ = 20.",
    kind="inequality",
    recorded="holds",
    broken={"law": "softmax"},
)
def sigmoid(law: str = "sigmoid") -> Finding:
    return inequality(0.2 - top_shares(law, 20.0))


@LEDGER.claim(
    "sigmoid-uniform",
    where="Ours, beside the sigmoid",
    statement="Under the logistic loss it ends uniform, the opposite of one-hot: every s_i → 1, "
    "and 1 − s_i ~ 2/(|β*|² τ²).",
    hypotheses=SETTING + "; at τ = 1000.",
    kind="limit",
    recorded="holds",
    broken={"constant": 1.0},
)
def sigmoid_uniform(constant: float = 2.0) -> Finding:
    tau, rest = 1000.0, []
    for u, a, norm2 in starts():
        end = tau_path("sigmoid", u, a, norm2, [tau])[1][0]
        rest.append(norm2 * tau**2 / (1 + np.exp(end)))
    return close(rest, constant, tolerance=0.03)


@LEDGER.claim(
    "relu",
    where="§3.2, elementwise maps, figure 13",
    statement="The elementwise ReLU does not polarize, under either loss.",
    hypotheses=SETTING + "; no share above 0.5, up to τ = 20/|β*|.",
    kind="inequality",
    recorded="holds",
    broken={"law": "softmax"},
)
def relu(law: str = "relu") -> Finding:
    tau = 20.0 / math.sqrt(max(norm2 for *_, norm2 in starts())) if law == "relu" else 20.0
    return inequality(0.5 - top_shares(law, tau))


@LEDGER.claim(
    "relu-limit",
    where="Ours, beside the ReLU",
    statement="Under the logistic loss the shares of the elementwise ReLU tend to those of "
    "max(0, u_i(0) + |β*| a_i(0)).",
    hypotheses=SETTING + ", and the same with u(0) ten times larger, so that some die.",
    kind="limit",
    recorded="holds",
    broken={"mixed": 0.5},
)
def relu_limit(mixed: float = 1.0) -> Finding:
    measured, claimed = [], []
    for u, a, norm2 in starts():
        for scale in (1.0, 10.0):
            norm = math.sqrt(norm2)
            end = tau_path("relu", scale * u, a, norm2, [14.0 / norm])[1][0]
            live = np.maximum(scale * u + mixed * norm * a, 0.0)
            measured.append(shares("relu", end))
            claimed.append(live / live.sum())
    return identity(measured, claimed, tolerance=1e-8)


@LEDGER.claim(
    "relu-deaths",
    where="Ours, beside the ReLU",
    statement="The elementwise ReLU can become exactly one-hot, by deaths: when u_j(0) < "
    "−|β*| a_j(0) for all j but one.",
    hypotheses="u(0) = (1, −1.1, −1.5, −2)·|β*|, a(0) = 1.",
    kind="existence",
    recorded="holds",
    broken={"second": -0.9},
)
def relu_deaths(second: float = -1.1) -> Finding:
    rest = []
    for norm2 in (0.25, 1.0, 4.0):
        u = math.sqrt(norm2) * np.array([1.0, second, -1.5, -2.0])
        end = tau_path("relu", u, 1.0, norm2, [10.0 / math.sqrt(norm2)])[1][0]
        rest.append(np.abs(shares("relu", end) - np.eye(4)[0]).max())
    worst = float(max(rest))
    return Finding("holds" if worst == 0 else "refuted", worst, len(rest))


@LEDGER.claim(
    "relu-normalized",
    where="Ours, beside the ReLU",
    statement="The normalized ReLU ends exactly one-hot under the logistic loss: the losing "
    "coordinates die one after the other at finite τ, and a_0 ends at |a(0)|.",
    hypotheses="a(0) = 1, random u(0) of 3 to 6 tokens; at τ = 25/|β*|.",
    kind="limit",
    recorded="holds",
    broken={"law": "softplus_normalized"},
)
def relu_normalized(law: str = "relu_normalized") -> Finding:
    rng = np.random.default_rng(2)
    rest, cases = 0.0, 4
    for row in range(cases):
        p, norm2 = 3 + row % 4, (0.25, 1.0, 4.0)[row % 3]
        u = np.sort(rng.normal(size=p))[::-1]
        a = tau_path(law, u, 1.0, norm2, [25.0 / math.sqrt(norm2)])[1][0]
        rest = max(rest, np.abs(weights(law, a) - np.eye(p)[0]).max())
        rest = max(rest, float(abs(a[0] - math.sqrt(p)) > 1e-8))
    return Finding("holds" if rest == 0 else "refuted", float(rest), cases)


@LEDGER.claim(
    "elementwise-invariant",
    where="Ours, beside the elementwise maps",
    statement="For s_i = f(a_i) every coordinate keeps its own u_i²/2 − |β*|² ∫ f/f' da, whatever "
    "the others do: for the sigmoid u²/2 − |β*|²(a + e^a), for the ReLU (a > 0) u² − |β*|²a².",
    kind="identity",
    recorded="holds",
    broken={"weight": 0.9},
)
def elementwise_invariant(weight: float = 1.0) -> Finding:
    measured, claimed = [], []
    for law, integral in CONSERVED.items():
        for u, a, norm2 in starts():
            us, scores = tau_path(law, u, a, norm2, np.linspace(0.0, 4.0 / math.sqrt(norm2), 9))
            stored = us**2 / 2 - weight * norm2 * integral(scores)
            measured.append(stored.ravel())
            claimed.append(np.tile(stored[0], len(stored)))
    return identity(measured, claimed, tolerance=1e-8)
