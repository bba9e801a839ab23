"""One step of SGD at finite dimension, at four levels of detail (see `sgd`).

Every level is `start(...)` and a function from state to state; runs lie along the first axis.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from attnflow.dynamics.sgd.gradient import coordinates, pulled_back, scores_of
from attnflow.dynamics.sgd.wishart import cholesky, gram_of_sum, wishart_factor

CHUNK = 2048  # sequences in memory at a time, without their D-dimensional tokens
DIRECT_NUMBERS = 2_000_000  # token entries in memory at a time, with them


class State(NamedTuple):
    """`features` (run, feature, basis) and `heads` (run, head, basis) are k* and k in D dimensions,
    or their coordinates in a basis of their span, lower triangular; `own` has the bias `b` (run,
    head) and the gain `v` (run,) where the activation has them."""

    features: np.ndarray
    heads: np.ndarray
    own: dict[str, np.ndarray]


class Plan(NamedTuple):
    model: Any
    dimension: int
    batch: int
    rate: float
    rng: np.random.Generator


Step = Callable[[State], State]


def start(plan: Plan, runs: int, spanned: bool) -> State:
    """k* ~ N(0, 1/D), k ~ N(0, η²/D), b = 0, v = 1."""
    model, dimension, rng = plan.model, plan.dimension, plan.rng
    features = model.signal.features
    size = features + model.heads
    if spanned:
        vectors = np.moveaxis(wishart_factor(rng, (runs,), size, dimension), -1, 0)
    else:
        vectors = rng.standard_normal((runs, size, dimension))
    vectors = vectors / np.sqrt(dimension)
    own = {}
    if model.law.takes_bias:
        own["b"] = np.zeros((runs, model.heads))
    if model.law.has_sink:
        own["v"] = np.ones(runs)
    return State(vectors[:, :features], float(model.eta) * vectors[:, features:], own)


def chunks(batch: int, most: int):
    return (min(most, batch - done) for done in range(0, batch, most))


def direct(plan: Plan) -> Step:
    model, dimension, batch, rate, rng = plan
    most = max(1, DIRECT_NUMBERS // (model.tokens * dimension))

    def advance(state: State) -> State:
        runs = state.heads.shape[0]
        heads, own = state.heads.copy(), jax.tree.map(np.copy, state.own)
        for run in range(runs):
            here = jax.tree.map(lambda x, run=run: x[run], state)
            for count in chunks(batch, most):
                uniforms = rng.random((model.signal.inputs, count))
                tokens = rng.standard_normal((count, model.tokens, dimension))
                slope, slopes = _direct_gradient(model, here, uniforms, tokens)
                heads[run] -= rate / batch * np.asarray(slope)
                for name in own:
                    own[name][run] -= rate / batch * np.asarray(slopes[name])
        return State(state.features, heads, own)

    return advance


@eqx.filter_jit
def _direct_gradient(model, state, uniforms, noise):
    theta = model.signal.theta(model.signal.latent(uniforms))
    tokens = noise.at[:, 0].add(theta.T @ state.features)
    scores = jnp.einsum("hd,nld->hln", state.heads, tokens)

    def inner(misses):
        outputs = jnp.einsum("ln,nld->nd", misses, tokens)
        return jnp.einsum("nd,nld->ln", outputs, tokens) / tokens.shape[-1]

    slopes, own = pulled_back(model, scores, state.own, inner)
    return jnp.einsum("hln,nld->hd", slopes, tokens), own


def exact(plan: Plan) -> Step:
    outside = plan.dimension - plan.model.signal.features - plan.model.heads

    def sums(state, runs, count):
        factor = wishart_factor(plan.rng, (runs, count), plan.model.tokens, outside)
        span, own, grams = _spanned(plan, state, runs, count, np.moveaxis(factor, 2, 0))
        return span, own, gram_of_sum(plan.rng, np.moveaxis(grams, 0, 2), outside)

    def join(gram, other):
        return gram_of_sum(plan.rng, np.stack([gram, other], axis=-1), outside)

    return _spanned_step(plan, sums, join, lambda gram: gram)


def fast(plan: Plan) -> Step:
    outside = plan.dimension - plan.model.signal.features - plan.model.heads

    def sums(state, runs, count):
        span, own, grams = _spanned(plan, state, runs, count, None)
        return span, own, np.moveaxis(grams[..., 0], 0, 2)

    def turned(gram):
        """The orthogonal parts add up to normal vectors mixed by the coefficients' factor."""
        factor = wishart_factor(plan.rng, gram.shape[2:], gram.shape[0], outside)
        mixed = np.einsum("ik...,kj...->ij...", cholesky(gram), factor)
        return np.einsum("ik...,jk...->ij...", mixed, mixed)

    return _spanned_step(plan, sums, np.add, turned)


def _spanned_step(plan: Plan, sums, join, turned) -> Step:
    """A step from the sums over chunks of the batch, `join` adding their Gram matrices and `turned`
    giving that of the update's orthogonal part."""
    step = plan.rate / plan.batch

    def advance(state: State) -> State:
        runs = state.heads.shape[0]
        total = None
        for count in chunks(plan.batch, CHUNK):
            span, own, gram = sums(state, runs, count)
            if total is not None:
                span, own = jax.tree.map(np.add, (span, own), total[:2])
                gram = join(gram, total[2])
            total = span, own, gram
        assert total is not None
        return moved(plan, state, step, *total[:2], turned(total[2]))

    return advance


def moved(plan: Plan, state: State, step: float, span, own, gram) -> State:
    """The state after a step against the gradient `span` in the span and one outside it whose Gram
    matrix is `gram` (head, head, run)."""
    heads = state.heads - step * span
    features = plan.model.signal.features
    inner = heads[:, :, features:]
    rest = np.einsum("rhi,rki->hkr", inner, inner) + step**2 * gram
    heads[:, :, features:] = np.moveaxis(cholesky(rest), -1, 0)
    return State(state.features, heads, {x: state.own[x] - step * own[x] for x in own})


def _spanned(plan: Plan, state: State, runs: int, count: int, factors):
    model, rng = plan.model, plan.rng
    uniforms = rng.random((runs, model.signal.inputs, count))
    width = state.heads.shape[2]
    noise = rng.standard_normal((runs, model.tokens, width, count))
    result = _spanned_gradients(model, plan.dimension, state, uniforms, noise, factors)
    return jax.tree.map(np.array, result)


@eqx.filter_jit
def _spanned_gradients(model, dimension, states, uniforms, noise, factors):
    """For each run: the gradient in the span, those of bias and gain, and the Gram matrices of the
    gradient's orthogonal part, one a sequence (head, head, point); without Wishart factors, as if
    tokens were orthonormal, the Gram matrix of all coefficients."""

    def one(state, uniforms, noise, factor):
        theta = model.signal.theta(model.signal.latent(uniforms))
        coords = coordinates(state.features, theta, noise)

        def inner(misses):
            if factor is None:
                return misses
            pull = jnp.einsum("ln,lcn->cn", misses, coords)
            outer = jnp.einsum("ln,ljn->jn", misses, factor)
            spanned = jnp.einsum("cn,lcn->ln", pull, coords)
            return (spanned + jnp.einsum("jn,ljn->ln", outer, factor)) / dimension

        slopes, own = pulled_back(model, scores_of(state.heads, coords), state.own, inner)
        span = jnp.einsum("hln,lcn->hc", slopes, coords)
        if factor is None:
            return span, own, jnp.einsum("hln,kln->hk", slopes, slopes)[..., None]
        turned = jnp.einsum("hln,ljn->hjn", slopes, factor)
        return span, own, jnp.einsum("hjn,kjn->hkn", turned, turned)

    axes = (0, 0, 0, None if factors is None else 0)
    return jax.vmap(one, in_axes=axes)(states, uniforms, noise, factors)
