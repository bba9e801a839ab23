"""The single-location model: averages, quasi-random points and reduced SGD, against the obvious."""

import functools
import importlib
from typing import Any

import equinox as eqx
import jax
import numpy as np

from attnflow.dynamics.sgd import sgd
from attnflow.models.single_location import SingleLocation, estimate, flipping_spike
from benchmarks.timing import best

Row = tuple[str, str, str, str]
TOKENS, HEADS, SAMPLES = 10, 2, 100_000


def numpy_gradient(m, r, seen, noise):
    """The risk and its gradient, all samples at once; the signal is in seen (sample, token,
    feature)."""
    scores = np.einsum("hf,nlf->nhl", m, seen) + np.einsum("hk,nlk->nhl", r, noise)
    grown = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = grown / grown.sum(axis=-1, keepdims=True)
    misses = weights.mean(axis=1)
    misses[:, 0] -= 1
    up = 2 * misses / m.shape[0]
    slope = weights * (up[:, None] - np.sum(weights * up[:, None], axis=-1, keepdims=True))
    slope /= len(seen)
    risk = np.mean(np.sum(misses**2, axis=1))
    return risk, np.einsum("nhl,nlf->hf", slope, seen), np.einsum("nhl,nlk->hk", slope, noise)


def torch_gradient(m, r, seen, noise):
    torch: Any = importlib.import_module("torch")

    m, r = (x.detach().requires_grad_(True) for x in (m, r))
    scores = torch.einsum("hf,nlf->nhl", m, seen) + torch.einsum("hk,nlk->nhl", r, noise)
    output = torch.softmax(scores, dim=-1).mean(dim=1)
    target = torch.zeros(output.shape[1], dtype=output.dtype)
    target[0] = 1
    loss = ((output - target) ** 2).sum(dim=-1).mean()
    return torch.autograd.grad(loss, (m, r))


value_and_slope = eqx.filter_jit(SingleLocation.value_and_slope)
slope_of = eqx.filter_jit(lambda model, params: jax.grad(model.loss)(params))


def averages() -> list[Row]:
    signal = flipping_spike(2.0, 2.0)
    rng = np.random.default_rng(0)
    params = {"m": 0.3 * rng.normal(size=(HEADS, 2)), "r": np.eye(HEADS)}
    seen = rng.normal(size=(SAMPLES, TOKENS, 2))
    noise = rng.normal(size=(SAMPLES, TOKENS, HEADS))
    seen[:, 0] += signal.points()[rng.integers(2, size=SAMPLES)]
    model = SingleLocation(signal, tokens=TOKENS, heads=HEADS, samples=SAMPLES)
    count, ours = model.points.count, {}
    half = SingleLocation(signal, tokens=TOKENS, heads=HEADS, samples=SAMPLES // 2)
    with jax.enable_x64(True):
        _, once = best(lambda: jax.block_until_ready(slope_of(model, params)), 15)
        ours["over 10⁵ samples, one thread"] = once * SAMPLES / count
    _, spread = best(lambda: estimate(half, params, replicates=2), 15)
    ours["over 10⁵ samples, with the risk and error bars, `estimate` on two threads"] = (
        spread * SAMPLES / (2 * half.points.count)
    )
    worse, better, few = gradient_errors()
    with jax.enable_x64(True):
        _, once = best(lambda: jax.block_until_ready(slope_of(few, params)), 15)
    ours["to the error of 10⁵ random samples, one thread"] = once * (better / worse) ** 2
    rows = []
    for rival, call in rivals(params, seen, noise).items():
        _, theirs = best(call, 7)
        rows += [
            (
                f"gradient of the risk, L = 10, H = F = 2, {name}",
                f"{rival}: {theirs * 1e3:.0f} ms",
                f"{seconds * 1e3:.1f} ms",
                f"{theirs / seconds:.1f}×",
            )
            for name, seconds in ours.items()
        ]
    return rows


def rivals(params, seen, noise):
    """Plain samples, all at once."""
    calls = {"NumPy": lambda: numpy_gradient(**params, seen=seen, noise=noise)}
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        return calls
    arrays = [torch.from_numpy(x) for x in (params["m"], params["r"], seen, noise)]
    return calls | {f"PyTorch {torch.__version__}": lambda: torch_gradient(*arrays)}


@functools.cache
def variances():
    """Of the risk and of each entry of its gradient, over 16 independent sets of 10⁵ plain samples,
    and of ours of under a tenth; and a model with so many."""
    signal = flipping_spike(2.0, 2.0)
    params = {"m": np.array([[1.0, 0.4], [1.1, -0.5]]), "r": 0.5 * np.eye(HEADS)}
    plain, quasi = [], []
    model = SingleLocation(signal, tokens=TOKENS, heads=HEADS, samples=8192)
    with jax.enable_x64(True):
        for seed in range(16):
            rng = np.random.default_rng(seed)
            seen = rng.normal(size=(SAMPLES, TOKENS, 2))
            seen[:, 0] += signal.points()[rng.integers(2, size=SAMPLES)]
            noise = rng.normal(size=(SAMPLES, TOKENS, HEADS))
            risk, *slopes = numpy_gradient(**params, seen=seen, noise=noise)
            plain.append([risk, *np.concatenate(slopes, axis=1).ravel()])
            model = SingleLocation(signal, tokens=TOKENS, heads=HEADS, samples=8192, seed=seed)
            risk, slope = value_and_slope(model, params)
            quasi.append([risk, *np.concatenate([slope["m"], slope["r"]], axis=1).ravel()])
    return *(np.var(np.array(x, float), axis=0, ddof=1) for x in (plain, quasi)), model


def gradient_errors():
    theirs, ours, model = variances()
    return np.sqrt(np.mean(theirs[1:])), np.sqrt(np.mean(ours[1:])), model


def points() -> list[Row]:
    theirs, ours, model = variances()
    rows = []
    for name, pick in {"risk": slice(0, 1), "gradient": slice(1, None)}.items():
        worse, better = (np.sqrt(np.mean(x[pick])) for x in (theirs, ours))
        rows.append(
            (
                f"standard error of the {name} from quasi-random points",
                f"10⁵ plain samples: {worse:.1e}",
                f"{better:.1e} from {model.points.count:,} points",
                f"{(worse / better) ** 2 * SAMPLES / model.points.count:.0f}× fewer for the same",
            )
        )
    return rows


def reduced_sgd() -> list[Row]:
    def seconds_a_step(dimension: int, level: str, steps: int) -> float:
        model = SingleLocation(flipping_spike(), tokens=TOKENS, heads=HEADS, dimension=dimension)
        return best(lambda: sgd(model, steps, level=level, record=2), repeats=2)[1] / steps

    direct, exact = seconds_a_step(2000, "direct", 2), seconds_a_step(2000, "exact", 40)
    rows = [
        (
            "a step of SGD at D = batch = 2,000, exact in law",
            f"in 2,000 dimensions: {direct * 1e3:,.0f} ms",
            f"{exact * 1e3:.1f} ms",
            f"{direct / exact:,.0f}×",
        )
    ]
    for dimension in (10**3, 10**8):
        step = seconds_a_step(dimension, "batch_free", 40)
        name = f"a batch-free step of SGD at D = batch = 10^{round(np.log10(dimension))}"
        rows.append((name, "", f"{step * 1e3:.1f} ms", ""))
    return rows


SECTIONS = {"averages": averages, "points": points, "reduced_sgd": reduced_sgd}
