"""The arrays on which rows of the ledger are checked, against the model and known integrals."""

import jax
import numpy as np
import pytest

from attnflow.models.single_location import SingleLocation, discrete, flipping_spike
from attnflow.papers.specialization import _expansion as ex
from attnflow.papers.specialization._flows import first_time

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("activation", ex.ACTIVATIONS)
def test_the_risk_is_that_of_the_model_on_its_own_points(activation):
    model = SingleLocation(flipping_spike(), tokens=3, activation=activation, samples=256)
    m, r, b = RNG.normal(size=(2, 2)), RNG.normal(size=(2, 2)), RNG.normal(size=2)
    own = {"b": b} if model.law.takes_bias else {}
    own |= {"v": np.array(1.3)} if model.law.has_sink else {}
    with jax.enable_x64(True):
        expected = float(model.loss({"m": m, "r": r} | own))
        uniforms, normals = (np.concatenate(x, axis=-1) for x in model.points.blocks())
        theta = np.asarray(model.signal.theta(model.signal.latent(uniforms))).T
    noise = np.moveaxis(normals.reshape(3, 4, -1), -1, 0)
    total = 0.0
    for image in model.points.images:
        signs = np.array([*image.features, image.heads, image.heads])
        weight = np.full(len(theta), 1 / model.points.count)
        points = ex.Points(theta * signs[:2], noise * signs, weight)
        total += ex.risk(activation, points, m, r, b, 1.3)
    assert total == pytest.approx(expected, rel=1e-12)


def test_closed_slopes_are_the_complex_ones():
    points = ex.mirrored(discrete([[1.0, 2.0], [0.5, -1.0]]), 3, 2, 10, 0)
    m, r = RNG.normal(size=(2, 2)), RNG.normal(size=(2, 2))
    in_m, in_r = ex.softmax_slopes(points, m, r)
    np.testing.assert_allclose(in_m, ex.slope(lambda x: ex.risk("softmax", points, x, r), m))
    np.testing.assert_allclose(in_r, ex.slope(lambda x: ex.risk("softmax", points, m, x), r))


def test_fifth_degree_points_have_the_moments_of_normal_numbers():
    points = ex.fifth_degree(discrete([[0.0]]), 2, 1)
    z = points.noise.reshape(-1, 4)
    powers = [(0, 0, 0, 0), (2, 0, 0, 0), (4, 0, 0, 0), (2, 2, 0, 0), (1, 1, 1, 1), (1, 2, 2, 0)]
    exact = [1, 1, 3, 1, 0, 0]
    found = [points.weight @ np.prod(z ** np.array(power), axis=1) for power in powers]
    np.testing.assert_allclose(found, exact, atol=1e-12)


def test_taylor_coefficients_and_hermite_points():
    np.testing.assert_allclose(ex.taylor(np.exp), [1, 1, 1 / 2, 1 / 6, 1 / 24, 1 / 120], rtol=1e-9)
    normals, weight = ex.hermite(2, 1, 5)
    assert weight @ (normals[:, 0, 0] ** 4 * normals[:, 1, 0] ** 2) == pytest.approx(3)


def test_a_threshold_is_met_between_records():
    times, path = np.array([0.0, 1.0, 2.0]), np.exp([-3.0, -2.0, -1.0])
    assert first_time(times, path, np.exp(-1.5)) == pytest.approx(1.5)
    assert first_time(times, path, 1.0) == np.inf
    assert first_time(times, path, np.exp(-4)) == 0
