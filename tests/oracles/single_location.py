"""The single-location model by brute force: D-dimensional tokens, loops and plain Monte Carlo."""

import numpy as np


def activations(scores, activation, bias=None, gain=1.0):
    """σ, (…, head, token), straight from the definitions."""
    grown = np.exp(scores)
    if activation == "softmax":
        return grown / grown.sum(axis=-1, keepdims=True)
    bias = np.zeros(scores.shape[-2]) if bias is None else np.asarray(bias)
    if activation == "softmax_1":
        return gain * grown / (np.exp(bias)[:, None] + grown.sum(axis=-1, keepdims=True))
    grown = grown * np.exp(bias)[:, None]
    return grown / grown.sum(axis=(-2, -1), keepdims=True) * scores.shape[-2]


def draw_theta(signal, rng, count):
    if hasattr(signal, "support"):
        which = rng.choice(len(signal.support), size=count, p=signal.probabilities)
        return (signal.support * signal.strength)[which]
    return rng.normal(size=(count, signal.features)) * signal.strength


def risk_in_dimension(signal, tokens, k_star, k, activation, rng, count, bias=None, gain=1.0):
    """(1/D) E|y − ŷ|² with tokens of D numbers: its mean and standard error."""
    dimension = k.shape[1]
    x = rng.normal(size=(count, tokens, dimension))
    x[:, 0] += draw_theta(signal, rng, count) @ k_star
    weights = activations(np.einsum("nld,hd->nhl", x, k), activation, bias, gain)
    output = np.einsum("nl,nld->nd", weights.mean(axis=1), x)
    losses = np.sum((x[:, 0] - output) ** 2, axis=1) / dimension
    return losses.mean(), losses.std() / np.sqrt(count)


def limit_risk(signal, tokens, m, r, activation, rng, count, bias=None, gain=1.0):
    """The D → ∞ risk by plain Monte Carlo: its mean and standard error."""
    heads, features = m.shape
    seen = rng.normal(size=(count, tokens, features))
    seen[:, 0] += draw_theta(signal, rng, count)
    scores = np.einsum("hf,nlf->nhl", m, seen)
    scores += np.einsum("hk,nlk->nhl", r, rng.normal(size=(count, tokens, heads)))
    miss = activations(scores, activation, bias, gain).mean(axis=1)
    miss[:, 0] -= 1
    losses = np.sum(miss**2, axis=1)
    return losses.mean(), losses.std() / np.sqrt(count)


def posterior(points, probabilities, x, k_star):
    """P(ε | X) by writing down the density of every token under every hypothesis."""
    likelihood = np.zeros(len(x))
    for token in range(len(x)):
        for theta, chance in zip(points, probabilities, strict=True):
            centre = np.zeros_like(x)
            centre[token] = theta @ k_star
            likelihood[token] += chance * np.exp(-np.sum((x - centre) ** 2) / 2)
    return likelihood / likelihood.sum()
