"""The conditioning of attention in language models that exist."""

import functools

import numpy as np

from attnflow.papers import pretrained
from attnflow.papers.conditioning._ledger import LEDGER
from attnflow.papers.ledger import Finding, corrected, inequality

SEQUENCES, LENGTH, ROWS = 4, 256, 16


@functools.cache
def decades(name: str) -> tuple[np.ndarray, np.ndarray]:
    """By head, means over rows of log₁₀ κ(J²), exact, and of log₁₀ (max a/min a)²."""
    source = {"SmolLM2-135M": pretrained.smollm2, "stories260K": pretrained.stories}[name]()
    text = pretrained.text("wikitext-2")
    from attnflow.torch import Budget, diagnose, load_model, token_batches

    loaded = load_model(source)
    batch = token_batches(loaded, text, sequences=SEQUENCES, length=LENGTH)
    inputs = {"input_ids": batch.input_ids}
    heads = diagnose(loaded.model, inputs, budget=Budget(rows=ROWS, exact=ROWS)).heads
    return 2 * heads.log10_kappa.values.ravel(), heads.log10_kappa_bound.values.ravel()


@LEDGER.claim(
    "table-3-pretrained",
    where="Appendix J.3, table 3, on pretrained language models",
    statement="κ(J(a)²) ≈ (max a / min a)² for the attention rows of trained transformers.",
    hypotheses="≈ is read as within a factor of ten, for the mean over rows of every head; "
    "SmolLM2-135M and stories260K on 4 × 256 tokens of WikiText-2, 16 rows each.",
    kind="inequality",
    recorded="holds_corrected",
    broken={"side": -1},
    slow=True,
)
def table_3_pretrained(side: int = 1) -> Finding:
    found = {name: decades(name) for name in ("SmolLM2-135M", "stories260K")}
    excess = np.concatenate([bound - exact for exact, bound in found.values()])

    def worst(_):
        facts = {}
        for name, (exact, bound) in found.items():
            facts |= {
                f"{name}: median log10 κ(J²)": float(np.median(exact)),
                f"{name}: median log10 of the estimate": float(np.median(bound)),
                f"{name}: heads off by more than ten": float(np.mean(bound - exact > 1)),
                f"{name}: most decades too large": float(np.max(bound - exact)),
            }
        return facts

    return corrected(
        inequality(1 - np.abs(excess), counterexample=worst),
        inequality(side * excess),
        f"(max a / min a)² is an upper bound of κ(J²). It is {np.median(excess):.1f} decades too "
        f"large for the median head, up to {np.max(excess):.1f} for heads with one great weight, "
        "since the largest eigenvalue of J is near the second weight.",
    )
