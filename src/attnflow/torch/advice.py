"""What one could do about a diagnosis, each tied to the numbers that speak for it."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

Kinds = Mapping[str, list[tuple[int, int]]]


@dataclasses.dataclass(frozen=True)
class Advice:
    """What was seen, the numbers, what the theory says of it, what one could do, and how."""

    title: str
    evidence: str
    theory: str
    remedy: str
    code: str = ""


def advise(heads: xr.Dataset, stream: xr.Dataset | None, kinds: Kinds, limits: Any) -> list[Advice]:
    """In the order in which one would act; empty if nothing stands out."""
    found = [
        _sinks(heads, stream, kinds, limits),
        _conditioning(heads),
        _twins(heads, kinds, limits),
        _dead(heads, kinds, limits),
        _diffuse(heads, kinds, limits),
    ]
    return [each for each in found if each is not None]


def count(heads: xr.Dataset) -> int:
    return int(np.isfinite(heads.sink_mass.values).sum())


def _listed(pairs: list[tuple[int, int]], most: int = 6) -> str:
    shown = ", ".join(f"{layer}.{head}" for layer, head in pairs[:most])
    return shown + (f" and {len(pairs) - most} more" if len(pairs) > most else "")


def _sinks(heads: xr.Dataset, stream: Any, kinds: Kinds, limits: Any) -> Advice | None:
    sinks = kinds["sink"]
    if not sinks:
        return None
    at = np.array(sinks)
    values = float(np.median(heads.first_value.values[at[:, 0], at[:, 1]]))
    evidence = (
        f"{len(sinks)} of {count(heads)} heads put more than {limits.sink:.0%} of their attention "
        f"on the first token: {_listed(sinks)}. In these heads its value is {values:.2g} times as "
        "long as the others'."
    )
    if stream is not None:
        depth = int(stream.largest_entry.values.argmax())
        evidence += (
            f" In the residual stream the first token is up to "
            f"{float(stream.first_length.max()):.0f} times as long as the median, the largest "
            f"entry {float(stream.largest_entry.max()):,.0f} times the median (depth {depth})."
        )
    return Advice(
        "Attention sinks",
        evidence,
        "Normalized attention must go somewhere: heads with nothing to say park it on a token with "
        "a short value. Softmax training polarizes attention to one key; attentions that need not "
        "sum to one have no reason to.",
        "When training anew, take an attention that is not divided by its sum, such as sigmoid; "
        "softmax-1 with a learned logit may give less than one, but kept its sinks on induction. "
        "In a trained model leave sinks alone unless you quantize or evict keys: keep the first "
        "tokens in the cache.",
        'attnflow.torch.swap_attention(model, "sigmoid")',
    )


def _conditioning(heads: xr.Dataset) -> Advice | None:
    kappa = heads.log10_kappa.values
    known = kappa[np.isfinite(kappa)]
    if not known.size or np.median(known) < 3:
        return None
    bound = heads.log10_kappa_bound.values
    bound = bound[np.isfinite(bound)]
    return Advice(
        "Ill-conditioned attention",
        f"The softmax Jacobian has a median condition number of 10^{np.median(known):.1f} over "
        f"heads (worst head 10^{known.max():.1f}). The paper's estimate (greatest/least weight)² "
        f"for that of its square is 10^{np.median(bound):.1f}.",
        "In the conditioning paper's model gradient descent close to a solution contracts its "
        "slowest direction by about one part in κ² a step, κ the condition number of the Jacobian. "
        "Methods that rescale (Adam in part, Gauss–Newton wholly) do not pay it.",
        "Fine-tune attention with Adam-like methods, not plain SGD; if SGD is a must, start from "
        "higher temperature.",
        "attnflow.torch.set_temperature(model, 2.0)",
    )


def _twins(heads: xr.Dataset, kinds: Kinds, limits: Any) -> Advice | None:
    twins = kinds["twin"]
    if not twins:
        return None
    best = max(float(heads.redundancy.values[pair]) for pair in twins)
    return Advice(
        "Redundant heads",
        f"{len(twins)} of {count(heads)} heads attend like another head of their layer (cosine "
        f"above {limits.twin:g}, up to {best:.3f}): {_listed(twins)}.",
        "Heads that start alike split in stages; with softmax many stay together and can be pruned "
        "at little loss, while softmax-1 and Bayes-softmax use them better.",
        "Rank the heads by the loss without them on a text of yours, remove what costs nothing.",
        'attnflow.torch.rank_heads(model, batches, by="greedy")',
    )


def _dead(heads: xr.Dataset, kinds: Kinds, limits: Any) -> Advice | None:
    dead = kinds["dead"]
    if not dead:
        return None
    return Advice(
        "Dead heads",
        f"{len(dead)} of {count(heads)} heads add less than {limits.dead:.0%} of an even part to "
        f"their layer's output: {_listed(dead)}.",
        "A head whose values are not used gets no gradient that would change this.",
        "Remove them exactly: the output hardly changes and the weights get smaller.",
        f"attnflow.torch.prune_heads(model, {_as_dict(dead)})",
    )


def _diffuse(heads: xr.Dataset, kinds: Kinds, limits: Any) -> Advice | None:
    diffuse = kinds["diffuse"]
    if not diffuse:
        return None
    return Advice(
        "Diffuse heads",
        f"{len(diffuse)} of {count(heads)} heads attend almost evenly (entropy above "
        f"{limits.diffuse:.0%} of the greatest): {_listed(diffuse)}.",
        "Even attention is where training starts: such heads average their context, or have not "
        "specialized yet.",
        "Early in training: wait, or raise the rate of the value weights so that keys become worth "
        "telling apart. Late: candidates for pruning.",
        "attnflow.torch.param_groups(model, lr=1e-3, value_scale=10)",
    )


def _as_dict(pairs: list[tuple[int, int]]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for layer, head in pairs:
        found.setdefault(layer, []).append(head)
    return found
