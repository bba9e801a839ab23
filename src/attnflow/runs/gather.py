"""Many runs as one Dataset."""

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import xarray as xr

from attnflow.runs.filters import Entry, Filters, as_text, free, listed, swept
from attnflow.runs.store import Store


def open(store: Store, filters: Filters = ()) -> xr.Dataset:
    """The chosen runs as one Dataset. The fields in which they differ are its dimensions if every
    combination is there once; else there is one dimension `run`, and the fields are coordinates
    along it. `run` holds the names, `attrs` the experiment and the fields that are the same.
    Damaged runs are left out, with a warning that names them."""
    entries = listed(store, filters, verify=True)
    if not entries:
        asked = filters if isinstance(filters, str) else " ".join(filters)
        raise ValueError(f"no run in {store.root}" + (f" passes {asked}" if asked else ""))
    _same(entries, "experiment", lambda entry: entry.experiment, ["experiment"])
    loaded = {entry.name: entry.run.data() for entry in entries}
    varied = swept(entries)
    _alike(entries, loaded, varied)
    first = loaded[entries[0].name]
    taken = {str(name) for name in (*first.variables, *first.dims)}
    names = {name: free(name, {*taken, "run"}) for name in varied}
    axes, entries = _axes(entries, varied)
    shape = tuple(len(values) for values in axes.values())
    label = "stored_run" if "run" in taken else "run"
    if axes or len(entries) == 1:
        dims = tuple(names[name] for name in axes)
        coords: dict[str, Any] = {names[x]: _coordinate(values) for x, values in axes.items()}
    else:
        dims, shape = (label,), (len(entries),)
        columns = {name: [entry.config.get(name) for entry in entries] for name in varied}
        coords = {names[x]: (label, _coordinate(values)) for x, values in columns.items()}
    coords[label] = (dims, np.array([entry.name for entry in entries]).reshape(shape))

    stacked = {}
    for name, variable in first.variables.items():
        all_values = [loaded[entry.name].variables[name].values for entry in entries]
        if name in first.coords and len(set(map(_mark, all_values))) == 1:
            stacked[name] = variable
        else:
            values = np.stack(all_values).reshape(shape + variable.shape)
            stacked[name] = xr.Variable(dims + variable.dims, values, variable.attrs)
    fixed = {name: value for name, value in entries[0].config.items() if name not in varied}
    return xr.Dataset(
        {name: stacked[name] for name in first.data_vars},
        {name: stacked[name] for name in first.coords} | coords,
        {"experiment": entries[0].experiment, "config": json.dumps(fixed)},
    )


def _alike(entries: Sequence[Entry], loaded: dict[str, xr.Dataset], varied: list[str]) -> None:
    """They can be stacked: the same variables, and the same points along every dimension."""
    shapes = {
        name: sorted((str(x), variable.dims) for x, variable in data.variables.items())
        for name, data in loaded.items()
    }
    _same(entries, "variables", lambda entry: repr(shapes[entry.name]), varied)
    dims = loaded[entries[0].name].sizes
    for dim in dims:
        lengths = {name: data.sizes[dim] for name, data in loaded.items()}
        _same(entries, f"length along {dim}", lambda entry, n=lengths: n[entry.name], varied)
        marks = {
            name: _mark(data[dim].values) for name, data in loaded.items() if dim in data.coords
        }
        _same(entries, f"values of {dim}", lambda entry, n=marks: n.get(entry.name), varied)


def _same(
    entries: Sequence[Entry], what: str, of: Callable[[Entry], Any], among: Sequence[str]
) -> None:
    """Else a message with the filter that would make it so."""
    counts = Counter(map(of, entries))
    if len(counts) == 1:
        return
    most = counts.most_common(1)[0][0]
    told = f" ({', '.join(map(str, counts))})" if what.startswith(("length", "exp")) else ""
    problem = f"these runs differ in {what}{told} and cannot be one Dataset"
    helpful = []
    for name in among:
        groups: dict[str, set] = {}
        for entry in entries:
            value = entry.field(name) if entry.has(name) else None
            groups.setdefault(as_text(value), set()).add(of(entry))
        if all(len(found) == 1 for found in groups.values()):
            good = min(value for value, found in groups.items() if found == {most})
            helpful.append((len(groups), f"{name}={good}"))
    if helpful:  # the coarsest keeps most of the runs
        raise ValueError(f"{problem}: choose with a filter such as {min(helpful)[1]}")
    hint = f": choose with filters on {', '.join(among)}" if among else ""
    raise ValueError(problem + hint)


def _axes(
    entries: Sequence[Entry], varied: Sequence[str]
) -> tuple[dict[str, list[Any]], list[Entry]]:
    """The values along each field and the runs in their order; no axes unless it is a grid."""
    axes: dict[str, list[Any]] = {}
    for name in varied:
        distinct = {repr(x): x for x in (entry.config.get(name) for entry in entries)}
        numbers = all(type(x) in (int, float) for x in distinct.values())
        axes[name] = sorted(distinct.values(), key=None if numbers else as_text)

    place = {name: {repr(x): i for i, x in enumerate(values)} for name, values in axes.items()}
    by_place = {
        tuple(place[name][repr(entry.config.get(name))] for name in varied): entry
        for entry in entries
    }
    size = math.prod(map(len, axes.values()))
    if not len(by_place) == len(entries) == size:
        return {}, list(entries)
    return axes, [by_place[index] for index in sorted(by_place)]


def _coordinate(values: Sequence[Any]) -> np.ndarray:
    """Values of one kind as they are; lists, and values of several kinds, as JSON text."""
    kinds = {float if type(value) is int else type(value) for value in values}
    if len(kinds) == 1 and kinds <= {float, bool, str}:
        return np.array(values)
    return np.array([as_text(value) for value in values])


def _mark(values: np.ndarray) -> tuple[str, tuple[int, ...], bytes]:
    """The same for the same content; texts may be padded to several widths."""
    if values.dtype.kind in "OSU":
        return "text", values.shape, repr(values.tolist()).encode()
    return str(values.dtype), values.shape, values.tobytes()
