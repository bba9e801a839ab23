"""How long specialization takes as the dimension grows."""

import dataclasses

import matplotlib as mpl
import numpy as np
import xarray as xr
from scipy.integrate import cumulative_trapezoid

from attnflow.dynamics.sgd import sgd
from attnflow.instruments import split_times
from attnflow.models.single_location import SingleLocation, growth, plateau
from attnflow.papers.specialization._drawing import GALLERY
from attnflow.papers.specialization._figures_flow import flow_from, params_at, signal_of
from attnflow.papers.style import COLORS, STYLE, canvas


@dataclasses.dataclass(frozen=True)
class Dimensions:
    """Split times of `runs` SGD runs a dimension, batches of D, without D or the batch in the
    cost."""

    signal: tuple = ("flipping", 2.0, 2.0)
    tokens: int = 10
    heads: int = 2
    decades: tuple[int, ...] = (3, 4, 6, 8)
    runs: int = 6
    rate: float = 0.5
    last: float = 160.0
    samples: int = 1024
    seed: int = 0


def dimensions(config: Dimensions) -> xr.Dataset:
    base = SingleLocation(
        signal_of(config.signal),
        tokens=config.tokens,
        heads=config.heads,
        samples=config.samples,
    )
    split = np.empty((len(config.decades), config.runs))
    for row, decade in enumerate(config.decades):
        model = dataclasses.replace(base, dimension=10.0**decade)
        steps = round(config.last / config.rate)
        run = sgd(model, steps, config.rate, level="batch_free", runs=config.runs, record=steps + 1)
        times = run.time.values
        split[row] = [split_times(times, m)[-1] for m in run.m.values]
    times = np.linspace(0, config.last, 80)
    base = dataclasses.replace(base, points=base.fresh_points(8 * config.samples, config.seed))
    return xr.Dataset(
        {
            "split_time": (("dimension", "run"), split),
            "rate": _rate(base, plateau(base)),
            "rate_along": ("time", _rates_along(base, times)),
        },
        {"dimension": 10.0 ** np.array(config.decades), "time": times},
    )


def _rate(model: SingleLocation, params: dict[str, np.ndarray]) -> float:
    """Growth of differences on the last feature."""
    found = growth(model, params)
    return float(found.rates[np.argmax(np.abs(found.directions[:, -1]))])


def _rates_along(model: SingleLocation, times: np.ndarray) -> np.ndarray:
    """The same while heads that start without any alignment learn the mean and lose their noise."""
    heads, features = model.heads, model.signal.features
    start = {"m": np.zeros((heads, features)), "r": np.eye(heads)}
    flow = flow_from(model, start, times, rtol=1e-4)
    return np.array([_rate(model, params_at(flow, time)) for time in range(times.size)])


def slope_in_log(dimension: np.ndarray, split: np.ndarray) -> tuple[float, float]:
    """Least squares τ = slope · ln D + offset through the medians over runs."""
    slope, offset = np.polyfit(np.log(dimension), np.median(split, axis=1), 1)
    return float(slope), float(offset)


def grown_by(times: np.ndarray, rates: np.ndarray, amounts: np.ndarray) -> np.ndarray:
    """When ∫ rate dτ reaches each amount; the last rate goes on beyond the last time."""
    grown = cumulative_trapezoid(rates, times, initial=0)
    rising = np.maximum.accumulate(grown)
    inside = np.interp(amounts, rising, times)
    return np.where(amounts > grown[-1], times[-1] + (amounts - grown[-1]) / rates[-1], inside)


@mpl.rc_context(STYLE)
def draw_dimensions(ds: xr.Dataset):
    figure, axes = canvas(1, 1, width=4.6, height=3.2)
    ax = axes[0, 0]
    dimension = ds.dimension.values
    ax.semilogx(dimension, ds.split_time, "o", ms=3, color=COLORS[0], alpha=0.6)
    median = np.median(ds.split_time, axis=1)
    ax.semilogx(dimension, median, "D", ms=6, color=COLORS[0], label="SGD, median of runs")
    slope, offset = slope_in_log(dimension, ds.split_time.values)
    logs = np.log(dimension)
    label = rf"fit: {slope:.2f} $\ln D$"
    ax.semilogx(dimension, slope * logs + offset, color=COLORS[0], lw=1, label=label)
    predicted = 1 / (2 * float(ds.rate))
    through = median.mean() + predicted * (logs - logs.mean())
    label = rf"slope $1/(2\lambda^*)={predicted:.2f}$, $\lambda^*={float(ds.rate):.3f}$"
    ax.semilogx(dimension, through, color=COLORS[3], ls="--", label=label)
    grown = grown_by(ds.time.values, ds.rate_along.values, logs / 2)
    shift = float(np.nanmean(median - grown))
    label = r"$\int\lambda\,d\tau=\frac{1}{2}\ln D$, noise included"
    ax.semilogx(dimension, grown + shift, color=COLORS[2], ls=":", lw=2, label=label)
    ax.set(xlabel="dimension $D$", ylabel=r"specialization time $\tau_s$")
    ax.legend(fontsize=7)
    return figure


GALLERY.figure(
    "dimension",
    tour=False,
    title="Specialization takes a time of order log D",
    caption="When two softmax heads are 0.5 apart on the flipping feature (ν₁ = ν₂ = 2, L = 10, "
    "η = 1, batches of D), D from 10³ to 10⁸: SGD whose steps cost the same at every D, the same "
    "random numbers at each D. A start of size D^(−1/2) that grows like e^(λτ) needs ln D/(2λ). "
    "Dashed: λ* of the plateau where heads are alike, have the mean's direction and no noise, the "
    "limit of large D. Dotted: λ along the flow, on which the heads' noise is still fading. The "
    "rest of the difference is the noise that a finite rate keeps up: the slope is 7.5 at rate "
    "0.5, 7.1 at 0.2 and 6.1 at 0.05, where the dotted line also has 6.1. At D = 10⁴ the median "
    "is above 60, not 10. Not a figure of the paper. Quick: 6 runs, rate 0.5, 1,024 points.",
    quick=Dimensions(),
    paper=Dimensions(decades=(3, 4, 5, 6, 7, 8), runs=16, rate=0.1, samples=2048),
    draw=draw_dimensions,
)(dimensions)
