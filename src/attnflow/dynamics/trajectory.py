"""A trajectory as a labelled Dataset."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from attnflow.models.interface import Model


def fields_of(model: Any) -> dict[str, Any]:
    return {f.name: getattr(model, f.name) for f in dataclasses.fields(model)}


def describe(model: Model) -> str:
    """The model's fields as JSON, large arrays by their shape, without its shared ones."""

    def plain(value):
        if dataclasses.is_dataclass(value):
            return {"type": type(value).__name__} | fields_of(value)
        array = np.asarray(value)
        return array.tolist() if array.size <= 64 else f"array{array.shape}"

    fields = {name: x for name, x in fields_of(model).items() if name not in model.shared}
    return json.dumps({"model": type(model).__name__} | fields, default=plain)


def dataset(
    observed: Mapping[str, Any],
    dims: Mapping[str, tuple[str, ...]],
    axes: Mapping[str, np.ndarray],
    attrs: Mapping[str, Any],
    coords: Mapping[str, Any] | None = None,
) -> xr.Dataset:
    """Observables whose leading axes are `axes` in order, then their own `dims`; `coords` are
    further coordinates on those axes."""
    lead = tuple(axes)
    variables = {}
    for name, values in observed.items():
        values = np.asarray(values)
        own = dims.get(name, ())
        if values.ndim != len(lead) + len(own):
            raise ValueError(
                f"observable {name!r} has {values.ndim - len(lead)} axes but the model names "
                f"{len(own)} in dims"
            )
        variables[name] = ((*lead, *own), values)
    return xr.Dataset(variables, coords={**axes, **(coords or {})}, attrs=dict(attrs))
