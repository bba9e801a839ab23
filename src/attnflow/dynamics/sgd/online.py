"""SGD at finite dimension D, in D dimensions or without any vector of D numbers.

A token enters a step only through its coordinates in the span of features and heads and through its
inner products with the other tokens of its sequence, so the Gram matrix of features and heads is
a complete state.
"""

import dataclasses
from typing import Any

import jax
import numpy as np
import xarray as xr

from attnflow._checks import at_least, below, choice, fits_memory, positive_moderate
from attnflow.dynamics.sgd.batch_free import batch_free
from attnflow.dynamics.sgd.levels import Plan, State, direct, exact, fast, start

LEVELS = {"direct": direct, "exact": exact, "fast": fast, "batch_free": batch_free}
DIMS = {
    "m": ("head", "feature"),
    "q": ("head", "other_head"),
    "p": ("feature", "other_feature"),
    "bias": ("head",),
    "gain": (),
}


def sgd(
    model: Any,
    steps: int,
    rate: float = 0.02,
    *,
    level: str = "exact",
    batch: int | None = None,
    runs: int = 1,
    record: int = 50,
    seed: int = 0,
) -> xr.Dataset:
    """`steps` steps of SGD on a `SingleLocation` with fresh batches (of D sequences unless `batch`
    says otherwise) at the model's dimension D. Overlaps `m`, `q`, the features' own `p`, `bias` and
    `gain` at `record` even steps, dimensions `run` and `step`, with the time τ = rate × step.

    level, and what is exact in it:

    - `direct`: D-dimensional tokens and weights. Cost of a step: batch × L × D.
    - `exact`: the same law of all overlaps, for any D ≥ F + 2H, batch and rate, without a vector of
      D numbers. Given its coordinates in the span, the inner products of a sequence are a Wishart
      matrix; the orthogonal parts of the update are independent and isotropic, and only their Gram
      matrix matters, which merging in pairs draws. Cost: batch × (L(L + F + H) + H³).
    - `fast`: tokens taken as orthonormal in the gradient (XXᵀ/D = 1), and one Wishart matrix for
      all orthogonal parts: laws are wrong by O(1/D). Cost: batch × L(F + H).
    - `batch_free`: as `fast`, and the sum over the batch replaced by its mean over the model's
      points plus Gaussian noise of its covariance: wrong by O(1/D), by the error of the points and
      by the skewness of a small batch. Cost: the model's `samples`, whatever D and the batch are.

    The start is k* ~ N(0, 1/D), k ~ N(0, η²/D), b = 0, v = 1, independent in every run.

        >>> import attnflow as af
        >>> signal = af.single_location.flipping_spike(2.0, 2.0)
        >>> model = af.SingleLocation(signal, tokens=4, dimension=1000)
        >>> run = af.sgd(model, steps=20, rate=0.5)
        >>> bool((run.m.isel(step=-1, feature=0) > 0.5).all())
        True
    """
    choice("level", level, LEVELS)
    at_least("steps", steps, 1)
    at_least("runs", runs, 1)
    at_least("record", record, 2, "the first and the last step are always kept")
    positive_moderate("rate", rate)
    dimension = _whole_dimension(model, level)
    if batch is None:
        batch = dimension
    at_least("batch", batch, 1, "a step needs a sequence")
    size = model.signal.features + model.heads
    fits_memory(f"{record} records of {runs} runs", 8 * 3 * record * runs * size**2)
    if level == "direct":
        wide = dimension * (3 * runs * size + 2 * model.tokens)
        fits_memory(f"the level 'direct' at dimension {dimension}", 8 * wide)
    # an array is traced, so that another dimension does not compile the step again
    traced = dataclasses.replace(model, dimension=np.asarray(float(dimension)))
    plan = Plan(traced, dimension, batch, rate, np.random.default_rng(seed))
    kept = np.unique(np.rint(np.linspace(0, steps, record)).astype(int))
    rows = []
    with jax.enable_x64(True):
        state = start(plan, runs, spanned=level != "direct")
        advance = LEVELS[level](plan)
        for step in range(steps + 1):
            if step in kept:
                rows.append(overlaps(state))
                if not all(np.isfinite(x).all() for x in rows[-1].values()):
                    raise FloatingPointError(f"SGD is not finite at step {step}: lower the rate")
            if step < steps:
                state = advance(state)
    data = {
        name: (("run", "step", *DIMS[name]), np.stack([row[name] for row in rows], axis=1))
        for name in rows[0]
    }
    coords = {"run": np.arange(runs), "step": kept, "time": ("step", rate * kept)}
    facts = {"level": level, "dimension": dimension, "batch": batch, "rate": rate, "seed": seed}
    return xr.Dataset(data, coords=coords, attrs=facts)


def overlaps(state: State) -> dict[str, np.ndarray]:
    k_star, k = state.features, state.heads
    turned = k.transpose(0, 2, 1)
    seen = {"m": k @ k_star.transpose(0, 2, 1), "q": k @ turned}
    seen["p"] = k_star @ k_star.transpose(0, 2, 1)
    names = {"b": "bias", "v": "gain"}
    return seen | {names[name]: value for name, value in state.own.items()}


def _whole_dimension(model: Any, level: str) -> int:
    dimension = float(model.dimension)
    below("dimension", dimension, 2**53, "SGD needs a whole number, and larger floats have gaps")
    least = model.signal.features + (1 if level == "direct" else 2) * model.heads
    if dimension != int(dimension) or dimension < least:
        raise ValueError(
            f"dimension must be a whole number of at least {least} for the level {level!r} (got "
            f"{dimension:g})"
        )
    return int(dimension)
