"""What becomes of the values: their dimension, their differences, and what they lie along."""

import functools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import optax

from attnflow.dynamics.descent import descend
from attnflow.instruments.manifold import alignment, principal_shape
from attnflow.models.head import ChainTask, DiversityTask, SymbolHead
from attnflow.models.head.task import head_shapes, random_start
from attnflow.papers.ledger import Finding, corrected, inequality
from attnflow.papers.routing._ledger import LEDGER, rerun
from attnflow.papers.routing._schedules import ADAM, LONG, SETTING
from attnflow.papers.routing._study import run
from attnflow.tasks.markov import StickyChain

TRAINED = {
    "uniform SGD": (LONG, "uniform"),
    "SGD, W_V tenfold": (LONG, "values"),
    "Adam": (ADAM, "uniform"),
    "Adam, W_V tenfold": (ADAM, "values"),
}
SGD = optax.sgd(1.0)


@functools.cache
def dimensions(trained: str) -> dict[str, np.ndarray]:
    """Of the 8 symbols' values, before and after training (seed, 2): components that hold 90 % of
    their variance, participation, and the share of the first component."""
    study, schedule = TRAINED[trained]
    values = run(study)["values"].sel(schedule=schedule).isel(rate=0, step=[0, -1]).values
    shapes = [[principal_shape(cloud) for cloud in seed] for seed in values]
    measures = {
        "components": lambda shape: shape.components,
        "participation": lambda shape: shape.participation,
        "first_share": lambda shape: shape.shares[0],
    }
    return {
        name: np.array([[of(shape) for shape in seed] for seed in shapes])
        for name, of in measures.items()
    }


PCA_RUN = rerun(
    "import optax; d = af.descend(af.head.ChainTask().model(), 2000, optax.sgd(2.0)); "
    "print([af.instruments.principal_shape(d['values'].values[i])[:3] for i in (0, -1)])"
)


@LEDGER.claim(
    "low-dimensional-values",
    where="Abstract; foundational concept 3",
    statement="Trained values lie near a curve or a surface: two components hold 90 % of their "
    "variance.",
    hypotheses=f"{SETTING} Values of the 8 symbols after 2,000 steps at rate 2, or 1,200 of "
    "Adam at 0.003; uniform, or W_V tenfold; 8 seeds.",
    kind="inequality",
    recorded="refuted",
    broken={"at_most": 7},
)
def low_dimensional_values(at_most: int = 2) -> Finding:
    needed = {name: dimensions(name)["components"][:, 1] for name in TRAINED}
    logits = np.log(StickyChain().transition)
    return replace(
        inequality(
            [at_most + 0.5 - each for each in needed.values()],
            counterexample=lambda _: {
                "components": {name: each.tolist() for name, each in needed.items()},
                "share_of_the_first": {
                    name: dimensions(name)["first_share"][:, 1].round(3).tolist()
                    for name in TRAINED
                },
                "components_of_the_Bayes_logits": principal_shape(logits).components,
                "run": PCA_RUN,
            },
        ),
        correction="On the symmetric chain no direction is preferred: the logits of the exact "
        "posterior spread evenly over all 7 dimensions of 8 symbols.",
    )


@LEDGER.claim(
    "manifold-dimension",
    where="Next check 3",
    statement="Training reduces the effective dimension of the values: fewer components hold 90 % "
    "of their variance than at the random start.",
    hypotheses="As for low-dimensional-values, under uniform SGD.",
    kind="inequality",
    recorded="refuted",
    broken={"trained": "Adam, W_V tenfold"},
)
def manifold_dimension(trained: str = "uniform SGD") -> Finding:
    shapes = {name: dimensions(name) for name in TRAINED}
    before, after = shapes[trained]["components"].T
    return replace(
        inequality(
            before - after,
            counterexample=lambda _: (
                {
                    f"mean_{measure}_before_and_after": {
                        name: found[measure].mean(axis=0).round(2).tolist()
                        for name, found in shapes.items()
                    }
                    for measure in ("components", "participation")
                }
                | {"run": PCA_RUN}
            ),
        ),
        correction="Under uniform SGD it does not fall in every seed, nor in the mean. It falls "
        "where values move faster: with W_V tenfold in most seeds under SGD, in all under Adam.",
    )


VARIANTS = {
    "LayerNorm": ChainTask(length=500, normalized=True),
    "residual": ChainTask(length=500, residual=True),
    "4 heads": ChainTask(length=500, heads=4),
}


def vote_spread(values: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    """Root mean square by which the votes v_s W_O of a symbol differ from the mean vote."""
    votes = values @ outputs
    votes = votes - votes.mean(axis=-1, keepdims=True)  # logits are free up to a constant
    return np.sqrt(np.mean((votes - votes.mean(axis=-2, keepdims=True)) ** 2, axis=(-1, -2)))


def _trained_variant(task: ChainTask) -> dict[str, np.ndarray]:
    starts = [replace(task, seed=seed).model().start for seed in range(5)]
    data, params = descend(
        task.model(),
        1000,
        SGD,
        over={"start": starts},
        record=[0, 1000],
        progress=False,
        return_params=True,
    )
    values, first = data["values"].values, np.stack([start["W_O"] for start in starts])
    spread = [vote_spread(values[:, 0], first), vote_spread(values[:, -1], params["W_O"])]
    return {
        "sharpening": data.entropy.values[:, 0] - data.entropy.values[:, -1],
        "specialization": spread[1] / spread[0] - 1,
    }


@functools.cache
def trained_variants() -> dict[str, dict[str, np.ndarray]]:
    with ThreadPoolExecutor(2) as pool:  # each compiles its own program
        return dict(zip(VARIANTS, pool.map(_trained_variant, VARIANTS.values()), strict=True))


@LEDGER.claim(
    "layernorm-residual-heads",
    where="Next check 1",
    statement="With LayerNorm on the values, with a residual, or with 4 heads, attention still "
    "sharpens and values still specialize.",
    hypotheses="Sticky chain with T = 500, 1,000 steps at rate 1, 5 starts. Sharpening: the mean "
    "entropy of attention rows falls. Specialization: the root mean square by which the symbols' "
    "votes v W_O differ from their mean grows.",
    kind="sign",
    recorded="holds",
    broken={"least": 0.05},
)
def layernorm_residual_heads(least: float = 0.0) -> Finding:
    """least: by how many nats the entropy must fall, and by which share the votes must spread."""
    found = trained_variants()
    return inequality(
        [change - least for measures in found.values() for change in measures.values()],
        counterexample=lambda _: {
            "mean_change": {
                name: {measure: float(change.mean()) for measure, change in measures.items()}
                for name, measures in found.items()
            },
            "run": rerun(
                "import optax; print([af.descend(af.head.ChainTask(length=500, residual=r)"
                ".model(), 1000, optax.sgd(1.0), record=[0, 1000]).entropy.values for r in "
                "(False, True)])"
            ),
        },
    )


DIVERSITIES = {
    "identical": DiversityTask("identical"),
    "2 clusters": DiversityTask("clustered", clusters=2),
    "3 clusters": DiversityTask("clustered"),
    "uniform": DiversityTask("uniform"),
}


@functools.cache
def diversity(name: str) -> dict[str, np.ndarray]:
    """Over 6 starts: the values' growth of spread, their mean cosine at the end, the fall of the
    attention's entropy."""
    task = DIVERSITIES[name]
    starts = [replace(task, seed=seed).model().start for seed in range(6)]
    data = descend(
        task.model(), 3000, SGD, over={"start": starts}, record=[0, 3000], progress=False
    )
    values = data["values"].isel(sequence=0).values
    centred = values - values.mean(axis=-2, keepdims=True)
    spread = np.linalg.norm(centred, axis=(-1, -2))
    unit = values[:, -1] / np.linalg.norm(values[:, -1], axis=-1, keepdims=True)
    count = unit.shape[1]
    cosines = np.sum(unit.sum(axis=1) ** 2, axis=-1)  # of all pairs, with count ones
    return {
        "spread_grows_by": spread[:, 1] / spread[:, 0],
        "mean_cosine": (cosines - count) / (count * (count - 1)),
        "entropy_falls_by": data.entropy.values[:, 0] - data.entropy.values[:, -1],
    }


@LEDGER.claim(
    "query-diversity",
    where="Mechanism 2, break condition; next check 2",
    statement="If all queries have the same error direction, values collapse toward one prototype; "
    "with different ones they specialize.",
    hypotheses="24 queries with free scores and values, 8 classes, 3,000 steps at rate 1, 6 starts "
    "each; errors identical, in 2 or 3 clusters, or uniform over the classes. Collapse: the "
    "values' root mean square distance to their mean falls to less than half.",
    kind="sign",
    recorded="holds_corrected",
    broken={"alike": "uniform"},
)
def query_diversity(alike: str = "identical") -> Finding:
    found = {name: diversity(name) for name in DIVERSITIES}
    same, others = found[alike], [found[name] for name in DIVERSITIES if name != "identical"]
    printed = [0.5 - same["spread_grows_by"]]
    mended = [
        0.1 - np.abs(same["spread_grows_by"] - 1),
        same["mean_cosine"] - 0.5,
        0.05 - same["entropy_falls_by"],
    ]
    mended += [each["spread_grows_by"] - 1.5 for each in others]
    mended += [each["entropy_falls_by"] - 0.05 for each in others]
    shown = {
        "means": {
            name: {measure: float(each.mean()) for measure, each in measures.items()}
            for name, measures in found.items()
        },
        "run": rerun(
            "import optax; d = af.descend(af.head.DiversityTask('identical').model(), 3000, "
            "optax.sgd(1.0)); print(d['values'].std('key').values[[0, -1]])"
        ),
    }
    return corrected(
        inequality(printed, counterexample=lambda _: shown),
        inequality(mended),
        "Under identical errors the values move together and keep their differences (their spread "
        "stays within a tenth, while their mean cosine rises above a half) and attention stays "
        "diffuse; two clusters of errors are enough for the spread to grow and attention to "
        "sharpen.",
    )


def uneven_chain(stays: np.ndarray, length: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A chain in which symbol s repeats with chance stays[s], else any other follows."""
    rng = np.random.default_rng(seed)
    size, chain = len(stays), [0]
    for stay, jump in zip(rng.random(length), rng.integers(1, size, length), strict=True):
        last = chain[-1]
        chain.append(last if stay < stays[last] else int((last + jump) % size))
    return np.array(chain[:-1])[None], np.array(chain[1:])[None]


def chain_entropies(stays: np.ndarray) -> np.ndarray:
    """Of the next symbol given the present one (symbol)."""
    move = 1 - stays
    return -stays * np.log(stays) - move * np.log(move / (len(stays) - 1))


@functools.cache
def entropy_alignment(stays: tuple[float, ...], seeds: int = 4) -> np.ndarray:
    """|Correlation| of the trained values' first component with the posterior entropy, (seed)."""
    symbols, targets = uneven_chain(np.array(stays), 2000, 0)
    size = len(stays)
    shapes = head_shapes(size, 16, 16, size)
    starts = [random_start(np.random.default_rng([seed, 1]), shapes, 1.0) for seed in range(seeds)]
    head = SymbolHead(
        symbols=symbols,
        targets=targets,
        start=starts[0],
        classes=size,
        embedding=np.eye(size),
    )
    data = descend(head, 2000, SGD, over={"start": starts}, record=[0, 2000], progress=False)
    entropies = chain_entropies(np.array(stays))
    values = data["values"].values[:, -1]
    return np.array(
        [alignment(principal_shape(cloud).coordinates[:, 0], entropies) for cloud in values]
    )


@LEDGER.claim(
    "posterior-entropy-axis",
    where="Foundational concept 3; experiment 3",
    statement="Trained values lie along a curve whose parameter is the posterior entropy: their "
    "first component correlates with it (above 0.9).",
    hypotheses="Values of the symbols; the entropy is that of the next symbol given the present "
    "one. The document's chain: every symbol stays with chance 0.3.",
    kind="existence",
    recorded="not_checkable",
    broken={"stays": (0.05, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75)},
)
def posterior_entropy_axis(stays: tuple[float, ...] = (0.3,) * 8) -> Finding:
    entropies = chain_entropies(np.array(stays))
    if np.ptp(entropies) < 1e-12:
        return Finding(
            "not_checkable",
            0.0,
            len(stays),
            {
                "posterior_entropy_of_every_symbol": float(entropies[0]),
                "run": rerun("print(af.head.ChainTask().chain().transition)"),
            },
            "On the symmetric chain every symbol has the same posterior entropy: there is nothing "
            "to lie along. On a chain whose symbols stay with chances 0.05 to 0.75 the first "
            "component does not follow the entropy (correlations below 0.5).",
        )
    found = entropy_alignment(stays)
    return inequality(
        found - 0.9,
        counterexample=lambda _: {
            "stays": list(stays),
            "correlations": found.tolist(),
            "run": rerun(
                "from attnflow.papers.routing._shape import *; "
                f"print(entropy_alignment({tuple(stays)}))"
            ),
        },
    )
