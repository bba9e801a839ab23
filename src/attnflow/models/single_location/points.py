"""Where the averages are taken: scrambled Sobol points, in blocks that fit the cache.

A block of 2^k consecutive Sobol points is the first block with a constant added bit by bit, so that
any number of blocks can be made inside the compiled program from the first one and a row of bits
for each: memory does not grow with the number of points. As long as all are few, they are kept.
"""

import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy  # its parts load when they are used
from jax.scipy.special import ndtri

from attnflow._checks import at_least
from attnflow._checks import seed as check_seed

BLOCK_BITS = 10
BITS = 30
MOST_BITS = 24
KEPT_BYTES = 64 << 20
FEW = 1024


class Image(NamedTuple):
    """One of a group of symmetries of the average, applied to all points alike: the signs of the
    features' columns, the common sign of the heads' columns, and how far these are shifted."""

    features: tuple[float, ...]
    heads: float
    shift: int


class Points(eqx.Module):
    """2^k points, each a few uniform numbers for the signal and many standard normal ones.

    `first` (dimensions × block) and `moves` (blocks × dimensions) are bits; `uniforms` and
    `normals` (blocks × dimensions × block) the numbers made of them, None if they are made on the
    way. `images` are what every point stands for: signs of its normal columns and a shift of the
    heads' columns among themselves (`Image`).
    """

    first: np.ndarray
    moves: np.ndarray
    uniforms: jax.Array | None
    normals: jax.Array | None
    leading: int = eqx.field(static=True)
    images: "tuple[Image, ...]" = eqx.field(static=True)

    @property
    def count(self) -> int:
        """With the images."""
        return self.first.shape[-1] * self.moves.shape[-2] * len(self.images)

    @property
    def few(self) -> bool:
        """All images of a block are fastest at once, in the cache still in batches of runs."""
        return self.first.shape[-1] * len(self.images) <= FEW

    def anew(self, samples: int, seed: int) -> "Points":
        """Other points for the same average."""
        return sobol(self.leading, self.first.shape[0] - self.leading, samples, seed, self.images)

    def blocks(self) -> Any:
        """What to scan over; `numbers` makes uniforms and normals of one element."""
        if self.normals is None:
            return jnp.asarray(self.moves)
        return jnp.asarray(self.uniforms), jnp.asarray(self.normals)

    def numbers(self, block) -> tuple[jax.Array, jax.Array]:
        if self.normals is None:
            return _numbers(jnp.asarray(self.first) ^ block[:, None], self.leading)
        return block


def _numbers(bits, leading: int):
    uniform = (bits + 0.5) * 2.0**-BITS
    return uniform[:leading], ndtri(uniform[leading:])


@functools.partial(jax.jit, static_argnums=2)
def _all_numbers(first, moves, leading: int):
    return jax.vmap(lambda move: _numbers(first ^ move[:, None], leading))(moves)


@functools.lru_cache(maxsize=16)
def sobol(
    leading: int,
    normals: int,
    samples: int,
    seed: int,
    images: "tuple[Image, ...]",
    keep: bool | None = None,
) -> Points:
    """A power of two of points that makes at least `samples` together with their images, scrambled
    by `seed`: `leading` uniform numbers and `normals` normal ones each. Cost: O(samples ·
    dimensions)."""
    at_least("samples", samples, 1, "an average needs points")
    check_seed("seed", seed)
    if samples > len(images) << MOST_BITS:
        raise ValueError(f"samples: at most 2^{MOST_BITS} points (asked for {samples})")
    if leading + normals > scipy.stats.qmc.Sobol.MAXDIM:
        raise ValueError(
            f"tokens × (features + heads): a point would have {leading + normals} coordinates, and "
            f"quasi-random ones have at most {scipy.stats.qmc.Sobol.MAXDIM}; take fewer"
        )
    total = max(1, int(np.ceil(np.log2(samples / len(images)))))
    inner = min(total, BLOCK_BITS)
    dimensions = leading + normals
    engine = scipy.stats.qmc.Sobol(dimensions, bits=BITS, rng=np.random.default_rng(seed))
    first = _bits(engine.random(2**inner))
    directions = _directions(engine, total)
    moves = np.zeros((1, dimensions), np.uint32)
    for direction in directions[inner:]:
        moves = np.concatenate([moves, moves ^ direction])
    first = np.ascontiguousarray(first.T)
    if keep is None:
        keep = first.shape[1] * len(moves) * dimensions * 8 <= KEPT_BYTES
    kept = (None, None)
    if keep:
        with jax.enable_x64(True):
            # on the device: a copy at every call would cost as much as the use
            kept = _all_numbers(first, moves, leading)
    return Points(first, moves, *kept, leading=leading, images=images)


def _directions(engine: Any, total: int) -> list[np.ndarray]:
    """What each bit of a point's number adds. Points come in the order of the Gray code, in which
    number 2^b has the bits b and b − 1."""

    def point(number: int) -> np.ndarray:
        engine.reset()
        if number:
            engine.fast_forward(number)
        return _bits(engine.random(1))[0]

    origin = point(0)
    directions: list[np.ndarray] = []
    for bit in range(total):
        before = directions[-1] if bit else np.uint32(0)
        directions.append(point(2**bit) ^ origin ^ before)
    return directions


def _bits(points: np.ndarray) -> np.ndarray:
    return np.rint(points * 2.0**BITS).astype(np.uint32)


def summed(function, inputs, at_once: bool = False):
    """Σ function(x) over the leading axis of `inputs`, one x in memory at a time, or all."""
    if at_once:
        return jax.tree.map(lambda x: jnp.sum(x, axis=0), jax.vmap(function)(inputs))
    shapes = jax.eval_shape(function, jax.tree.map(lambda x: x[0], inputs))
    zero = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return jax.lax.scan(
        lambda sums, x: (jax.tree.map(jnp.add, sums, function(x)), None), zero, inputs
    )[0]
