"""The gradients of a cross-entropy head in closed form, and what one step does to first order.

Nothing here differentiates: each block is the product that the chain rule gives, from the
decomposition `Head.routing`. Automatic differentiation is what they are tested against.
"""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attnflow.models.head.head import Head, Routing


class Pulls(NamedTuple):
    """Gradients of the mean loss over N positions at the head's own quantities, (sequence, …):
    `logits` (p − e_y)/N, `scores` α_ij (b_ij − Σ_j α_ij b_ij)/N, `values` Σ_i α_ij u_i/N."""

    logits: np.ndarray
    scores: np.ndarray
    values: np.ndarray


def pulls(head: Head, params) -> Pulls:
    """Memory O(sequences × T²)."""
    return _pulls(head, _decomposed(head, params))


def _decomposed(head: Head, params) -> Routing:
    with jax.enable_x64(True):
        given = {name: jnp.asarray(np.asarray(x, float)) for name, x in params.items()}
        return jax.tree.map(np.asarray, head.routing(given))


def _pulls(head: Head, routing: Routing) -> Pulls:
    hit = np.eye(head.classes)[np.asarray(head.targets)]
    count = head.targets.size
    return Pulls(
        (routing.chances - hit) / count,
        -routing.attention * routing.advantage / count,
        np.swapaxes(routing.attention, 1, 2) @ routing.error / count,
    )


def closed_gradients(head: Head, params) -> dict[str, np.ndarray]:
    """The gradient of `head.loss` in every block of `params`.

    With S the gradient of the scores: W_Q gets Σ x_i (S k)_iᵀ/√d, W_K gets Σ x_j (Sᵀ q)_jᵀ/√d, W_V
    gets Σ x_j (gradient of v_j)ᵀ and W_O gets Σ z_i (gradient of the logits)ᵀ. b_K gets nothing: a
    shift of all keys moves every score of a row alike.
    """
    routing = _decomposed(head, params)
    at = _pulls(head, routing)
    mixed = np.asarray(routing.attention) @ routing.values
    found = {"W_O": _outer(mixed, at.logits), "b_O": at.logits.sum((0, 1))}
    if head.inputs is None:
        found |= {"scores": at.scores.sum(0), "values": at.values.sum(0)}
    else:
        inputs = np.asarray(head.inputs, float)
        queries, keys = _queries_and_keys(params, inputs)
        root = np.sqrt(keys.shape[-1])
        sides = {
            "Q": at.scores @ keys / root,
            "K": np.swapaxes(at.scores, 1, 2) @ queries / root,
            "V": at.values,
        }
        found |= {f"W_{name}": _outer(inputs, pull) for name, pull in sides.items()}
        found |= {f"b_{name}": pull.sum((0, 1)) for name, pull in sides.items()}
    return {name: found[name] for name in params}


class Change(NamedTuple):
    """Of the scores (sequence, query, key) and the values (sequence, key, width)."""

    scores: np.ndarray
    values: np.ndarray


def first_order(head: Head, params, rates: float | Mapping[str, float]) -> Change:
    """What a step of descent does to scores and values, to first order in its `rates` (one number,
    or one a block)."""
    gradient = closed_gradients(head, params)
    each = rates if isinstance(rates, Mapping) else dict.fromkeys(gradient, rates)
    step = {name: -each.get(name, 0.0) * x for name, x in gradient.items()}
    if head.inputs is None:
        return Change(step["scores"][None], step["values"][None])
    inputs = np.asarray(head.inputs, float)
    queries, keys = _queries_and_keys(params, inputs)
    turned = {name: _linear(step, inputs, name) for name in "QKV"}
    scores = turned["Q"] @ np.swapaxes(keys, 1, 2) + queries @ np.swapaxes(turned["K"], 1, 2)
    return Change(scores / np.sqrt(keys.shape[-1]), turned["V"])


def scores_and_values(head: Head, params) -> Change:
    """The scores before their softmax, and the values, as they are."""
    if head.inputs is None:
        return Change(np.asarray(params["scores"])[None], np.asarray(params["values"])[None])
    inputs = np.asarray(head.inputs, float)
    queries, keys = _queries_and_keys(params, inputs)
    scores = queries @ np.swapaxes(keys, 1, 2) / np.sqrt(keys.shape[-1])
    return Change(scores, _linear(params, inputs, "V"))


def _linear(params, inputs, name: str) -> np.ndarray:
    bias = np.asarray(params[f"b_{name}"]) if f"b_{name}" in params else 0.0
    return inputs @ np.asarray(params[f"W_{name}"]) + bias


def _queries_and_keys(params, inputs):
    return _linear(params, inputs, "Q"), _linear(params, inputs, "K")


def _outer(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return np.einsum("btx,bty->xy", left, right)
