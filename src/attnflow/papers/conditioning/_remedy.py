"""The conclusion's hope, that preconditioning undoes what sparse attention does to descent."""

import numpy as np

from attnflow.papers.conditioning._ledger import LEDGER
from attnflow.papers.conditioning._preconditioning import METHODS, Preconditioning, rows_of
from attnflow.papers.ledger import Finding, inequality

FINISHED = (0.0, 1.0, 2.0, 3.0, 4.0)  # gaps at which gradient descent ends within the cap
GAPS = (0.0, 3.0, 6.0, 9.0, 12.0)


@LEDGER.claim(
    "preconditioning-flat",
    where="Ours, beside the conclusion",
    statement="Near p* the steps of Gauss–Newton do not depend on the score gap Δ, while those of "
    "GD grow in proportion to κ, which grows like e^2Δ.",
    hypotheses="Two important keys of eight, no leakage, p trained, 0.01 off p*, until the squared "
    "distance is 1e-10 of what it was. Gauss–Newton for Δ = 0 to 12: at most three times the "
    "fewest steps; GD with step 1/λ_max for Δ = 0 to 4, where κ is 19 to 1,100: between 6 and 12 κ "
    "steps; κ from Δ = 6 to 12: e^2Δ to a tenth of the exponent.",
    kind="inequality",
    recorded="holds",
    broken={"method": "simplex natural gradient"},
)
def preconditioning_flat(method: str = "Gauss–Newton") -> Finding:
    config = Preconditioning(cap=15_000)
    column = METHODS.index(method)
    rows = {delta: rows_of(config, delta) for delta in {*FINISHED, *GAPS}}
    steps = np.array([rows[delta][0][column]() for delta in GAPS])
    kappas = {delta: kappa[0] for delta, (_, kappa, _) in rows.items()}
    ratios = np.array([rows[delta][0][0]() / kappas[delta] for delta in FINISHED])
    growth = np.log(kappas[12.0] / kappas[6.0]) / 6
    return inequality(
        [*(3 * np.min(steps) / steps - 1), *(ratios - 6), *(12 - ratios), 0.2 - abs(growth - 2)]
    )
