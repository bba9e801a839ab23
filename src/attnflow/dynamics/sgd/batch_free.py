"""SGD whose cost knows neither the dimension nor the batch: mean gradient plus Gaussian noise."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from attnflow.dynamics.sgd.gradient import coordinates, pulled_back, scores_of
from attnflow.dynamics.sgd.levels import Plan, State, Step, moved
from attnflow.dynamics.sgd.wishart import cholesky, wishart_factor


def batch_free(plan: Plan) -> Step:
    base = plan.model
    points = base.fresh_points(base.samples, base.seed, swap_heads=True)
    model = dataclasses.replace(base, points=points)
    batch, rng = plan.batch, plan.rng
    outside = plan.dimension - base.signal.features - base.heads

    def advance(state: State) -> State:
        mean, second, gram = (np.asarray(x) for x in _moments(model, state))
        covariance = second - np.einsum("ri,rj->rij", mean, mean)
        spread = cholesky(np.moveaxis(covariance, 0, 2))
        kick = np.einsum("ijr,jr->ri", spread, rng.standard_normal(mean.T.shape))
        total = batch * mean + np.sqrt(batch) * kick
        span, own = _unpacked(state, total)
        factor = wishart_factor(rng, (len(mean),), base.heads, outside)
        mixed = np.einsum("ikr,kjr->ijr", cholesky(np.moveaxis(batch * gram, 0, 2)), factor)
        turned = np.einsum("ikr,jkr->ijr", mixed, mixed)
        return moved(plan, state, plan.rate / batch, span, own, turned)

    return advance


def _unpacked(state: State, flat: np.ndarray):
    runs, heads, width = state.heads.shape
    cut = heads * width
    own, rest = {}, flat[:, cut:]
    for name in sorted(state.own):
        size = state.own[name][0].size
        own[name], rest = rest[:, :size].reshape(state.own[name].shape), rest[:, size:]
    return flat[:, :cut].reshape(runs, heads, width), own


@eqx.filter_jit
def _moments(model, states):
    """Mean and second moment of one sequence's gradient, [span, b, v] in a row, and the mean Gram
    matrix of its score coefficients, over the model's points; for each run."""

    def one(state):
        def of_block(theta, noise):
            points = theta.shape[1]
            own = jax.tree.map(
                lambda x: jnp.broadcast_to(x[..., None], (*x.shape, points)), state.own
            )
            coords = coordinates(state.features, theta, noise)
            scores = scores_of(state.heads, coords)
            slopes, slopes_own = pulled_back(model, scores, own, lambda misses: misses)
            span = jnp.einsum("hln,lcn->hcn", slopes, coords).reshape(-1, points)
            parts = [slopes_own[name].reshape(-1, points) for name in sorted(own)]
            flat = jnp.concatenate([span, *parts])
            gram = jnp.einsum("hln,kln->hk", slopes, slopes)
            return jnp.sum(flat, axis=1), flat @ flat.T, gram

        return model.average(of_block)

    return jax.vmap(one)(states)
