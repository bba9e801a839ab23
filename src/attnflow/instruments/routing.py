"""How a cross-entropy head routes: from attention α (…, query, key), values v (…, key, width) and
the upstream errors u (…, query, width), the gradient of the loss at the head's output.

Pure functions of NumPy arrays. Signs are those of the gradient: compatibility b_ij = u_i·v_j is the
change of the loss as query i takes more of value j; the advantage is its negative, centred.
"""

from typing import NamedTuple

import numpy as np

from attnflow._checks import positive


def compatibility(errors: np.ndarray, values: np.ndarray) -> np.ndarray:
    """b_ij = u_i·v_j, (…, query, key). Cost: O(T² d)."""
    return np.asarray(errors) @ np.swapaxes(np.asarray(values), -1, -2)


def advantage(attention: np.ndarray, errors: np.ndarray, values: np.ndarray) -> np.ndarray:
    """−(b_ij − Σ_j α_ij b_ij): where positive, more attention lowers the loss."""
    b = compatibility(errors, values)
    return np.sum(attention * b, axis=-1, keepdims=True) - b


def usage(attention: np.ndarray) -> np.ndarray:
    """Σ_i α_ij, how much each key is used (…, key)."""
    return np.asarray(attention).sum(axis=-2)


def users_error(attention: np.ndarray, errors: np.ndarray) -> np.ndarray:
    """Σ_i α_ij u_i / Σ_i α_ij, the mean error of a key's users (…, key, width); 0 if unused. Minus
    it is the direction in which the value moves."""
    used = usage(attention)[..., None]
    pulled = np.swapaxes(np.asarray(attention), -1, -2) @ np.asarray(errors)
    return np.where(used > 0, pulled / np.where(used > 0, used, 1), 0.0)


def value_specialization(
    attention: np.ndarray, errors: np.ndarray, values: np.ndarray
) -> np.ndarray:
    """Cosine between each value and minus its users' mean error (…, key): 1 for a prototype that
    has moved all the way its users pulled it, 0 where either vanishes."""
    pull = -users_error(attention, errors)
    scale = np.linalg.norm(pull, axis=-1) * np.linalg.norm(values, axis=-1)
    return np.where(scale > 0, np.sum(pull * values, axis=-1) / np.where(scale > 0, scale, 1), 0.0)


class Freezing(NamedTuple):
    """When a quantity stops moving, by three definitions, which disagree: `near_end`, the first
    time from which it stays within the tolerance of its end, relative to its whole way; `slow`, the
    first from which its speed stays below the tolerance of its greatest; `half_way`, when half the
    length of its path is behind it."""

    near_end: float
    slow: float
    half_way: float


def freezing(times: np.ndarray, path: np.ndarray, tolerance: float = 0.05) -> Freezing:
    """From a path (time, …): attention, values, or anything. Infinite never: the end is frozen."""
    positive("tolerance", tolerance)
    times = np.asarray(times, float)
    flat = np.asarray(path, float).reshape(len(times), -1)
    if len(times) < 3:
        raise ValueError("a path needs three times to tell when it stops")
    away = np.linalg.norm(flat - flat[-1], axis=1)
    lengths = np.linalg.norm(np.diff(flat, axis=0), axis=1)
    speed = lengths / np.diff(times)
    if lengths.sum() == 0:
        return Freezing(times[0], times[0], times[0])

    def settled(above):
        last = np.flatnonzero(above)
        return float(times[min(last[-1] + 1, len(times) - 1)]) if last.size else float(times[0])

    walked = np.concatenate([[0], np.cumsum(lengths)])
    half = float(np.interp(walked[-1] / 2, walked, times))
    return Freezing(
        settled(away > tolerance * away.max()), settled(speed > tolerance * speed.max()), half
    )


class Signs(NamedTuple):
    """Signatures of failure and the numbers behind them."""

    attention_collapse: bool
    value_explosion: bool
    dead_keys: float
    diffuse_routing: bool
    greatest_usage: float
    value_growth: float
    relative_entropy: float


def failure_signs(
    attention: np.ndarray,
    values: np.ndarray,
    first_values: np.ndarray,
    *,
    collapse: float = 0.9,
    explosion: float = 100.0,
    dead: float = 0.01,
    diffuse: float = 0.95,
) -> Signs:
    """Looks for collapse (one key has more than `collapse` of all mass), value explosion (mean |v|
    more than `explosion` times the first), dead keys (used less than `dead` of an even share: the
    share of such keys is told) and diffuse routing (entropy above `diffuse` of the greatest).

    Keys hidden from a query (weight 0) do not count towards its greatest entropy; with a causal map
    early keys are seen by more queries, so an even share is that of the uniform visible map.
    """
    a = np.asarray(attention, float)
    visible = a > 0
    even = usage(visible / visible.sum(axis=-1, keepdims=True))
    used = usage(a)
    share = used.max(axis=-1) / used.sum(axis=-1)
    entropy = -np.sum(np.where(visible, a * np.log(np.where(visible, a, 1)), 0), axis=-1)
    most = np.log(np.maximum(visible.sum(axis=-1), 1))
    relative = float(entropy.sum() / most.sum()) if most.sum() > 0 else 0.0
    sizes = [float(np.mean(np.linalg.norm(v, axis=-1))) for v in (values, first_values)]
    growth = sizes[0] / sizes[1] if sizes[1] > 0 else np.inf
    return Signs(
        bool(share.max() > collapse),
        growth > explosion,
        float(np.mean(used < dead * even)),
        relative > diffuse,
        float(share.max()),
        growth,
        relative,
    )
