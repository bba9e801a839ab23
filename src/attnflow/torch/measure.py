"""From what a probe took to one number a head: the papers' measurements on a real model."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnflow._checks import at_least
from attnflow.instruments import softmax_conditioning
from attnflow.torch.modules import AttentionModule
from attnflow.torch.probe import Capture, Probe
from attnflow.torch.statistics import Rows, attention_rows, row_statistics
from attnflow.torch.weights import interaction_norms

QUANTITIES = {
    "entropy": "entropy of a row of attention, nats",
    "relative_entropy": "entropy over that of even attention to the keys a query sees",
    "support": "keys in effective use, (Σp)²/Σp²",
    "sparsity": "share of the greatest weight in its row",
    "log_ratio": "log of the greatest weight over the mean of the others",
    "jacobian_trace": "trace of the softmax Jacobian, Σp(1 − p)",
    "row_sum": "sum of a row of weights (1 for softmax)",
    "score_mean": "mean score of the keys a query sees: its row sum, by their number",
    "first_mass": "share of attention on the first token",
    "sink_mass": "share of attention on the key that gets most of it",
    "sink_key": "which key that is",
    "log10_kappa": "log₁₀ of the exact condition number of the softmax Jacobian",
    "log10_kappa_bound": "log₁₀ of (greatest/least weight)², the conditioning paper's estimate",
    "redundancy": "cosine of its rows with those of the head of its layer most like it",
    "twin": "which head that is",
    "used_keys": "keys in effective use by all queries together",
    "value_dimension": "effective dimension of the values, (tr C)²/tr C²",
    "first_value": "length of the first token's value over the mean of the others",
    "contribution": "length of what the head adds to the layer's output, by the heads' mean",
    "interaction_norm": "‖W_QᵀW_K‖ (Frobenius)",
    "compatibility": "loss per unit of output, Σ_j α_j g·v_j",
    "advantage": "greatest advantage of a key over what the query gets",
    "helpful_mass": "share of attention on keys with a positive advantage",
    "score_gradient": "length of the gradient of the loss in the scores of a row",
}


@dataclasses.dataclass(frozen=True)
class Budget:
    """How much of a batch is looked at: the first `sequences`, `rows` queries of each (the same for
    all heads, drawn anew at each look), and of those `exact` rows for the condition number. The
    first `skip` queries (a quarter of the sequence at most) are left out: they see too few keys to
    choose among."""

    sequences: int = 2
    rows: int = 64
    exact: int = 4
    skip: int = 8

    def __post_init__(self):
        for name in ("sequences", "rows", "exact"):
            at_least(name, getattr(self, name), 1)
        at_least("skip", self.skip, 0)

    def draw(self, length: int, generator: torch.Generator) -> Tensor:
        """Numbers of queries, upward."""
        first = min(self.skip, length // 4)
        places = torch.randperm(length - first, generator=generator)[: self.rows] + first
        return places.sort().values


def measure(
    modules: Sequence[AttentionModule],
    probe: Probe,
    budget: Budget,
    generator: torch.Generator,
) -> xr.Dataset:
    """The `QUANTITIES` by (layer, head), NaN where a head or its number does not exist; layers are
    numbered in the model's order, with the modules' names beside."""
    found = {}
    rows: dict[int, Tensor] = {}
    for each in modules:
        numbers = {}
        if each.query is not None and each.key is not None:
            numbers["interaction_norm"] = interaction_norms(each)
        capture = probe.captures.get(each.name)
        if capture is not None:
            length = capture.queries.shape[2]
            if length not in rows:
                rows[length] = budget.draw(length, generator)
            out = None if each.output is None else each.output.matrices()
            numbers |= head_numbers(capture, rows[length], probe.present, budget.exact, out)
        found[each.name] = numbers
    return _as_dataset(modules, found)


def _as_dataset(
    modules: Sequence[AttentionModule], found: Mapping[str, Mapping[str, Tensor]]
) -> xr.Dataset:
    heads = max(each.heads for each in modules)
    arrays = {name: np.full((len(modules), heads), np.nan) for name in QUANTITIES}
    for layer, each in enumerate(modules):
        for name, values in found[each.name].items():
            arrays[name][layer, : len(values)] = values.detach().cpu().double().numpy()
    data = {
        name: (("layer", "head"), array, {"long_name": QUANTITIES[name]})
        for name, array in arrays.items()
    }
    names = ("layer", [each.name for each in modules])
    return xr.Dataset(
        data, {"layer": np.arange(len(modules)), "head": np.arange(heads), "module": names}
    )


def head_numbers(
    capture: Capture,
    rows: Tensor,
    present: Tensor | None,
    exact: int,
    output: Tensor | None = None,
) -> dict[str, Tensor]:
    """One number a head, averaged over the rows that are not padding and see at least two keys.
    output: the heads' parts of the output projection (heads, d, width)."""
    rows = rows.to(capture.queries.device)
    some = attention_rows(capture.queries, capture.keys, capture.attention, rows)
    counted = (some.visible > 1) & _present_rows(present, rows, some)
    if not bool(counted.any()):
        return {}
    statistics = row_statistics(some)
    names = ("entropy", "relative_entropy", "support", "sparsity", "jacobian_trace", "row_sum")
    numbers = {name: mean(getattr(statistics, name), counted) for name in names}
    ratio = statistics.log_ratio
    numbers["log_ratio"] = mean(ratio, counted & torch.isfinite(ratio))
    scores = some.scores.masked_fill(~torch.isfinite(some.scores), 0).sum(-1)
    numbers["score_mean"] = mean(scores / some.visible.clamp_min(1), counted)
    share = torch.nan_to_num(some.weights).abs()
    share = share / share.sum(-1, keepdim=True).clamp_min(torch.finfo(share.dtype).tiny)
    share = share * counted[..., None]
    numbers |= _masses(share, some, counted, present)
    numbers |= _similarity(share)
    numbers |= _values(capture, present)
    if capture.attention.function == "softmax" and capture.attention.sink is None:
        numbers |= _conditioning(some, counted, exact)
    if output is not None:
        numbers["contribution"] = _contribution(capture, some, counted, output)
    if capture.gradient is not None:
        numbers |= _routing(capture, some, rows, counted)
    return numbers


def mean(values: Tensor, counted: Tensor) -> Tensor:
    """Over batch and rows, of those that count."""
    kept = torch.where(counted, values, torch.zeros_like(values))
    return kept.sum((0, 2)) / counted.sum((0, 2))


def _present_rows(present: Tensor | None, rows: Tensor, some: Rows) -> Tensor:
    if present is None or present.shape[0] != some.visible.shape[0]:
        return torch.ones_like(some.visible, dtype=torch.bool)
    return present[:, rows][:, None].to(some.visible.device)


def _masses(
    share: Tensor, some: Rows, counted: Tensor, present: Tensor | None
) -> dict[str, Tensor]:
    """Attention that keys receive, from the rows that see them. A key counts if at least half of
    the rows see it: of the last keys too little is known."""
    batch, heads, _, size = share.shape
    first = torch.zeros(batch, dtype=torch.long, device=share.device)
    if present is not None and present.shape == (batch, size):
        first = present.int().argmax(1).to(share.device)
    on_first = share.gather(3, first[:, None, None, None].expand(batch, heads, share.shape[2], 1))
    seeing = (torch.isfinite(some.scores) & counted[..., None]).sum(2)
    received = share.sum(2) / seeing.clamp_min(1)
    received = received.masked_fill(2 * seeing < counted.sum(2)[..., None], 0)
    most = received.max(-1)
    used = share.sum(2)
    return {
        "first_mass": mean(on_first[..., 0], counted),
        "sink_mass": most.values.mean(0),
        "sink_key": most.indices.mode(0).values,
        "used_keys": (used.sum(-1).square() / used.square().sum(-1)).mean(0),
    }


def _similarity(share: Tensor) -> dict[str, Tensor]:
    """Greatest mean cosine between a head's rows and those of another head of the layer."""
    heads = share.shape[1]
    if heads < 2:
        return {}
    unit = torch.nn.functional.normalize(share, dim=-1)
    rows = (unit.square().sum(-1) > 0.5).sum((0, 2)).clamp_min(1)
    flat = unit.transpose(0, 1).flatten(1)
    cosine = flat @ flat.T / rows
    cosine.fill_diagonal_(-math.inf)
    nearest = cosine.max(-1)
    return {"redundancy": nearest.values, "twin": nearest.indices}


def _values(capture: Capture, present: Tensor | None) -> dict[str, Tensor]:
    values = capture.values.float()
    batch, key_heads, size, _ = values.shape
    kept = torch.ones(batch, size, dtype=torch.bool, device=values.device)
    if present is not None and present.shape == kept.shape:
        kept = present.to(values.device)
    first = kept.int().argmax(1)
    lengths = values.norm(dim=-1)
    of_first = lengths.gather(2, first[:, None, None].expand(batch, key_heads, 1))[..., 0].mean(0)
    others = kept.clone()
    others[torch.arange(batch), first] = False
    rest = (lengths * others[:, None]).sum((0, 2)) / others.sum().clamp_min(1)
    cloud = values.transpose(1, 2)[kept].transpose(0, 1)  # (key head, token, d)
    centred = cloud - cloud.mean(1, keepdim=True)
    covariance = centred.transpose(1, 2) @ centred
    trace = covariance.diagonal(dim1=1, dim2=2).sum(-1)
    dimension = trace.square() / covariance.square().sum((1, 2)).clamp_min(1e-38)
    group = capture.queries.shape[1] // key_heads
    return {
        "value_dimension": dimension.repeat_interleave(group),
        "first_value": (of_first / rest.clamp_min(1e-38)).repeat_interleave(group),
    }


def _contribution(capture: Capture, some: Rows, counted: Tensor, output: Tensor) -> Tensor:
    """‖W_O o‖ of each head, from the Gram matrix of its part of W_O, over the mean of the heads."""
    group = capture.queries.shape[1] // capture.values.shape[1]
    values = capture.values.to(some.weights).repeat_interleave(group, dim=1)
    heads = torch.nan_to_num(some.weights) @ values
    output = output.to(heads)
    gram = output @ output.transpose(1, 2)
    lengths = ((heads @ gram) * heads).sum(-1).clamp_min(0).sqrt()
    found = mean(lengths, counted)
    return found / found.mean().clamp_min(torch.finfo(found.dtype).tiny)


def _conditioning(some: Rows, counted: Tensor, exact: int) -> dict[str, Tensor]:
    """Mean log₁₀ condition number over a few rows of each sequence, each on the keys it sees."""
    batch, heads, rows, _ = some.scores.shape
    chosen = np.unique(np.linspace(0, rows - 1, exact).round().astype(int))
    scores = some.scores[:, :, chosen].double().cpu().numpy()
    counts = counted.expand(batch, heads, rows)[:, :, chosen].cpu().numpy()
    kappa = np.full((2, batch, heads, len(chosen)), np.nan)
    for b, r in np.ndindex(batch, len(chosen)):
        seen = np.isfinite(scores[b, :, r])
        for pattern in np.unique(seen, axis=0):
            same = (seen == pattern).all(1) & counts[b, :, r]
            if same.any() and pattern.sum() > 1:
                found = softmax_conditioning(scores[b, same, r][:, pattern])
                kappa[:, b, same, r] = found.log_kappa, found.log_printed
    known = np.isfinite(kappa)
    total = np.where(known, kappa, 0).sum((1, 3)) / np.maximum(known.sum((1, 3)), 1)
    total = np.where(known.any((1, 3)), total / np.log(10), np.nan)
    return {
        "log10_kappa": torch.from_numpy(total[0]),
        "log10_kappa_bound": torch.from_numpy(total[1]),
    }


def _routing(capture: Capture, some: Rows, rows: Tensor, counted: Tensor) -> dict[str, Tensor]:
    """b_ij = g_i·v_j is what the loss gains as query i takes more of value j; the advantage of j is
    Σ_j α_ij b_ij − b_ij; the gradient in the score is −α_ij times it."""
    assert capture.gradient is not None
    group = capture.queries.shape[1] // capture.values.shape[1]
    values = capture.values.to(some.weights).repeat_interleave(group, dim=1)
    gradient = capture.gradient[:, :, rows].to(some.weights)
    gain = gradient @ values.transpose(-1, -2)
    weights = torch.nan_to_num(some.weights)
    got = (weights * gain).sum(-1, keepdim=True)
    advantage = got - gain
    seen = torch.isfinite(some.scores)
    best = advantage.masked_fill(~seen, -math.inf).amax(-1)
    return {
        "compatibility": mean(got[..., 0], counted),
        "advantage": mean(best, counted),
        "helpful_mass": mean((weights * (advantage > 0)).sum(-1), counted),
        "score_gradient": mean((weights * advantage).norm(dim=-1), counted),
    }
