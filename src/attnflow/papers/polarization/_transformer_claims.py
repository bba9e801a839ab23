"""What the paper says of its transformers, by effect size against its spread over three seeds."""

import dataclasses
from typing import Any

import numpy as np
import xarray as xr

from attnflow.papers.ledger import Finding, corrected, inequality
from attnflow.papers.polarization._induction import ATTENTIONS, INDUCTION, POSITIVE, SMALL, Trial
from attnflow.papers.polarization._induction_figures import SINK, Patterns, Sinks, learned, measured
from attnflow.papers.polarization._ledger import LEDGER
from attnflow.papers.polarization._swap_figures import Flips
from attnflow.papers.polarization._swap_figures import measured as flips_of
from attnflow.papers.polarization._swaps import GROUPS
from attnflow.papers.trials import clear, collect

SEEDS = (0, 1, 2)
FEW = 0.25  # a share of sinks that is hardly any
DEPTHS = ((1, 4), (2, 1), (2, 4))  # layers, heads
SIZES = (
    "Quick sizes: 20 symbols, context 6, width 64, batches of 64 that never repeat, rate 0.003, "
    "until 300 steps after the task is learned, three seeds."
)
NOT_A_SHARE = (
    "It is so for BOS's share of absolute weights. The published score divides by the sum of "
    "signed weights, which can pass zero: it calls linear heads sinks that give BOS less than half "
    "of their weight."
)
FLIP_SIZES = "Quick sizes: width 64, 200 batches of 64 that never repeat, rate 0.003, three seeds."


def shares(
    random_weight: float,
    heads: int = 4,
    attention: tuple[str, ...] = ATTENTIONS,
    absolute: bool = False,
) -> xr.DataArray:
    """The share of sinks (attention, seed); NaN where the task was not learned. absolute: by shares
    of absolute weight, not by the published score."""
    trial = dataclasses.replace(SMALL, random_weight=random_weight)
    config = Sinks(trial, attention, heads=(heads,), seed=SEEDS)
    runs = collect(INDUCTION, config.grid)
    if absolute:
        runs = [
            run.assign(sink=("head", absolute_shares(run, each)))
            for run, each in zip(runs, config.grid, strict=True)
        ]
    found = learned(measured(config, runs))
    return found.squeeze(["heads", "positions", "same_target", "rate"], drop=True)


def absolute_shares(run: xr.Dataset, trial: Trial) -> np.ndarray:
    """By head, BOS's share of the absolute weights of one sequence where nothing can be known."""
    rows = np.abs(run.pattern.values[-1])[:, list(trial.task.random_positions)]
    return (rows[..., 0] / rows.sum(-1)).mean(-1)


def told(values: xr.DataArray) -> dict[str, float]:
    return {str(name): float(values.sel(attention=name).mean()) for name in values.attention.values}


@LEDGER.claim(
    "figure-1",
    where="Figure 1",
    statement="After induction the second layer of a softmax transformer has heads that are sinks "
    "where nothing can be known, and finds the answer; with sigmoid or linear attention that is "
    "divided by nothing it finds the answer too, without sinks.",
    hypotheses="Additive positions for softmax, concatenated ones for the others, t' ≠ t, "
    "λ = 0.2. A sink has a score above 0.9 (mended: a share of absolute weights, of one sequence); "
    f"the answer is found with accuracy above 0.95. {SIZES}",
    kind="inequality",
    recorded="holds_corrected",
    broken={"sparse": "sigmoid"},
    slow=True,
)
def figure_1(sparse: str = "softmax") -> Finding:
    trials = [dataclasses.replace(each, seed=seed) for each in Patterns().grid for seed in SEEDS]
    found = collect(INDUCTION, trials)
    accurate = [float(each.accuracy) - 0.95 for each in found]
    printed = [float(each.sink.max()) - SINK for each in found]
    absolute = [
        float(absolute_shares(*pair).max()) - SINK for pair in zip(found, trials, strict=True)
    ]
    signs = [1 if trial.attention == sparse else -1 for trial in trials]

    def facts(_):
        return {
            f"{trial.attention}, seed {trial.seed}": {
                "accuracy": float(each.accuracy),
                "greatest sink score": float(each.sink.max()),
                "of absolute weight": float(absolute_shares(each, trial).max()),
            }
            for trial, each in zip(trials, found, strict=True)
        }

    return corrected(
        inequality([*accurate, *np.multiply(signs, printed)], counterexample=facts),
        inequality([*accurate, *np.multiply(signs, absolute)]),
        NOT_A_SHARE,
    )


UNDIVIDED = ("sigmoid", "elu", "elu_elu")
SIGNED = ("linear_normalized", "linear", "mlp_normalized", "mlp")


@LEDGER.claim(
    "figure-4-ordering",
    where="Section 4.1, figure 4",
    statement="Attentions that are positive and divided by their sum form more sinks than their "
    "counterparts that are not divided, and than the signed ones (linear, mlp), for every number "
    "of heads.",
    hypotheses="Share of heads of the second layer with a sink score above 0.9; additive "
    "positions, t' ≠ t, λ = 0.2; runs with accuracy above 0.95. As printed: every counterpart, "
    f"one head and four; mended: means over the families, four heads. {SIZES}",
    kind="inequality",
    recorded="holds_corrected",
    broken={"divided": UNDIVIDED, "undivided": POSITIVE[1:]},
    slow=True,
)
def figure_4_ordering(
    divided: tuple[str, ...] = POSITIVE, undivided: tuple[str, ...] = UNDIVIDED
) -> Finding:
    several = shares(0.2)
    one = shares(0.2, heads=1, attention=(*POSITIVE, *UNDIVIDED))
    pairs = [(f"{name}_normalized", name) for name in UNDIVIDED]
    slack = [
        clear(found.sel(attention=a) - found.sel(attention=b))
        for found in (one, several)
        for a, b in pairs
    ]
    family = several.sel(attention=list(divided)).mean("attention")
    others = [several.sel(attention=list(each)).mean("attention") for each in (undivided, SIGNED)]
    return corrected(
        inequality(
            slack,
            counterexample=lambda _: {
                "share of sinks, one head": told(one),
                "share of sinks, four heads": told(several),
            },
        ),
        inequality([clear(family - each) for each in others]),
        "With four heads the family of positive divided attentions has the greater share. With one "
        "head undivided elu and sigmoid form sinks as well.",
    )


@LEDGER.claim(
    "figure-4-lambda-zero",
    where="Appendix E.1, figure 14",
    statement="With λ = 0, where only the answer is trained, hardly any attention forms sinks.",
    hypotheses="Hardly any: the share of sinks is below a quarter for every attention, in the mean "
    "over seeds; mended: those of which BOS has more than 0.9 of the absolute weight, on one "
    "sequence. Four heads, additive positions, t' ≠ t; runs with accuracy above 0.95. Quick sizes: "
    "as for λ = 0.2.",
    kind="inequality",
    recorded="holds_corrected",
    broken={"random_weight": 0.2},
    slow=True,
)
def figure_4_lambda_zero(random_weight: float = 0.0) -> Finding:
    printed = shares(random_weight)
    absolute = shares(random_weight, absolute=True)
    return corrected(
        inequality(
            [FEW - share for share in told(printed).values()],
            counterexample=lambda _: {"share of sinks": told(printed), "absolute": told(absolute)},
        ),
        inequality([FEW - share for share in told(absolute).values()]),
        NOT_A_SHARE,
    )


@LEDGER.claim(
    "figure-6-softmax-flips",
    where="Section 4.2, figure 6",
    statement="One exchanged token, that of the greatest weight, flips the prediction of a softmax "
    "transformer most of the time, and oftener than with attentions that are undivided or signed.",
    hypotheses="One layer of one head, MLP and LayerNorm, |V| = 41, 81 and 161. Both differences "
    f"(to one half, to each of the others) are above twice their spread over seeds. {FLIP_SIZES}",
    kind="inequality",
    recorded="holds",
    broken={"chosen": "sigmoid"},
    slow=True,
)
def figure_6_softmax_flips(chosen: str = "softmax") -> Finding:
    flip = flips(vocabulary=(40, 80, 160))
    own, others = flip.sel(attention=chosen), flip.sel(attention=[*UNDIVIDED, *SIGNED])
    slack = [clear(each - 0.5) for each in own]
    slack += [clear(one - other) for other in others for one, other in zip(own, other, strict=True)]
    return inequality(
        slack,
        counterexample=lambda _: {
            str(name): flip.sel(attention=name).mean("seed").values.round(3).tolist()
            for name in flip.attention.values
        },
    )


@LEDGER.claim(
    "figure-6-depth",
    where="Section 4.2, figure 21",
    statement="The flips of softmax vanish as heads or layers are added.",
    hypotheses="No MLP, no LayerNorm, |V| = 41; the head that flips most. Vanish: at most a tenth, "
    "in the mean over seeds, for four heads, for two layers, and for both; fall: by more than "
    f"twice the spread over seeds. {FLIP_SIZES}",
    kind="inequality",
    recorded="holds_corrected",
    broken={"first": (2, 4)},
    slow=True,
)
def figure_6_depth(first: tuple[int, int] = (1, 1)) -> Finding:
    flip = flips(
        attention=("softmax",), layers=(1, 2), heads=(1, 2, 4), mlp=(False,), norm=(False,)
    )
    at = {
        (layers, heads): flip.sel(layers=layers, heads=heads).squeeze() for layers, heads in DEPTHS
    }
    begin = flip.sel(layers=first[0], heads=first[1]).squeeze()
    means = {f"layers {key[0]}, heads {key[1]}": float(each.mean()) for key, each in at.items()}
    return corrected(
        inequality(
            [0.1 - share for share in means.values()],
            counterexample=lambda _: {"layers 1, heads 1": float(begin.mean()), **means},
        ),
        inequality([clear(begin - each) for each in at.values()]),
        f"They fall from {float(begin.mean()):.2f} to "
        + ", ".join(f"{share:.2f} ({name})" for name, share in means.items())
        + ": fewer, but one token in several still decides.",
    )


def flips(**fields: Any) -> xr.DataArray:
    """The greatest flip rate of a training's heads, over the fields that vary and the seeds."""
    config = Flips(seed=SEEDS, **fields)
    found = flips_of(config, collect(GROUPS, config.grid)).flip
    alone = [name for name in found.dims if found.sizes[name] == 1]
    return found.squeeze([name for name in alone if name != "attention"], drop=True)
