"""When it happened: dates of sinks, of specialization and of the phases of the norm, from a history
of records (watched, or of checkpoints)."""

import dataclasses

import numpy as np
import xarray as xr

from attnflow.instruments import norm_phases


@dataclasses.dataclass(frozen=True)
class Dates:
    """sinks: (layer, head) → the first step from which a head has been a sink to the end.
    first_sink, half_of_sinks: when the first, and half of those, were there; None without sinks.
    specialized: layer → when its heads had come half of the way from as alike as at first to as
    different as at last, None where they did not part. phases: layer → (name, start, end) of the
    mean norm ‖W_QᵀW_K‖."""

    sinks: dict[tuple[int, int], float]
    first_sink: float | None
    half_of_sinks: float | None
    specialized: dict[int, float | None]
    phases: dict[int, list[tuple[str, float, float]]]


def dates(history: xr.Dataset, sink: float = 0.3, parted: float = 0.1) -> Dates:
    """`sink`: share of attention on the first token from which a head is one; `parted`: by how much
    the cosine between heads must fall for them to have become different."""
    steps = history.step.values.astype(float)
    if len(steps) < 2:
        raise ValueError("dates need two records at least")
    found = {}
    for layer, head in np.ndindex(history.sizes["layer"], history.sizes["head"]):
        mass = history.first_mass.isel(layer=layer, head=head).values
        begun = _for_good(mass > sink)
        if begun is not None:
            found[layer, head] = float(steps[begun])
    ordered = sorted(found.values())
    return Dates(
        found,
        ordered[0] if ordered else None,
        ordered[(len(ordered) - 1) // 2] if ordered else None,
        {layer: _parting(history, steps, layer, parted) for layer in range(history.sizes["layer"])},
        {layer: _phases(history, steps, layer) for layer in range(history.sizes["layer"])},
    )


def _for_good(true: np.ndarray) -> int | None:
    """From which record on it is true to the end."""
    if not true[-1]:
        return None
    false = np.flatnonzero(~true)
    return int(false[-1]) + 1 if false.size else 0


def _parting(history: xr.Dataset, steps: np.ndarray, layer: int, parted: float) -> float | None:
    alike = history.redundancy.isel(layer=layer).mean("head").values
    if not np.isfinite(alike).all() or alike[0] - alike[-1] < parted:
        return None
    begun = _for_good(alike < (alike[0] + alike[-1]) / 2)
    return None if begun is None else float(steps[begun])


def _phases(history: xr.Dataset, steps: np.ndarray, layer: int) -> list[tuple[str, float, float]]:
    norms = history.interaction_norm.isel(layer=layer).mean("head").values
    if not np.isfinite(norms).all():
        return []
    return [(each.name, each.start, each.end) for each in norm_phases(steps, norms)]
