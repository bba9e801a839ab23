"""Reduced SGD against SGD in D dimensions, in distribution."""

from typing import Any

import numpy as np
import pytest
from scipy.stats import ks_2samp

from attnflow.dynamics.sgd import sgd
from attnflow.dynamics.sgd.wishart import (
    cholesky,
    gram_of_sum,
    haar_corner,
    wishart_factor,
)
from attnflow.models.single_location import SingleLocation, flipping_spike


def same_law(a, b) -> float:
    """The chance of samples this different under one law (Kolmogorov–Smirnov)."""
    test: Any = ks_2samp(a, b)
    return test.pvalue


def haar(rng, count, size):
    """Random rotations: LAPACK fixes the signs of Q's columns, which random ones undo."""
    signs = rng.choice([-1, 1], size=(count, 1, size))
    return np.linalg.qr(rng.normal(size=(count, size, size)))[0] * signs


def gram(factor):
    return np.einsum("ik...,jk...->ij...", factor, factor)


@pytest.mark.parametrize("degrees", [2, 3, 9])
def test_wishart_has_the_law_of_gram_matrices(degrees, rng):
    drawn = gram(wishart_factor(rng, (20_000,), 3, degrees))
    vectors = rng.normal(size=(3, degrees, 20_000))
    direct = np.einsum("idn,jdn->ijn", vectors, vectors)
    for i, j in ((0, 0), (2, 2), (0, 2)):
        assert same_law(drawn[i, j], direct[i, j]) > 1e-3
    assert np.linalg.matrix_rank(drawn[..., 0]) == min(3, degrees)


def test_corners_of_random_rotations(rng):
    drawn = haar_corner(rng, (5000,), 2, 5)
    direct = haar(rng, 5000, 5)[:, :2, :2]
    assert same_law(drawn[0, 1], direct[:, 0, 1]) > 1e-3
    determinant = np.linalg.det(np.moveaxis(drawn, -1, 0))
    assert same_law(np.abs(determinant), np.abs(np.linalg.det(direct))) > 1e-3


def test_merging_has_the_law_of_the_sum(rng):
    runs, parts, dimension = 4000, 5, 6
    shapes = rng.normal(size=(2, 3, parts))  # three vectors behind two heads, different each part
    vectors = np.zeros((runs, 2, dimension))
    for part in range(parts):
        vectors += shapes[..., part] @ haar(rng, runs, dimension)[:, :3]
    direct = vectors @ vectors.transpose(0, 2, 1)
    grams = np.broadcast_to(np.einsum("ikp,jkp->ijp", shapes, shapes)[:, :, None], (2, 2, runs, 5))
    merged = gram_of_sum(rng, grams, dimension)
    for i, j in ((0, 0), (1, 1), (0, 1)):
        assert same_law(merged[i, j], direct[:, i, j]) > 1e-3


def test_cholesky_of_full_and_singular_matrices(rng):
    vectors = rng.normal(size=(4, 3, 10))
    matrices = gram(vectors)  # 4 × 4 of rank 3
    np.testing.assert_allclose(gram(cholesky(matrices)), matrices, atol=1e-5)
    full = matrices + np.eye(4)[..., None]
    np.testing.assert_allclose(
        np.moveaxis(cholesky(full), -1, 0), np.linalg.cholesky(np.moveaxis(full, -1, 0))
    )


def laws(run):
    last = run.isel(step=-1)
    columns = [last[name].values.reshape(last.sizes["run"], -1) for name in last.data_vars]
    return np.concatenate(columns, axis=1)


CASES = [
    ("softmax", 8, 3, 1.5),
    ("softmax_1", 8, 4, 0.6),
    ("bayes_softmax", 8, 3, 1.0),
    ("softmax", 200, 8, 1.5),
    pytest.param("softmax", 500, 10, 1.5, marks=pytest.mark.slow),
    pytest.param("bayes_softmax", 200, 200, 0.5, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("activation", "dimension", "batch", "rate"), CASES)
def test_exact_level_has_the_law_of_direct_sgd(activation, dimension, batch, rate):
    model = SingleLocation(
        flipping_spike(), tokens=3, heads=2, activation=activation, dimension=dimension, samples=64
    )
    options = {"steps": 4, "rate": rate, "batch": batch, "runs": 600, "record": 2}
    direct = laws(sgd(model, level="direct", seed=1, **options))
    exact = laws(sgd(model, level="exact", seed=2, **options))
    values = [same_law(a, b) for a, b in zip(direct.T, exact.T, strict=True)]
    assert min(values) > 1e-3, values  # 12 to 15 columns, many of them twice
    spread = direct.std(axis=0)
    np.testing.assert_allclose(
        exact.mean(axis=0), direct.mean(axis=0), atol=float(5 * spread.max() / np.sqrt(300))
    )


@pytest.mark.slow
def test_the_cheap_levels_are_wrong_at_small_dimension_and_right_at_large():
    """The error is O(1/D): seen at D = 8, gone within the spread at D = 500."""

    def mean_q(dimension, level, seed):
        model = SingleLocation(
            flipping_spike(), tokens=3, heads=2, dimension=dimension, samples=1024
        )
        run = sgd(model, 4, 1.5, level=level, batch=20, runs=400, record=2, seed=seed)
        values = run.q.isel(step=-1).values[:, 0, 0]
        return values.mean(), values.std() / 20

    for level in ("fast", "batch_free"):
        exact, error = mean_q(8, "exact", 1)
        cheap, own = mean_q(8, level, 2)
        assert abs(cheap - exact) > 5 * np.hypot(error, own)
        exact, error = mean_q(500, "exact", 1)
        cheap, own = mean_q(500, level, 2)
        assert abs(cheap - exact) < 4 * np.hypot(error, own) + 0.01 * exact


def test_chunks_of_a_batch_are_one_batch(monkeypatch):
    from attnflow.dynamics.sgd import levels

    model = SingleLocation(flipping_spike(), tokens=3, heads=2, dimension=12, samples=64)
    options = {"steps": 3, "rate": 1.0, "batch": 7, "runs": 800, "record": 2}
    whole = laws(sgd(model, seed=1, **options))
    monkeypatch.setattr(levels, "CHUNK", 3)
    parts = laws(sgd(model, seed=2, **options))
    assert min(same_law(a, b) for a, b in zip(whole.T, parts.T, strict=True)) > 1e-3


def test_a_hundred_million_dimensions():
    model = SingleLocation(flipping_spike(), tokens=4, heads=2, dimension=10**8, samples=512)
    run = sgd(model, 20, 0.5, level="batch_free", record=3)
    assert float(run.m.isel(step=0).max()) < 1e-3
    assert float(run.m.isel(step=-1, feature=0).min()) > 0.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"level": "exakt"}, "did you mean 'exact'"),
        ({"steps": 0}, "steps"),
        ({"rate": -1.0}, "rate"),
        ({"batch": 0}, "batch"),
        ({"runs": 0}, "runs"),
    ],
)
def test_bad_options_are_refused(options, message):
    model = SingleLocation(flipping_spike(), tokens=3, heads=2, dimension=10, samples=64)
    with pytest.raises(ValueError, match=message):
        sgd(model, **({"steps": 2} | options))


def test_too_few_dimensions_for_the_reduced_levels():
    model = SingleLocation(flipping_spike(), tokens=3, heads=2, dimension=5, samples=64)
    with pytest.raises(ValueError, match="at least 6"):
        sgd(model, 2)
    assert sgd(model, 2, level="direct").sizes["step"] == 3
