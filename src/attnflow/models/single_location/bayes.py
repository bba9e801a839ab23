"""The best any estimator can do, and the heads that do it."""

from itertools import product

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from attnflow._checks import at_least, positive
from attnflow.models.single_location.points import Image, sobol, summed
from attnflow.models.single_location.signals import Discrete, Gaussian, Signal


def posterior(signal: Signal, projections, p=None):
    """P(ε = l | X) from the tokens' projections on the features (…, token, feature); the Bayes
    estimator is the sum of the tokens with these weights. `p`: the Gram matrix of the features,
    the identity as D → ∞."""
    return jax.nn.softmax(signal.log_evidence(projections, p), axis=-1)


def bayes_risk(
    signal: Signal, tokens: int, samples: int = 2**14, replicates: int = 8, seed: int = 0
) -> tuple[float, float]:
    """The risk 1 − E[P(ε | X)] of the Bayes estimator as D → ∞, and its standard error, from
    `replicates` independent sets of at least `samples` quasi-random points.

    >>> from attnflow.models.single_location.signals import flipping_spike
    >>> risk, error = bayes_risk(flipping_spike(2.0, 2.0), tokens=10)
    >>> bool(error < 1e-3), bool(0.53 < risk < 0.57)
    (True, True)
    """
    return believed_risk(signal, signal, tokens, samples, replicates, seed)


def bayes_samples(samples: int) -> int:
    """As many as the Bayes risk needs to be no worse than the averages of a model with `samples`;
    for those of the default, the default.

    >>> bayes_samples(8192), bayes_samples(256)
    (16384, 2048)
    """
    return max(2 * samples, 2**11)


def believed_risk(
    signal: Signal,
    believed: Signal,
    tokens: int,
    samples: int = 2**14,
    replicates: int = 8,
    seed: int = 0,
) -> tuple[float, float]:
    """The risk of the posterior of one who takes θ to have the law `believed`."""
    at_least("tokens", tokens, 2, "attention needs two tokens to choose from")
    at_least("replicates", replicates, 2, "a standard error needs two")
    if signal.features != believed.features:
        raise ValueError("both laws must be of the same number of features")
    image = (Image((1.0,) * signal.features, 1.0, 0),)
    normals = tokens * signal.features
    with jax.enable_x64(True):
        sets = [
            sobol(signal.inputs, normals, samples, seed * replicates + i, image)
            for i in range(replicates)
        ]
        risks = [float(_risk(signal, believed, tokens, points)) for points in sets]
    return float(np.mean(risks)), float(np.std(risks, ddof=1) / np.sqrt(replicates))


@eqx.filter_jit
def _risk(signal, believed, tokens, points):
    def of_block(block):
        uniforms, normals = points.numbers(block)
        theta = signal.theta(signal.latent(uniforms))
        seen = normals.reshape(tokens, signal.features, -1).at[0].add(theta)
        chances = posterior(believed, jnp.moveaxis(seen, 2, 0))
        if signal is believed:  # calibrated: the mean square of the miss is 1 − P(ε)
            return jnp.sum(1 - chances[:, 0])
        return jnp.sum(chances.at[:, 0].add(-1.0) ** 2)

    return summed(of_block, points.blocks()) / points.count


def bayes_heads(signal: Discrete) -> dict[str, np.ndarray]:
    """Parameters of a Bayes-softmax of one head a point of the support that is the Bayes estimator:
    k_h = Σ_f θ_f k*_f and b_h = log P(θ) − |θ|²/2."""
    points = np.asarray(signal.points())
    bias = np.log(signal.probabilities) - np.sum(points**2, axis=1) / 2
    return {"m": points, "r": np.zeros((len(points), len(points))), "b": bias}


def quadrature(signal: Gaussian, nodes: int) -> Discrete:
    """Gauss–Hermite nodes, `nodes` a feature, in place of the Gaussian law."""
    at_least("nodes", nodes, 1)
    x, weight = np.polynomial.hermite_e.hermegauss(nodes)
    weight = weight / weight.sum()
    support = np.array(list(product(x, repeat=signal.features)))
    chances = np.array([np.prod(w) for w in product(weight, repeat=signal.features)])
    return Discrete(np.asarray(signal.strength), support, chances / chances.sum())


def heads_needed(
    signal: Signal, tokens: int, tolerance: float = 0.01, most: int = 4096
) -> tuple[int, float]:
    """How many Bayes-softmax heads come within the relative `tolerance` of the Bayes risk, and the
    risk they reach: the points of a discrete law; for a Gaussian the first product rule of
    Gauss–Hermite nodes that does (trained heads may need fewer)."""
    positive("tolerance", tolerance)
    best = bayes_risk(signal, tokens)[0]
    if isinstance(signal, Discrete):
        return len(signal.support), best
    assert isinstance(signal, Gaussian)
    nodes = 2
    while nodes**signal.features <= most:
        risk = believed_risk(signal, quadrature(signal, nodes), tokens)[0]
        if risk <= (1 + tolerance) * best:
            return nodes**signal.features, risk
        nodes += 1
    raise ValueError(f"more than {most} heads are needed for the tolerance {tolerance:g}")
