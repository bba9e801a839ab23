"""The students of both teachers, from several seeds: what the vision figures and rows share."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import xarray as xr

from attnflow.papers import pretrained
from attnflow.papers.conditioning._vision import TEACHERS, VISION, VisionTrial, needs_mnist
from attnflow.papers.trials import Trials

RATES = (0.001, 0.01, 0.1)


@dataclasses.dataclass(frozen=True)
class VisionStudy:
    """Both teachers, every rate, every seed; all else as in `trial`."""

    trial: VisionTrial
    rates: tuple[float, ...]
    seeds: tuple[int, ...]

    def trials(self) -> list[VisionTrial]:
        return [
            dataclasses.replace(self.trial, sparsity=sparsity, rate=rate, seed=seed)
            for sparsity in TEACHERS
            for rate in self.rates
            for seed in self.seeds
        ]


SMALL = VisionTrial(images=4000, steps=1600, every=50, batch=16, examples=300)
QUICK = VisionStudy(SMALL, rates=(0.1,), seeds=(0, 1, 2))
PAPER = VisionStudy(VisionTrial(), RATES, seeds=(0, 1, 2))
TRIALS = Trials(VISION, VisionStudy.trials)


def arranged(study: VisionStudy, found: Sequence[xr.Dataset]) -> xr.Dataset:
    """All runs, (sparsity, seed, …), at the `rate` with the lowest loss in the end, its geometric
    mean over teachers and seeds. `normalized`: loss over that of the untrained student."""
    found = list(found)
    by_rate = {rate: [] for rate in study.rates}
    for trial, run in zip(study.trials(), found, strict=True):
        by_rate[trial.rate].append(run)
    level = {
        rate: np.mean([np.nan_to_num(np.log(run.end), nan=np.inf) for run in runs])
        for rate, runs in by_rate.items()
    }
    rate = min(level, key=lambda each: level[each])
    count = len(study.seeds)
    rows = [xr.concat(by_rate[rate][k : k + count], "seed") for k in (0, count)]
    both = xr.concat(rows, "sparsity")
    names = {"sparsity": list(TEACHERS), "seed": list(study.seeds)}
    both = both.assign(normalized=both.loss / both.start, rate=rate).assign_coords(names)
    return both.assign_attrs(setting=setting(study))


def setting(study: VisionStudy) -> str:
    """What was done, and what the paper does if that differs."""
    trial, rates = study.trial, ", ".join(f"{rate:g}" for rate in study.rates)
    words = (
        f"{trial.images:,} images, {trial.steps:,} steps of {trial.batch}, seeds: "
        f"{len(study.seeds)}, rates: {rates}; {trial.examples:,} held-out images"
    )
    published = "60,000 images, 3 seeds, rate 0.01, about 2,000 held-out images"
    return words if study == PAPER else f"{words}. Published: {published}"


def lacking() -> str:
    return pretrained.missing(needs_mnist)
