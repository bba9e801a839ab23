"""Diagnose a trained transformer: what each head does, and what to make of it."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from attnflow._checks import inside
from attnflow.torch.advice import Advice, advise
from attnflow.torch.measure import Budget, measure
from attnflow.torch.modules import attention_modules, unsupported_attention
from attnflow.torch.probe import left_alone, probe, unwrapped

NUMBERS_OF_THINGS = ("sink_key", "twin")  # not to be averaged
AT_ONCE = 2  # sequences in memory together


@dataclasses.dataclass(frozen=True)
class Limits:
    """From when a head is called so: a sink by the share of attention on the first token (focused
    if it is on another key), diffuse by its entropy relative to even attention, a twin by the
    cosine of its rows with another head's, dead by its part in the layer's output (1 is even)."""

    sink: float = 0.3
    diffuse: float = 0.95
    twin: float = 0.95
    dead: float = 0.05

    def __post_init__(self):
        for field in dataclasses.fields(self):
            inside(field.name, getattr(self, field.name), 0.0, 1.0, "it is a share")


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """heads: `QUANTITIES` by (layer, head); stream: by layer, lengths and largest entries of the
    first token in the residual stream against the others; kinds: the heads that are sinks, focused,
    diffuse, twins or dead; skipped: attentions that could not be read, and why."""

    name: str
    about: Mapping[str, Any]
    heads: xr.Dataset
    stream: xr.Dataset | None
    kinds: Mapping[str, list[tuple[int, int]]]
    advice: list[Advice]
    skipped: Mapping[str, str]
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain data: NaN is None."""
        arrays = {str(k): _plain(v.values) for k, v in self.heads.data_vars.items()}
        stream = self.stream
        return {
            "name": self.name,
            "about": dict(self.about),
            "modules": [str(name) for name in self.heads.module.values],
            "heads": arrays,
            "stream": None
            if stream is None
            else {str(k): _plain(v.values) for k, v in stream.data_vars.items()},
            "kinds": {kind: [list(pair) for pair in pairs] for kind, pairs in self.kinds.items()},
            "advice": [dataclasses.asdict(each) for each in self.advice],
            "skipped": dict(self.skipped),
            "notes": list(self.notes),
        }


def diagnose(
    model: nn.Module,
    inputs: Mapping[str, Any],
    *,
    name: str = "",
    limits: Limits = Limits(),
    budget: Budget = Budget(rows=64),  # noqa: B008
    loss: Callable[[Any], Tensor] | None = None,
    seed: int = 0,
    notes: tuple[str, ...] = (),
) -> Diagnosis:
    """Of a model on named inputs (`input_ids`, and `labels` for what needs a gradient). Every
    sequence is looked at, two at a time: memory does not grow with their number."""
    bare = unwrapped(model)
    modules = attention_modules(bare)
    others = dict.fromkeys(unsupported_attention(bare), "not supported")
    if not modules:
        more = f" (not supported: {', '.join(others)})" if others else ""
        raise ValueError(f"{name or type(bare).__name__} has no attention to diagnose{more}")
    generator = torch.Generator().manual_seed(seed)
    parts, losses = [], []
    for some in _pieces(inputs):
        found = probe(bare, ((), some), modules, loss)
        if not found.captures:
            module, why = next(iter(found.problems.items()))
            raise ValueError(f"no attention of {name or 'the model'} can be read: {module}: {why}")
        parts.append(measure(modules, found, budget, generator))
        losses.append(np.nan if found.loss is None else found.loss)
        others |= found.problems
    heads = _together(parts)
    stream = _stream(bare, next(_pieces(inputs)))
    kinds = head_kinds(heads, limits)
    about = {
        "class": type(bare).__name__,
        "parameters": sum(p.numel() for p in bare.parameters()),
        "layers": len(modules),
        "heads": sum(each.heads for each in modules),
        "attention": str(getattr(getattr(bare, "config", None), "_attn_implementation", "torch")),
        "loss": None if np.isnan(losses).any() else float(np.mean(losses)),
    }
    advice = advise(heads, stream, kinds, limits)
    return Diagnosis(
        name or type(bare).__name__, about, heads, stream, kinds, advice, others, notes
    )


def head_kinds(heads: xr.Dataset, limits: Limits) -> dict[str, list[tuple[int, int]]]:
    """A head may be of several kinds. Sinks and diffuse heads are all alike: they are no twins."""
    sink = heads.first_mass.values > limits.sink
    diffuse = heads.relative_entropy.values > limits.diffuse
    masks = {
        "sink": sink,
        "focused": (heads.sink_mass.values > limits.sink) & ~sink,
        "diffuse": diffuse,
        "twin": (heads.redundancy.values > limits.twin) & ~sink & ~diffuse,
        "dead": heads.contribution.values < limits.dead,
    }
    return {
        kind: [(int(layer), int(head)) for layer, head in np.argwhere(mask)]
        for kind, mask in masks.items()
    }


def _pieces(inputs: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    size = next(x.shape[0] for x in inputs.values() if isinstance(x, Tensor) and x.ndim > 0)
    for start in range(0, size, AT_ONCE):
        yield {
            k: v[start : start + AT_ONCE]
            if isinstance(v, Tensor) and v.ndim > 0 and v.shape[0] == size
            else v
            for k, v in inputs.items()
        }


def _together(parts: list[xr.Dataset]) -> xr.Dataset:
    every = xr.concat(parts, dim="part", coords="minimal", compat="override", join="exact")
    means = every.mean("part", keep_attrs=True)
    for name in NUMBERS_OF_THINGS:
        means[name] = means[name].copy(data=_most_common(every[name].values))
    return means


def _most_common(values: np.ndarray) -> np.ndarray:
    """Along the first axis; NaN where nothing is known."""
    found = np.full(values.shape[1:], np.nan)
    for place in np.ndindex(values.shape[1:]):
        known = values[(slice(None), *place)]
        known = known[np.isfinite(known)]
        if known.size:
            options, counts = np.unique(known, return_counts=True)
            found[place] = options[counts.argmax()]
    return found


def _stream(model: nn.Module, inputs: Mapping[str, Any]) -> xr.Dataset | None:
    """Massive activations: the first token's vector in the residual stream against the others."""
    if not hasattr(model, "config"):
        return None
    with left_alone(model), torch.no_grad():
        output = model(**{**inputs, "output_hidden_states": True})
    states = getattr(output, "hidden_states", None)
    if not states or any(state.ndim != 3 or state.shape[1] < 2 for state in states):
        return None
    lengths, entries = [], []
    for state in states:
        size = state.float().norm(dim=-1)
        lengths.append(float((size[:, 0] / size[:, 1:].median(1).values).mean()))
        largest = state.float().abs().amax((1, 2))
        entries.append(float((largest / state.float().abs().flatten(1).median(1).values).mean()))
    return xr.Dataset(
        {
            "first_length": ("depth", lengths, {"long_name": "first token's length by the median"}),
            "largest_entry": ("depth", entries, {"long_name": "largest entry by the median"}),
        },
        {"depth": np.arange(len(states))},
    )


def _plain(values: np.ndarray) -> Any:
    return [
        _plain(each) if np.ndim(each) else (float(each) if np.isfinite(each) else None)
        for each in values
    ]
