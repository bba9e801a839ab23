"""The paper's assumptions on keys and values, measured on the class token's heads."""

import numpy as np
import xarray as xr

from attnflow.instruments import (
    important_keys,
    leakage,
    leakage_sampled,
    log10_ratio,
    signal_subspace,
    softmax_conditioning,
)
from attnflow.papers.conditioning._class_token import Seen

DIRECTIONS = 200
EDGES = np.linspace(-2, 1, 31)  # of the histogram of log₁₀(‖k_U‖/‖k_I‖)


def measure(seen: Seen, seed: int) -> xr.Dataset:
    """By layer and head, over the examples:

    `rho_sampled`, `rho`: the greatest leakage ρ_U of an example, over 200 random directions and
    over all; `rho_typical`: the median over examples of the former; `rho_pooled`: over all
    directions, with the keys of all examples as those of one. Examples all of whose keys are
    important have no ρ_U and are left out; `undivided` is their share. `margin`: the least δ.
    `dimension` and `explained`: of the signal subspace, and its share of the important keys'
    variance. `outside`: how many important keys have log₁₀(‖k_U‖/‖k_I‖) between two `EDGES`
    (beyond: the last bin), and `mostly_inside`, the share with less than 0. By example too:
    `kappa`, log₁₀ κ(J²), and `estimate`, that of (max a/min a)².
    """
    layers, _, heads, _ = seen.scores.shape
    rng = np.random.default_rng(seed)
    weights = seen.weights
    grid = []
    for layer in range(layers):
        row = [
            _head(weights[layer, :, h], seen.keys[layer, :, h], seen.values[layer, :, h], rng)
            for h in range(heads)
        ]
        grid.append(xr.concat(row, "head"))
    found = xr.concat(grid, "layer").assign_coords(edge=EDGES[:-1])
    kappa = 2 * softmax_conditioning(seen.scores).log_kappa / np.log(10)
    axes = ("layer", "example", "head")
    return found.assign(kappa=(axes, kappa), estimate=(axes, 2 * log10_ratio(seen.scores)))


def _head(weights, keys, values, rng) -> xr.Dataset:
    """weights (example, key); keys and values (example, key, d)."""
    important = important_keys(weights)
    signal, complement = subspaces(keys[important])
    divided = ~important.all(axis=-1)
    sampled, exact, pooled = np.full((3, 1), np.nan)
    if divided.any() and complement.shape[1]:
        drawn = rng.normal(size=(DIRECTIONS, complement.shape[1]))
        kept, chosen = keys[divided], important[divided]
        sampled = leakage_sampled(kept, chosen, complement, drawn)
        exact = leakage(kept, chosen, complement)
        pooled = leakage(kept.reshape(1, -1, kept.shape[-1]), chosen.reshape(1, -1), complement)
    chosen = keys[important]
    centred = chosen - chosen.mean(axis=0)
    outside = np.linalg.norm(chosen @ complement, axis=-1) / np.linalg.norm(
        chosen @ signal, axis=-1
    )
    logs = np.log10(np.maximum(outside, 1e-300))
    return xr.Dataset(
        {
            "rho_sampled": sampled.max(),
            "rho": exact.max(),
            "rho_typical": np.median(sampled),
            "rho_pooled": pooled[0],
            "undivided": 1 - divided.mean(),
            "margin": vector_margins(weights, values, important).min(),
            "dimension": float(signal.shape[1]),
            "explained": np.sum((centred @ signal) ** 2) / np.sum(centred**2),
            "outside": ("edge", np.histogram(logs.clip(EDGES[0], EDGES[-1]), EDGES)[0] * 1.0),
            "mostly_inside": np.mean(logs < 0),
        }
    )


def subspaces(chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`signal_subspace` of the rows (m, d): 2d rows of the same principal components take their
    place, as it holds an m × m matrix, and here m is in the ten thousands."""
    triangle = np.linalg.qr(chosen - chosen.mean(axis=0)).R
    rows = np.concatenate([triangle, -triangle])
    return signal_subspace(rows, np.ones(len(rows), bool))


def vector_margins(weights, values, important) -> np.ndarray:
    """δ an example: the least ‖u_j − Σ a u‖ of an important key's value (example, key, d)."""
    mean = np.einsum("...k,...kd->...d", weights, values)
    distance = np.linalg.norm(values - mean[..., None, :], axis=-1)
    return np.where(important, distance, np.inf).min(axis=-1)
