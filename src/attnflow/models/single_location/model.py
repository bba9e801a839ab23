"""Many heads look for one token: the high-dimensional single-location model in order parameters.

One of L Gaussian tokens in D dimensions carries θ, spread over F hidden directions k*; H heads with
weights k must return it. As D grows everything depends on m = k·k* and q = k·k only.
"""

import functools
from itertools import product
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from attnflow import attention
from attnflow._checks import at_least, choice, fits_memory, is_traced, positive_moderate
from attnflow.attention.normalizations import row_sum
from attnflow.models.interface import Model, Observables
from attnflow.models.single_location.points import BLOCK_BITS, Image, Points, sobol, summed
from attnflow.models.single_location.signals import Signal

ACTIVATIONS = ("softmax", "softmax_1", "bayes_softmax")


class SingleLocation(Model):
    """The population risk E Σ_l (δ_{l,ε} − (1/H) Σ_h σ(χ)_{hl})² over m, r and what the activation
    adds: a bias b_h each head (softmax_1, bayes_softmax) and a gain v (softmax_1).

    χ_hl = Σ_f m_hf χ*_fl + Σ_h' r_hh' ξ_h'l with χ*_fl ~ N(δ_{l,ε} θ_f, 1), ξ ~ N(0, 1). Here r is
    *any* square root of Q = q − m mᵀ. Its gradient flow r' = −2 (∂E/∂Q) r gives Q' = −2(GQ + QG),
    which is what training in D dimensions does to Q; r does not stay symmetric, and the gradient
    flow of the symmetric root is another one.

    `gradient_flow(model, t1)` is SGD at vanishing step, τ = step size × steps. The start is that of
    k ~ N(0, η²/D), drawn in law from `seed` (or the key): m of size η/√D, q near η² I; or `start`,
    given as parameters.
    `finite`: the exact risk at dimension D instead of its limit, E wᵀ((1 − n/D) I + AAᵀ/D) w with
    n = F + H, w the summands above and A the tokens' coordinates in the span of k* and k.

    Averages are over at least `samples` scrambled Sobol points, mirror images counted (in the
    features in which the signal is symmetric, and in ξ), the same at every step. Memory does not
    grow with `samples`.

    Observables: `loss`, `m` (head, feature), `q` (head, other_head), `noise` = tr Q, and `bias` and
    `gain` where the activation has them.
    """

    signal: Signal
    tokens: int = 5
    heads: int = 2
    activation: str = "softmax"
    eta: float = 1.0
    dimension: float = 1e4
    finite: bool = False
    samples: int = 8192
    seed: int = 0
    start: dict[str, np.ndarray] | None = None
    points: Any = None  # Points, made from the other fields unless given

    dims: ClassVar = {
        "m": ("head", "feature"),
        "q": ("head", "other_head"),
        "bias": ("head",),
    }
    shared: ClassVar = ("points",)

    def __post_init__(self):
        if self.points is None:
            at_least("tokens", self.tokens, 2, "attention needs two tokens to choose from")
            at_least("heads", self.heads, 1)
            self._check_memory()
            object.__setattr__(self, "points", self.fresh_points(self.samples, self.seed))
        super().__post_init__()

    def _check_memory(self) -> None:
        """A block of points, the scores of all heads at it, and their gradients."""
        columns = self.signal.features + self.heads
        shown = f"tokens = {self.tokens}, heads = {self.heads}, features = {self.signal.features}"
        numbers = 2**BLOCK_BITS * self.tokens * (2 * columns + 3 * self.heads)
        fits_memory(shown, 8 * (numbers + 30 * columns**2))

    def __check_init__(self):
        choice("activation", self.activation, ACTIVATIONS)
        positive_moderate("eta", self.eta)
        positive_moderate("dimension", self.dimension)
        wanted = {"m", "r", *["b"] * self.law.takes_bias, *["v"] * self.law.has_sink}
        if self.start is not None and set(self.start) != wanted:
            raise ValueError(
                f"start: {self.activation} has the parameters {', '.join(sorted(wanted))} (got "
                f"{', '.join(sorted(self.start))})"
            )
        if not any(is_traced(x) for x in jax.tree.leaves(self.signal)):
            signs = {image.features for image in self.points.images}
            lost = [sign for sign in signs if not self.signal.allows(np.array(sign))]
            if lost:
                raise ValueError(
                    f"signal: its law changes under the signs {lost[0]} that the points mirror; "
                    "build the model with this signal instead of replacing another's"
                )
        if not np.all(np.asarray(self.dimension) >= self.signal.features + self.heads):
            raise ValueError(
                f"dimension must be at least F + H = {self.signal.features + self.heads}: features "
                f"and heads span that many directions (got {self.dimension})"
            )

    def fresh_points(
        self, samples: int, seed: int, swap_heads: bool = False, keep: bool | None = None
    ) -> Points:
        """Points for the averages, with the sign symmetries of the problem built in exactly, and
        with `swap_heads` its symmetry between heads: without it heads drift apart by the error of
        the average as well as by their own noise."""
        columns = self.signal.features + self.heads
        normals = self.tokens * columns
        shifts = range(self.heads) if swap_heads else (0,)
        images = product(self.signal.mirrors(), (1.0, -1.0), shifts)
        group = tuple(Image(*image) for image in images)
        return sobol(self.signal.inputs, normals, samples, seed, group, keep)

    @property
    def law(self) -> attention.Attention:
        return attention.get(self.activation)

    def init(self, key=None):
        if self.start is not None and key is None:
            return {name: jnp.asarray(value) for name, value in self.start.items()}
        key = jax.random.key(self.seed) if key is None else key
        m, r = initial_overlaps(key, self.signal.features, self.heads, self.eta, self.dimension)
        params = {"m": m, "r": r}
        if self.law.takes_bias:
            params["b"] = jnp.zeros(self.heads, m.dtype)
        if self.law.has_sink:
            params["v"] = jnp.ones((), m.dtype)
        return params

    def loss(self, params):
        return self.average_of(params, self.squared_error)

    def value_and_slope(self, params):
        """The loss and its gradient in one pass over the points, where `jax.value_and_grad` takes
        two."""
        turned, back = jax.vjp(self._turned, params)

        def of_block(theta, noise):
            return jax.lax.map(
                lambda moved: jax.value_and_grad(self.squared_error)(moved, theta, noise), turned
            )

        values, slopes = self._over_blocks(of_block)
        return jnp.sum(values), back(slopes)[0]

    def average_of(self, params, function):
        """The mean of `function(params, θ, noise)`, as in `average`, for a function that depends on
        the scores and on rotations of the noise only: parameters can then take the place of the
        noise in turning to an image, which is cheaper."""
        turned = self._turned(params)

        def of_block(theta, noise):
            @functools.partial(jax.checkpoint, prevent_cse=False)
            def of_image(moved):
                return function(moved, theta, noise)

            return summed(of_image, turned, at_once=self.points.few)

        return self._over_blocks(of_block)

    def _turned(self, params):
        """Parameters that do to the points what `params` do to each of their images."""
        signs, orders = self._images()
        rows = jnp.concatenate([params["m"], params["r"]], axis=1) * signs[:, None]
        if orders is not None:
            rows = jnp.take_along_axis(rows, jnp.argsort(orders)[:, None], axis=2)
        features = self.signal.features
        own = jax.tree.map(
            lambda x: jnp.broadcast_to(x, (len(signs), *jnp.shape(x))), self._own(params)
        )
        return {"m": rows[..., :features], "r": rows[..., features:]} | own

    def average(self, function):
        """The mean over points and mirror images of `function(θ, noise)` of one block: θ (feature,
        point), noise (token, feature and head, point); one sum over its points each."""

        def of_block(theta, noise):
            def of_image(image):
                signs, order = image
                moved = noise if order is None else noise[:, order]
                feature_signs = signs[: self.signal.features]
                return function(feature_signs[:, None] * theta, signs[:, None] * moved)

            return summed(of_image, self._images())

        return self._over_blocks(of_block)

    def _over_blocks(self, function):
        columns = self.signal.features + self.heads

        @functools.partial(jax.checkpoint, prevent_cse=False)
        def of_block(block):
            uniforms, normals = self.points.numbers(block)
            theta = self.signal.theta(self.signal.latent(uniforms))
            return function(theta, normals.reshape(self.tokens, columns, -1))

        total = summed(of_block, self.points.blocks())
        return jax.tree.map(lambda x: x / self.points.count, total)

    def _images(self):
        """Signs of all columns, and their order if any image changes it."""
        features, heads = self.signal.features, np.arange(self.heads)
        images = self.points.images
        signs = jnp.array([[*x.features, *[x.heads] * self.heads] for x in images])
        if not any(x.shift for x in images):
            return signs, None
        orders = [[*range(features), *(features + (heads + x.shift) % self.heads)] for x in images]
        return signs, jnp.array(orders)

    def weights(self, params, theta, noise):
        """σ(χ), (head, token, point), the relevant token first."""
        return self.activate(jnp.stack(self._scores(params, theta, noise)), self._own(params))

    def _scores(self, params, theta, noise):
        """(token, point) of each head: apart, and without a matrix product, they are faster."""
        rows = jnp.concatenate([params["m"], params["r"]], axis=1)
        scores = []
        for row, m in zip(rows, params["m"], strict=True):
            score = row[0] * noise[:, 0]
            for c in range(1, noise.shape[1]):
                score = score + row[c] * noise[:, c]
            scores.append(score.at[0].add(m @ theta))
        return scores

    def _own(self, params):
        return {x: params[x] for x in ("b", "v") if x in params}

    def activate(self, scores, own):
        """σ of scores (head, token, point); `own` holds the bias b, (head,) or (head, point), and
        the gain v if the activation has them."""
        bias = own.get("b")
        if bias is not None and jnp.ndim(bias) == 1:
            bias = bias[:, None]
        # Shifted here by a constant: cheaper to differentiate than the shift of the registry.
        if bias is None:
            top = jnp.max(scores, axis=1, keepdims=True)
        elif self.law.joins_heads:
            top = jnp.max(scores + bias[:, None], axis=(0, 1), keepdims=True)
        else:
            top = jnp.maximum(jnp.max(scores, axis=1, keepdims=True), bias[:, None])
        top = jax.lax.stop_gradient(top)
        if bias is not None and self.law.has_sink:
            bias = bias - top[:, 0]
        weights = self.law(scores - top, bias=bias, axis=1, heads=0, shift=False)
        return own["v"] * weights if "v" in own else weights

    def misses(self, params, theta, noise):
        """w = (1/H) Σ_h σ − δ_{l,ε}, (token, point)."""
        scores, own = self._scores(params, theta, noise), self._own(params)
        if self.law.joins_heads:  # one sum for all: the mean weight is that of the added heads
            scores = [x + b for x, b in zip(scores, own["b"], strict=True)]
            top = jax.lax.stop_gradient(jnp.max(jnp.stack([jnp.max(x, axis=0) for x in scores]), 0))
            grown = functools.reduce(jnp.add, [self.law.similarity(x - top) for x in scores])
            return row_sum(grown, axis=0).at[0].add(-1.0)
        each = []
        for h, score in enumerate(scores):
            alone = own | {"b": own["b"][h : h + 1]} if "b" in own else own
            each.append(self.activate(score[None], alone)[0])
        return (functools.reduce(jnp.add, each) / self.heads).at[0].add(-1.0)

    def squared_error(self, params, theta, noise):
        misses = self.misses(params, theta, noise)
        if not self.finite:
            return jnp.sum(misses**2)
        columns = noise.shape[1]
        pull = jnp.sum(misses[:, None] * noise, axis=0)  # Aᵀw, the noise part of the coordinates
        pull = pull.at[: theta.shape[0]].add(misses[0] * theta)
        outside = 1 - columns / self.dimension
        return outside * jnp.sum(misses**2) + jnp.sum(pull**2) / self.dimension

    def observe(self, params) -> Observables:
        m, noise = params["m"], params["r"] @ params["r"].T
        seen = {
            "loss": self.loss(params),
            "m": m,
            "q": m @ m.T + noise,
            "noise": jnp.trace(noise),
        }
        if self.law.takes_bias:
            seen["bias"] = params["b"]
        if self.law.has_sink:
            seen["gain"] = params["v"]
        return seen


def initial_overlaps(key, features: int, heads: int, eta, dimension):
    """m and r of k* ~ N(0, 1/D) and k ~ N(0, η²/D), with the features made orthonormal.

    The Gram matrix of F + H such vectors is Wishart; its triangular factor is drawn entry by entry
    (Bartlett), at a cost that knows nothing of D.
    """
    size = features + heads
    normal_key, chi_key = jax.random.split(key)
    factor = jnp.tril(jax.random.normal(normal_key, (size, size)), -1)
    degrees = dimension - jnp.arange(size)
    factor = factor + jnp.diag(jnp.sqrt(2 * jax.random.gamma(chi_key, degrees / 2)))
    factor = factor / jnp.sqrt(dimension)
    return eta * factor[features:, :features], eta * factor[features:, features:]
