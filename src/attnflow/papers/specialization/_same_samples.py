"""Appendix B: descending on one fixed sample, or on a fresh one at each step."""

import functools
from typing import NamedTuple

import numpy as np

from attnflow.models.single_location import flipping_spike
from attnflow.papers.ledger import Finding, corrected, inequality
from attnflow.papers.specialization._expansion import independent, mirrored, risk, softmax_slopes
from attnflow.papers.specialization._ledger import LEDGER, rerun

TOKENS, HEADS = 8, 2
PAPER_SAMPLES, PAPER_NOISE = 100_000, 0.01
STEP, STEPS = 0.5, 160
SEEDS = tuple(range(13, 17))


class End(NamedTuple):
    m: np.ndarray
    risk: float


@functools.cache
def descent(fresh: bool, seed: int, samples: int = 1024) -> End:
    """Euler steps from m = 0, r = I plus noise. The noise grows with the sample's error, so that
    their ratio is that of 10⁵ samples and noise 0.01."""
    signal = flipping_spike(2.0, 2.0)
    rng = np.random.default_rng(seed)
    noise = PAPER_NOISE * np.sqrt(PAPER_SAMPLES / samples)
    m = noise * rng.standard_normal((HEADS, 2))
    r = np.eye(HEADS) + noise * rng.standard_normal((HEADS, HEADS))
    points = independent(signal, TOKENS, HEADS, samples, rng)
    for _ in range(STEPS):
        if fresh:
            points = independent(signal, TOKENS, HEADS, samples, rng)
        in_m, in_r = softmax_slopes(points, m, r)
        m, r = m - STEP * in_m, r - STEP * in_r
    return End(m, float(risk("softmax", mirrored(signal, TOKENS, HEADS, 1000, 0), m, r)))


@LEDGER.claim(
    "same-samples",
    where="Appendix B, figure 8",
    statement="Keeping the same samples at each step instead of drawing new ones leaves each "
    "head's magnetizations as they are.",
    hypotheses="Softmax, flipping spike ν₁ = ν₂ = 2, L = 8, H = F = 2; 4 pairs from the same "
    "start, 1,024 samples with the start's noise scaled to keep the paper's ratio to the sampling "
    "error, steps of 0.5 to τ = 80. As they are: within 0.5 (the heads are near ±1).",
    kind="inequality",
    recorded="holds_corrected",
    broken={"allowed": 3.0},
)
def same_samples(allowed: float = 0.5) -> Finding:
    pairs = [(descent(False, seed), descent(True, seed)) for seed in SEEDS]
    gaps = np.array([np.abs(same.m[0] - new.m[0]).max() for same, new in pairs])
    worst = int(np.argmax(gaps))
    same, new = pairs[worst]
    printed = inequality(
        allowed - gaps,
        counterexample=lambda _: {
            "seed": SEEDS[worst],
            "m_same_samples": same.m.tolist(),
            "m_new_samples": new.m.tolist(),
            "risks": [same.risk, new.risk],
            "pairs_with_heads_exchanged": int(np.sum(gaps > allowed)),
            "pairs": len(pairs),
            "run": rerun(
                "from attnflow.papers.specialization._same_samples import descent; "
                f"print(descent(False, {SEEDS[worst]}), descent(True, {SEEDS[worst]}))"
            ),
        },
    )
    return corrected(
        printed,
        inequality([0.02 - abs(same.risk - new.risk) for same, new in pairs]),
        "The risk reached is the same. While heads still differ in their noise a fixed sample "
        "pushes them apart by its own error, about a third of the start's differences: in about "
        "one run in ten they exchange sides, in the others the escape is earlier or later.",
    )
