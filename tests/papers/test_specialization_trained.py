"""The gradient written out for the ledger's trained heads, against the library's model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnflow.models.single_location import SingleLocation, discrete, gaussian
from attnflow.papers.specialization._trained import (
    ACTIVATIONS,
    Heads,
    draw,
    errors,
    risk_and_slope,
    theta,
)

LAW = discrete([[1.0, 2.0], [-1.0, 0.5], [0.0, -2.0]], [0.5, 0.3, 0.2])


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_risk_and_slope_are_those_of_the_model(activation):
    rng = np.random.default_rng(0)
    heads = Heads(rng.standard_normal((3, 5)), rng.standard_normal(3), 1.3)
    draws = draw(LAW, 4, 3, 7, 0)
    with jax.enable_x64(True):
        model = SingleLocation(LAW, tokens=4, heads=3, activation=activation, samples=64)
        params = {"m": jnp.asarray(heads.m), "r": jnp.asarray(heads.rows[:, 2:])}
        if model.law.takes_bias:
            params["b"] = jnp.asarray(heads.bias)
        if model.law.has_sink:
            params["v"] = jnp.asarray(heads.gain)
        tokens = jnp.moveaxis(jnp.asarray(draws.coordinates), 1, 0)

        def loss(params):
            return jnp.mean(jnp.sum(model.misses(params, jnp.zeros((2, 128)), tokens) ** 2, axis=0))

        value, slope = jax.value_and_grad(loss)(params)
        expected = [slope["m"], slope["r"], slope.get("b", np.zeros(3)), slope.get("v", 0.0)]
        expected = [np.asarray(x) for x in expected]
    risk, found = risk_and_slope(activation, heads, draws)
    assert risk == pytest.approx(float(value), rel=1e-12)
    assert errors(activation, heads, draws).mean() == pytest.approx(risk, rel=1e-12)
    measured = [found.m, found.rows[:, 2:], found.bias, found.gain]
    for one, other in zip(measured, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-14)


@pytest.mark.parametrize("signal", [LAW, gaussian(2, 3.0, 1.0)])
def test_theta_is_that_of_the_signal(signal):
    uniforms = np.random.default_rng(1).random((signal.inputs, 100))
    with jax.enable_x64(True):
        expected = np.asarray(signal.theta(signal.latent(uniforms)))
    np.testing.assert_allclose(theta(signal, uniforms), expected, atol=1e-12)
