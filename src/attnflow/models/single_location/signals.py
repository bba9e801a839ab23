"""What the relevant token carries: the law of θ, its weights on the F hidden features.

θ = strength ⊙ u with u from a fixed law, so that strengths can be varied and differentiated while
the points of an average stay where they are.
"""

import abc
from collections.abc import Callable
from itertools import product

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp, ndtri

from attnflow._checks import at_least, finite, fits_memory, is_traced, positive, positive_moderate

MIRRORED_FEATURES = 4  # 2^4 mirror images at most


class Signal(eqx.Module):
    """A law of θ in F dimensions.

    `mean` and `covariance`; `theta(latent(uniforms))` maps `inputs` uniform numbers to a draw of θ
    (input or feature axis first), `latent` doing what does not depend on the strength;
    `log_evidence(x, p)` = log ∫ exp(θ·x − θᵀpθ/2) P(dθ) for projections x (feature axis last) on
    features of Gram matrix p, what the posterior of the relevant token is made of; `allows(sign)`,
    whether θ and sign ⊙ θ have the same law.
    """

    strength: eqx.AbstractVar[np.ndarray]

    @property
    def features(self) -> int:
        return np.shape(self.strength)[-1]

    @property
    @abc.abstractmethod
    def inputs(self) -> int: ...

    @abc.abstractmethod
    def mean(self) -> np.ndarray: ...

    @abc.abstractmethod
    def covariance(self) -> np.ndarray: ...

    @abc.abstractmethod
    def latent(self, uniforms): ...

    @abc.abstractmethod
    def theta(self, latent): ...

    @abc.abstractmethod
    def log_evidence(self, projections, p=None) -> jax.Array: ...

    @abc.abstractmethod
    def allows(self, sign: np.ndarray) -> bool: ...

    def mirrors(self) -> tuple[tuple[float, ...], ...]:
        """All sign patterns that `allows` finds; of many features only the all-equal ones."""
        count = self.features
        signs = product((1.0, -1.0), repeat=count if count <= MIRRORED_FEATURES else 1)
        full = [sign if len(sign) == count else sign * count for sign in signs]
        return tuple(sign for sign in full if self.allows(np.array(sign)))


class Discrete(Signal):
    """θ = strength ⊙ support[k] with probability probabilities[k]."""

    strength: np.ndarray
    support: np.ndarray
    probabilities: np.ndarray

    def __check_init__(self):
        positive("signal strength", self.strength)
        finite("support", self.support)
        count, features = np.shape(self.support)[-2:]
        if features != self.features or features < 1:
            raise ValueError(f"support must be points of {self.features} ≥ 1 features")
        if np.shape(self.probabilities)[-1] != count:
            raise ValueError(f"probabilities: one for each of the {count} points of the support")
        if is_traced(self.probabilities):
            return
        weights = np.asarray(self.probabilities, float)
        if (weights <= 0).any() or not np.allclose(weights.sum(axis=-1), 1, rtol=0, atol=1e-9):
            raise ValueError(
                f"probabilities must be positive and sum to one (sum {weights.sum(axis=-1)})"
            )

    @property
    def inputs(self):
        return 1

    def points(self):
        """The support of θ itself."""
        return self.support * self.strength

    def mean(self):
        return self.probabilities @ self.points()

    def covariance(self):
        centred = self.points() - self.mean()
        return (centred * self.probabilities[:, None]).T @ centred

    def latent(self, uniforms):
        steps = jnp.cumsum(jnp.asarray(self.probabilities))
        which = jnp.clip(jnp.searchsorted(steps, uniforms[0], side="right"), 0, steps.size - 1)
        return jnp.asarray(self.support)[which].T

    def theta(self, latent):
        return jnp.asarray(self.strength)[:, None] * latent

    def log_evidence(self, projections, p=None):
        points = jnp.asarray(self.points())
        p = jnp.eye(self.features) if p is None else p
        bias = jnp.log(jnp.asarray(self.probabilities)) - jnp.sum(points @ p * points, axis=-1) / 2
        return logsumexp(projections @ points.T + bias, axis=-1)

    def allows(self, sign):
        support, weights = np.asarray(self.support), np.asarray(self.probabilities)
        if support.ndim > 2:  # one law for each run of a batch
            laws = zip(support, weights, strict=True)
            return all(_reflects(points, chances, sign) for points, chances in laws)
        return _reflects(support, weights, sign)


def _reflects(support: np.ndarray, probabilities: np.ndarray, sign: np.ndarray) -> bool:
    def law(points):
        rows = np.column_stack([np.round(points, 12) + 0.0, probabilities])
        return rows[np.lexsort(rows.T)]

    return np.allclose(law(support * sign), law(support))


class Gaussian(Signal):
    """θ_f ~ N(0, strength_f²), independent."""

    strength: np.ndarray

    def __check_init__(self):
        positive("signal strength", self.strength)

    @property
    def inputs(self):
        return self.features

    def mean(self):
        return np.zeros(self.features)

    def covariance(self):
        return np.diag(np.asarray(self.strength) ** 2)

    def latent(self, uniforms):
        return ndtri(uniforms)

    def theta(self, latent):
        return jnp.asarray(self.strength)[:, None] * latent

    def log_evidence(self, projections, p=None):
        precision = jnp.diag(jnp.asarray(self.strength) ** -2)
        posterior = precision + (jnp.eye(self.features) if p is None else p)
        shift = jnp.linalg.slogdet(precision)[1] - jnp.linalg.slogdet(posterior)[1]
        pulled = jnp.linalg.solve(posterior, projections[..., None])[..., 0]
        return (jnp.sum(pulled * projections, axis=-1) + shift) / 2

    def allows(self, sign):
        del sign
        return True


def flipping_spike(nu1: float = 2.0, nu2: float = 2.0) -> Discrete:
    """F = 2: θ₁ = √ν₁ always, θ₂ = ±√ν₂ with equal chances.

    >>> flipping_spike(2.0, 8.0).covariance().round(6)
    array([[0., 0.],
           [0., 8.]])
    """
    positive_moderate("nu1", nu1)
    positive_moderate("nu2", nu2)
    support = np.array([[1.0, 1.0], [1.0, -1.0]])
    return Discrete(np.sqrt([nu1, nu2]), support, np.full(2, 0.5))


def spikes(features: int, nu: float) -> Discrete:
    """θ = √ν e_f, f uniform over the features."""
    at_least("features", features, 1)
    fits_memory(f"features = {features}", 2 * 8 * features**2)
    positive_moderate("nu", nu)
    strength = np.full(features, np.sqrt(nu))
    return Discrete(strength, np.eye(features), np.full(features, 1 / features))


def gaussian(features: int, nu1: float, nu2: float | None = None) -> Gaussian:
    """θ_f ~ N(0, ν_f), ν_f even between ν₁ and ν₂; isotropic if only one is given."""
    at_least("features", features, 1)
    fits_memory(f"features = {features}", 2 * 8 * features**2)
    positive_moderate("nu1", nu1)
    if nu2 is not None:
        positive_moderate("nu2", nu2)
    return Gaussian(np.sqrt(np.linspace(nu1, nu1 if nu2 is None else nu2, features)))


def discrete(support, probabilities=None) -> Discrete:
    """Any finite support, one row a point; equal chances unless told otherwise."""
    support = np.asarray(support, float)
    if support.ndim != 2:
        raise ValueError("support must be a table of points, one row each")
    if probabilities is None:
        probabilities = np.full(len(support), 1 / len(support))
    return Discrete(np.ones(support.shape[1]), support, np.asarray(probabilities, float))


def from_sampler(
    sampler: Callable[[np.random.Generator, int], np.ndarray],
    features: int,
    draws: int = 4096,
    seed: int = 0,
) -> Discrete:
    """The empirical law of `draws` draws of `sampler(generator, count)`: every average, posterior
    and Bayes risk is then that of those draws."""
    at_least("features", features, 1)
    at_least("draws", draws, 1)
    drawn = np.asarray(sampler(np.random.default_rng(seed), draws), float)
    if drawn.shape != (draws, features):
        raise ValueError(
            f"the sampler must return {draws} × {features} numbers (got shape {drawn.shape})"
        )
    return discrete(drawn)
