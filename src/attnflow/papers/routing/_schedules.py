"""Is descent with faster values faster, is that because it is EM, and is its attention sharper?"""

import functools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import xarray as xr
from scipy.special import softmax

from attnflow.instruments.routing import Freezing, freezing
from attnflow.models.head import ChainTask
from attnflow.papers.ledger import Finding, corrected, inequality
from attnflow.papers.routing._ledger import LEDGER, rerun
from attnflow.papers.routing._study import Study, joined, reached, run, when_reached

SETTING = (
    "Sticky chain of 8 symbols, T = 2,000, self-transition 0.3. Chosen by us: other transitions "
    "even, no positions, one-hot tokens, d_k = d_v = 16, weights of variance 1/rows, biases "
    "from 0 and never sped up, full-batch descent on one chain, loss averaged over positions."
)
PUBLISHED = Study(records=26)
BOTH_SIDES = replace(PUBLISHED, schedules=("values and output", "routing"), seeds=3)
EVERYTHING = replace(PUBLISHED, schedules=("all", "mean"), seeds=2)
ONE_RATE = replace(PUBLISHED, rates=(0.3,), seeds=3)
OTHER_CHOICES = {
    "width 64": replace(ONE_RATE, task=ChainTask(width=64)),
    "scale 0.3 of the start": replace(ONE_RATE, task=ChainTask(scale=0.3)),
    "scale 3 of the start": replace(ONE_RATE, task=ChainTask(scale=3.0)),
}
# Late descent at such rates bounces, every step against the last: records are even steps apart.
LONG = Study(rates=(2.0,), steps=2000, records=51)
ADAM = Study(rates=(0.003,), steps=1200, records=61, optimizer="adam")


def steps_taken(data: xr.Dataset, schedule: str) -> np.ndarray:
    """As `reached`, (seed, rate); a run that does not get there in time counts as all its steps."""
    return np.minimum(reached(data, schedule), float(data.step[-1]))


@functools.cache
def stated() -> dict[str, np.ndarray]:
    """Steps (seed) of W_V alone in our setting, by rate."""
    data = run(PUBLISHED)
    steps = steps_taken(data, "values").T
    return {f"W_V, rate {rate:g}": each for rate, each in zip(PUBLISHED.rates, steps, strict=True)}


@functools.cache
def open_choices() -> dict[str, np.ndarray]:
    """Steps (seed) for other readings of what the document leaves open."""
    steps = steps_taken(joined(PUBLISHED, BOTH_SIDES), "values and output").T
    found = {
        f"W_V and W_O, rate {rate:g}": each
        for rate, each in zip(PUBLISHED.rates, steps, strict=True)
    }
    with ThreadPoolExecutor(2) as pool:  # one compiles while the other runs
        data = pool.map(run, OTHER_CHOICES.values())
    return found | {
        f"W_V, rate 0.3, {name}": steps_taken(each, "values")[:, 0]
        for name, each in zip(OTHER_CHOICES, data, strict=True)
    }


def mean_and_spread(steps: np.ndarray) -> list[float]:
    return [round(float(np.mean(steps)), 1), round(float(np.std(steps, ddof=1)), 1)]


@LEDGER.claim(
    "em-speedup",
    where="Key results; section 7.2",
    statement="With a tenfold rate for the values, descent reaches uniform SGD's 1,000-step loss "
    "in 430 ± 143 steps (2.3×), whatever the choices that the document leaves open.",
    hypotheses=f"{SETTING} The mean over seeds must lie within 430 ± 143: 8 seeds for W_V at rates "
    "0.1, 0.3, 1; 3 seeds for W_V and W_O, and at rate 0.3 for other starts and widths. "
    "Every seed must get there; in means, one that does not counts as 1,000 steps.",
    kind="inequality",
    recorded="holds_corrected",
    broken={"steps": 43.0, "spread": 14.3},
)
def em_speedup(steps: float = 430.0, spread: float = 143.0) -> Finding:
    table = stated() | open_choices()
    late = {name: int(np.sum(each >= PUBLISHED.steps)) for name, each in table.items()}
    inside = {
        name: spread - abs((PUBLISHED.steps if late[name] else each.mean()) - steps)
        for name, each in table.items()
    }
    missed = [name for name, slack in inside.items() if slack <= 0]
    smaller = run(replace(ONE_RATE, factor=5.0))
    shown = {
        "mean_and_spread_of_steps": {name: mean_and_spread(each) for name, each in table.items()},
        "with_factor_5_rate_0.3": mean_and_spread(steps_taken(smaller, "values")),
        "seeds_that_do_not_get_there": {name: count for name, count in late.items() if count},
        "outside": missed,
        "run": rerun(
            "from attnflow.papers.routing._study import *; d = run(Study(schedules=('uniform', "
            "'values', 'values and output'), seeds=3)); print({s: reached(d, s).mean(0) for s in "
            "d.schedule.values})"
        ),
    }
    ours = [inside[name] for name in stated()]
    return corrected(
        inequality(list(inside.values()), counterexample=lambda _: shown),
        inequality(ours),
        "It holds for W_V alone in our setting at rates 0.1, 0.3 and 1, with a smaller spread over "
        f"seeds than printed; it fails for: {'; '.join(missed)}.",
    )


@LEDGER.claim(
    "em-reading",
    where="Mechanism 3; section 7.2",
    statement="The gain of the tenfold value rate is due to the split into E and M steps: the same "
    "factor placed otherwise gains less.",
    hypotheses=f"{SETTING} Factor 10 on W_Q and W_K instead (routing), on all four weights (all), "
    "and 10^¼ on all four (mean, the geometric mean of the factors of W_V alone); rates 0.1, 0.3 "
    "and 1; mean steps to uniform SGD's 1,000-step loss over the same 3 or 2 seeds.",
    kind="inequality",
    recorded="refuted",
    broken={"controls": ("mean",)},
)
def em_reading(controls: tuple[str, ...] = ("routing", "all", "mean")) -> Finding:
    steps, slack = {}, []
    for control in controls:
        study = BOTH_SIDES if control == "routing" else EVERYTHING
        data = joined(PUBLISHED, study)
        ours, other = (steps_taken(data, name).mean(axis=0) for name in ("values", control))
        steps[control] = {"values": ours.round(1).tolist(), control: other.round(1).tolist()}
        slack.append(np.log(other / ours))
    return replace(
        inequality(
            slack,
            counterexample=lambda _: {
                "rates": list(PUBLISHED.rates),
                "mean_steps": steps,
                "run": rerun(
                    "from attnflow.papers.routing._study import *; d = run(Study(schedules=("
                    "'uniform', 'values', 'routing'), seeds=3)); print({s: reached(d, s).mean(0) "
                    "for s in d.schedule.values})"
                ),
            },
        ),
        correction="Faster W_Q and W_K instead of W_V gain more, and a tenfold rate of all four "
        "weights gains about tenfold. Only the geometric mean of the factors, spread evenly, gains "
        "less (about 1,000/10^¼ steps): a larger rate somewhere helps, and the values are not the "
        "best place for it.",
    )


@LEDGER.claim(
    "sharper-attention",
    where="Abstract",
    statement="EM-like schedules reach sharp attention faster: when they have the loss that "
    "uniform SGD has after 1,000 steps, their attention has no more entropy than its.",
    hypotheses=f"{SETTING} Rates 0.1, 0.3, 1; 8 seeds.",
    kind="inequality",
    recorded="refuted",
    broken={"schedule": "routing"},
)
def sharper_attention(schedule: str = "values") -> Finding:
    data = run(PUBLISHED) if schedule == "values" else joined(PUBLISHED, BOTH_SIDES)
    uniform = data.entropy.sel(schedule="uniform").values[..., -1]
    equal_loss = uniform - when_reached(data, "entropy", schedule)
    equal_steps = uniform - data.entropy.sel(schedule=schedule).values[..., -1]
    return replace(
        inequality(
            equal_loss,
            counterexample=lambda _: {
                "rates": list(PUBLISHED.rates),
                "mean_entropy_uniform_minus_EM_at_equal_loss": equal_loss.mean(0).tolist(),
                "mean_entropy_uniform_minus_EM_at_1000_steps": equal_steps.mean(0).tolist(),
                "share_of_runs_sharper_at_equal_loss": float(np.mean(equal_loss > 0)),
                "run": rerun(
                    "from attnflow.papers.routing._study import *; d = run(Study(seeds=2)); print("
                    "d.entropy.sel(schedule='uniform').values[..., -1] - when_reached(d, "
                    "'entropy', 'values'))"
                ),
            },
        ),
        correction="At equal loss the EM-like run has the more diffuse attention in every run: its "
        "values do the work that attention does in uniform SGD.",
    )


class Order(NamedTuple):
    """Steps at which attention and values freeze, by one definition, (seed)."""

    attention: np.ndarray
    values: np.ndarray

    def share(self, first: str = "attention") -> float:
        """Of seeds in which `first` is strictly first."""
        before = self.values - self.attention
        return float(np.mean(before > 0 if first == "attention" else before < 0))


@functools.cache
def freezing_order(study: Study, schedule: str, rate: float) -> dict[str, Order]:
    """By every definition; attention is the softmax of the scores of symbol pairs."""
    data = run(study).sel(schedule=schedule, rate=rate)
    attention, values = softmax(data.scores.values, axis=-1), data["values"].values
    steps = data.step.values
    times = np.array(
        [[freezing(steps, path) for path in pair] for pair in zip(attention, values, strict=True)]
    )
    return {name: Order(*times[:, :, i].T) for i, name in enumerate(Freezing._fields)}


FROZEN = {
    "uniform SGD, 1,000 steps at 0.3": (PUBLISHED, "uniform", 0.3),
    "uniform SGD, 1,000 steps at 1": (PUBLISHED, "uniform", 1.0),
    "uniform SGD, 2,000 steps at 2": (LONG, "uniform", 2.0),
    "W_V tenfold, 2,000 steps at 2": (LONG, "values", 2.0),
    "Adam": (ADAM, "uniform", 0.003),
    "Adam, W_V tenfold": (ADAM, "values", 0.003),
}
UNIFORM = tuple(name for name in FROZEN if name.startswith("uniform"))
FREEZING = (
    "Frozen, by three definitions with tolerance 0.05: near its end, slow, or half its path behind "
    "it; attention must be strictly first in more than half of 8 seeds by each of them"
)


def freezes_first(
    cases: tuple[str, ...], definitions: tuple[str, ...], first: str = "attention"
) -> Finding:
    orders = {name: freezing_order(*each) for name, each in FROZEN.items()}
    return inequality(
        [[orders[case][by].share(first) - 0.5 for by in definitions] for case in cases],
        counterexample=lambda _: {
            "share_of_seeds_with_attention_first": {
                name: {by: order.share() for by, order in each.items()}
                for name, each in orders.items()
            },
            "mean_steps_of_attention_and_values": {
                name: {
                    by: [round(float(side.mean()), 1) for side in order]
                    for by, order in each.items()
                }
                for name, each in orders.items()
            },
            "run": rerun(
                "from attnflow.papers.routing._schedules import *; print({by: order.share() for "
                f"by, order in freezing_order(*FROZEN['{cases[0]}']).items()}})"
            ),
        },
    )


@LEDGER.claim(
    "attention-freezes-first",
    where="Mechanism 3; section 6.1",
    statement="Under uniform SGD attention freezes before the values do.",
    hypotheses=f"{SETTING} {FREEZING}. 1,000 steps at rates 0.3 and 1, 2,000 at rate 2.",
    kind="sign",
    recorded="refuted",
    broken={"cases": UNIFORM[-1:], "definitions": ("half_way",)},
)
def attention_freezes_first(
    cases: tuple[str, ...] = UNIFORM, definitions: tuple[str, ...] = Freezing._fields
) -> Finding:
    return replace(
        freezes_first(cases, definitions),
        correction="In the document's 1,000 steps the values are rather the first, by every "
        "definition; in 2,000 steps at rate 2 attention is first in most seeds by half its path "
        "only, and the tenfold value rate reverses that. Neither has settled: both still move when "
        "the runs end.",
    )


@LEDGER.claim(
    "adam-two-timescale",
    where="Open question 3",
    statement="Adam keeps the order of the two time scales: attention freezes before the values.",
    hypotheses=f"{SETTING} {FREEZING}. 1,200 steps of Adam at 0.003. The document leaves it open; "
    "this is the affirmative answer.",
    kind="sign",
    recorded="refuted",
    broken={"case": "Adam, W_V tenfold", "first": "values"},
)
def adam_two_timescale(case: str = "Adam", first: str = "attention") -> Finding:
    return replace(
        freezes_first((case,), Freezing._fields, first),
        correction="Attention is first in most seeds by half its path only; with the tenfold value "
        "rate the values are, by every definition.",
    )
