"""Important and other tokens: lemma 3, and how assumption B1 is measured."""

import numpy as np

from attnflow.instruments import (
    extreme_weights,
    leakage,
    leakage_sampled,
    separation,
    weight_bounds,
)
from attnflow.papers.conditioning._ledger import LEDGER, rerun, softmax
from attnflow.papers.ledger import Finding, corrected, inequality


def top_keys(scores, sizes):
    """The `sizes` largest scores of each row."""
    rank = np.argsort(np.argsort(-scores, axis=1), axis=1)
    return rank < np.asarray(sizes)[:, None]


def batches(seed: int = 14, count: int = 60):
    """Batches of scores with their important keys; the last ones attain the bounds."""
    rng = np.random.default_rng(seed)
    for k in range(count):
        n, samples = 3 + k % 6, 1 + k % 4
        scores = rng.normal(size=(samples, n)) * rng.uniform(0.1, 4)
        yield scores, top_keys(scores, rng.integers(1, n, size=samples))
    for delta in (0.0, 2.0, 9.0):
        tied = np.array([[delta, delta, 0.0, 0.0, 0.0]])
        yield tied, top_keys(tied, [2])
        alone = np.array([[delta, 0.0]])
        yield alone, top_keys(alone, [1])


@LEDGER.claim(
    "lemma-3",
    where="Lemma 3, equations (13) and (14)",
    statement="The least important weight is at least 1/(1 + (s_max − 1)e^Γ + (n − s_min)e^−Δ) and "
    "the greatest other one at most 1/(1 + s_min e^Δ).",
    hypotheses="Δ the least separation and Γ the greatest spread of the batch, Δ ≥ 0.",
    kind="inequality",
    recorded="holds",
    broken={"tail": 0.0},
)
def lemma_3(tail: float = 1.0) -> Finding:
    slack = []
    for scores, important in batches():
        a_important, a_other = extreme_weights(softmax(scores), important)
        found = separation(scores, important)
        lower, upper = weight_bounds(found, scores.shape[1])
        dropped = (1 - tail) * (scores.shape[1] - found.size.min()) * np.exp(-found.delta.min())
        slack += [np.log(a_important * (1 / lower - dropped)), np.log(upper / a_other)]
    return inequality(slack, tolerance=1e-12)


def printed_sharper(found, n: int) -> float:
    """e^−Δ / (s_min + (n − s_max)e^−Δ)."""
    small = np.exp(-found.delta.min())
    return float(small / (found.size.min() + (n - found.size.max()) * small))


def even_heads(tied: bool, seed: int = 15, count: int = 60):
    """Batches with Γ = 0: important scores tie in each sample; the others tie too, or do not."""
    rng = np.random.default_rng(seed)
    for k in range(count):
        n, samples = 3 + k % 6, 1 + k % 4
        sizes = rng.integers(1, n - 1, size=samples)
        important = np.arange(n) < sizes[:, None]
        depth = rng.uniform(0, 4, size=(samples, 1))
        extra = rng.exponential(size=(samples, n))
        yield np.where(important, 0.0, -depth - (0 if tied else extra)), important


def sharper_slack(tied: bool) -> list[float]:
    slack = []
    for scores, important in even_heads(tied):
        _, a_other = extreme_weights(softmax(scores), important)
        bound = printed_sharper(separation(scores, important), scores.shape[1])
        slack.append(float(np.log(bound / a_other)))
    return slack


@LEDGER.claim(
    "lemma-3-sharper",
    where="Lemma 3, last sentence",
    statement="If the important scores of each sample tie, the greatest other weight is at most "
    "e^−Δ/(s_min + (n − s_max)e^−Δ).",
    kind="inequality",
    recorded="holds_corrected",
    broken={"tied": False},
)
def lemma_3_sharper(tied: bool = True) -> Finding:
    scores = [1.0, 0.0, -9.0]

    def three_scores(_):
        weights = softmax(np.array(scores))
        return {
            "scores": scores,
            "important": [True, False, False],
            "delta": 1.0,
            "gamma": 0.0,
            "greatest_other_weight": float(weights[1]),
            "printed_bound": float(np.exp(-1) / (1 + 2 * np.exp(-1))),
            "run": rerun(
                f"a = np.exp({scores}); print(a[1] / a.sum(), np.exp(-1) / (1 + 2*np.exp(-1)))"
            ),
        }

    return corrected(
        inequality(sharper_slack(False), tolerance=1e-12, counterexample=three_scores),
        inequality(sharper_slack(tied), tolerance=1e-12),
        "It needs the unimportant scores of each sample to tie (then Γ does not matter). With only "
        "Γ = 0 nothing sharper than (14) holds.",
    )


@LEDGER.claim(
    "leakage-sampling",
    where="Appendix J.3, table 1",
    statement="The worst-case leakage ρ_U is found by trying 200 random directions of U.",
    hypotheses="Synthetic keys: the trained ViT is not available. Exact value by a generalized "
    "eigenvalue.",
    kind="inequality",
    recorded="holds_corrected",
    broken={"side": -1},
)
def leakage_sampling(side: int = 1) -> Finding:
    rng = np.random.default_rng(16)
    keys, important = np.concatenate([np.eye(20)[:1], 3 * np.eye(20)]), np.arange(21) < 1
    keys[1, 0] = 0.9
    exact, sampled = [], []
    for k in range(20):
        if k:
            keys = rng.normal(size=(50, 16)) * np.where(np.arange(50) < 3, 0.3, 1.0)[:, None]
            important = np.arange(50) < 3
        complement = np.eye(keys.shape[1])
        directions = rng.normal(size=(200, keys.shape[1]))
        exact.append(float(leakage(keys, important, complement)))
        sampled.append(float(leakage_sampled(keys, important, complement, directions)))
    exact, sampled = np.array(exact), np.array(sampled)

    def above_one(_):
        return {
            "keys": "e₁ is important; 0.9 e₁, 3 e₂, …, 3 e₂₀ are not; U is all of ℝ²⁰",
            "exact": float(exact[0]),
            "sampled": float(sampled[0]),
            "run": rerun(
                "x = np.random.default_rng(0).normal(size=(200, 20)); "
                "k = np.r_[0.9, np.full(19, 3)]; "
                "print(1/0.9, (abs(x[:, 0]) / np.linalg.norm(k * x, axis=1)).max())"
            ),
        }

    return corrected(
        inequality(0.05 - (1 - sampled / exact), counterexample=above_one),
        inequality(side * (exact / sampled - 1)),
        "Sampling bounds ρ_U from below: values below 1 do not show that ρ_U < 1. The maximum is "
        "the root of the largest generalized eigenvalue of K_SᵀK_S against K_TᵀK_T on U.",
    )
