"""Which heads are needed: greedy pruning of a trained model."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from attnflow._checks import positive
from attnflow.models.single_location.model import SingleLocation


class Pruning(NamedTuple):
    """`risks[k]` after removing the heads `order[:k]`, k = 0 … H − 1."""

    order: np.ndarray
    risks: np.ndarray

    def spare(self, tolerance: float) -> int:
        """How many heads can go while the risk stays within (1 + tolerance) of the full model's."""
        positive("tolerance", tolerance)
        return int(np.flatnonzero(self.risks <= (1 + tolerance) * self.risks[0])[-1])


def prune(model: SingleLocation, params) -> Pruning:
    """Remove heads one by one, each time the one whose loss costs least, down to one head.

    The mean over heads becomes the mean over those left; Bayes-softmax normalizes over those left.
    Cost: H²/2 risks, each step's candidates in one compiled call.
    """
    active = np.ones(model.heads)
    order: list[int] = []
    with jax.enable_x64(True):
        here = jax.tree.map(jnp.asarray, params)
        risks = [float(masked_risks(model, here, active[None])[0])]
        while active.sum() > 1:
            left = np.flatnonzero(active)
            candidates = np.tile(active, (model.heads, 1))
            candidates[left, left] = 0
            tried = np.asarray(masked_risks(model, here, candidates))[left]
            best = left[int(np.argmin(tried))]
            active[best] = 0
            order.append(int(best))
            risks.append(float(tried.min()))
    return Pruning(np.array(order), np.array(risks))


@eqx.filter_jit
def masked_risks(model, params, masks):
    """The risk with the heads of each mask (mask, head) that are 1, over the same points."""

    def one(active):
        def of_block(params, theta, noise):
            own = params
            if model.law.joins_heads:
                own = params | {"b": jnp.where(active > 0, params["b"], -1e30)}
                output = jnp.mean(model.weights(own, theta, noise), axis=0)
            else:
                weights = model.weights(own, theta, noise)
                output = jnp.tensordot(active, weights, 1) / jnp.sum(active)
            return jnp.sum(output.at[0].add(-1.0) ** 2)

        return model.average_of(params, of_block)

    return jax.lax.map(one, masks)
