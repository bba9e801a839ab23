"""The gradient of one sequence's loss, in the scores and in what the activation adds."""

import jax
import jax.numpy as jnp


def pulled_back(model, scores, own, inner):
    """g = ∂(wᵀ G w/D)/∂χ (head, token, point), and the same of `own` (bias, gain), summed over
    points unless they come one a point. `inner(w)` = G w/D, G the inner products of the tokens."""
    output, back = jax.vjp(
        lambda scores, own: jnp.mean(model.activate(scores, own), axis=0), scores, own
    )
    misses = output.at[0].add(-1.0)
    return back(2 * inner(misses))


def coordinates(features, theta, noise):
    """Tokens (token, basis, point): noise, and θ on the first one."""
    return noise.at[0].add(features.T @ theta)


def scores_of(heads, coords):
    """χ = coordinates · k, (head, token, point)."""
    return jnp.einsum("hc,lcn->hln", heads, coords)
