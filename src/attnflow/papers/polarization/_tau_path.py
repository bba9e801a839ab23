"""The path in τ = ∫γ dt, on which every loss with gradient along β* moves:

    u' = |β*|² s,   a' = (∂s/∂a)ᵀ u.

The logistic loss follows it for ever (τ → ∞ as t → ∞), the square loss stops where ⟨u, s⟩ = |β*|².
A second road beside `gradient_flow`: written out, in NumPy, integrated by SciPy.
"""

import numpy as np
from scipy.integrate import solve_ivp
from scipy.special import expit

from attnflow import attention

SLOPES = {
    "softmax": np.exp,
    "identity_normalized": np.ones_like,
    "abs_normalized": np.sign,
    "square_normalized": lambda a: 2 * a,
    "relu": lambda a: (a > 0) * 1.0,
    "relu_normalized": lambda a: (a > 0) * 1.0,
    "softplus_normalized": expit,
    "sigmoid": lambda a: expit(a) * expit(-a),
    "sigmoid_normalized": lambda a: expit(a) * expit(-a),
    "elu_normalized": lambda a: np.exp(np.minimum(a, 0)),
}  # f' for the similarity f of each map


def weights(law: str, a):
    return attention.get(law)(a)


def margin(law: str, u, a):
    """⟨u, s⟩ of every row."""
    return (u * weights(law, a)).sum(axis=-1)


def scores_rate(law: str, u, a, centre: float = 1.0):
    """f'(a)/Σf · (u − ⟨u, s⟩) for a normalized map, f'(a) · u for an elementwise one."""
    named = attention.get(law)
    if not named.sums_to_one:
        return SLOPES[law](a) * u
    total = named.similarity(a).sum(axis=-1, keepdims=True)
    return SLOPES[law](a) / total * (u - centre * margin(law, u, a)[..., None])


def tau_path(law: str, u, a, norm2: float, taus) -> tuple[np.ndarray, np.ndarray]:
    """u and a at the increasing times `taus`, one row for each."""
    states = _solve(law, u, a, norm2, taus[-1], t_eval=taus).y.T
    return states[:, : len(u)], states[:, len(u) :]


def where_margin_is(level: float, law: str, u, a, norm2: float, longest: float):
    """τ, u and a where ⟨u, s⟩ first reaches `level`; the square loss stops at |β*|²."""
    p = len(u)

    def reached(_, y):
        return float(margin(law, y[:p], y[p:])) - level

    reached.terminal = True
    found = _solve(law, u, a, norm2, longest, events=reached)
    if not found.t_events[0].size:
        raise ValueError(f"⟨u, s⟩ does not reach {level} before τ = {longest}")
    state = found.y_events[0][0]
    return float(found.t_events[0][0]), state[:p], state[p:]


def _solve(law: str, u, a, norm2: float, end: float, **options):
    p = len(u)

    def rate(_, y):
        return np.concatenate([norm2 * weights(law, y[p:]), scores_rate(law, y[:p], y[p:])])

    start = np.concatenate([u, np.broadcast_to(a, (p,))])
    solved = solve_ivp(rate, (0.0, end), start, method="DOP853", rtol=1e-11, atol=1e-13, **options)
    if not solved.success:
        raise ValueError(f"the path of {law} ends before τ = {end:.6g}: {solved.message}")
    return solved
