"""Bayes, stability and pruning."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnflow as af
from attnflow.models.single_location import (
    SingleLocation,
    bayes_heads,
    bayes_risk,
    believed_risk,
    curvature,
    discrete,
    flipping_spike,
    gaussian,
    growth,
    heads_needed,
    plateau,
    posterior,
    prune,
    quadrature,
    spikes,
)
from attnflow.models.single_location.model import ACTIVATIONS
from tests.oracles import single_location as oracle

loss_of = eqx.filter_jit(lambda model, params: model.loss(params))


def test_the_posterior_is_that_of_the_densities(rng):
    """At any D, with features of any Gram matrix."""
    signal = discrete([[1.0, 0.5], [-1.0, 2.0], [0.3, 0.0]], [0.2, 0.5, 0.3])
    k_star, x = rng.normal(size=(2, 5)), rng.normal(size=(4, 5))
    expected = oracle.posterior(signal.points(), signal.probabilities, x, k_star)
    with jax.enable_x64(True):
        seen = posterior(signal, x @ k_star.T, k_star @ k_star.T)
    np.testing.assert_allclose(seen, expected, rtol=1e-10)


def test_the_gaussian_evidence_is_the_limit_of_its_quadrature(rng):
    signal, x = gaussian(2, 1.5, 0.5), rng.normal(size=(3, 2))
    p = np.array([[1.2, 0.3], [0.3, 0.9]])
    with jax.enable_x64(True):
        closed = signal.log_evidence(x, p)
        summed = quadrature(signal, 40).log_evidence(x, p)
    np.testing.assert_allclose(closed, summed, rtol=1e-8)


@pytest.mark.parametrize("signal", [flipping_spike(2.0, 3.0), gaussian(2, 4.0, 1.0)])
def test_the_bayes_risk_is_a_risk_and_the_least(signal):
    """Calibration: 1 − E P(ε) is the mean square miss of the posterior; other beliefs do worse."""
    risk, error = bayes_risk(signal, tokens=4)
    twin = jax.tree.map(np.copy, signal)
    square, other = believed_risk(signal, twin, tokens=4)
    assert risk == pytest.approx(square, abs=6 * (error + other))
    wrong = dataclasses.replace(signal, strength=1.5 * signal.strength)
    assert believed_risk(signal, wrong, tokens=4)[0] > risk + 10 * (error + other)


def test_the_heads_of_a_discrete_law_are_the_bayes_estimator():
    signal = discrete([[2.0, 0.0], [0.0, 1.0], [-1.0, -1.0]], [0.6, 0.3, 0.1])
    model = SingleLocation(signal, tokens=4, heads=3, activation="bayes_softmax", samples=2**15)
    with jax.enable_x64(True):
        reached = float(loss_of(model, bayes_heads(signal)))
    risk, error = bayes_risk(signal, tokens=4)
    assert reached == pytest.approx(risk, abs=5 * error + 2e-3)


def test_heads_needed():
    assert heads_needed(spikes(3, 4.0), tokens=4)[0] == 3
    few, _ = heads_needed(gaussian(1, 4.0), tokens=4, tolerance=0.1)
    many, risk = heads_needed(gaussian(1, 4.0), tokens=4, tolerance=0.01)
    assert 2 <= few < many
    assert risk <= 1.01 * bayes_risk(gaussian(1, 4.0), 4)[0]
    with pytest.raises(ValueError, match="more than 3 heads"):
        heads_needed(gaussian(1, 9.0), tokens=4, tolerance=1e-6, most=3)


def derivatives_at_zero(activation, tokens, heads, bias):
    """c1 … c5 from the activation's own derivatives, by automatic differentiation."""
    law = af.attention.get(activation)
    gain = 1 + np.exp(bias) / tokens if law.has_sink else 1.0
    b = np.full(heads, bias if law.has_sink else 0.0)

    def output(scores, b=b):
        weights = law(scores, bias=b if law.takes_bias else None)
        return gain * jnp.mean(weights, axis=0)

    zero = jnp.zeros((heads, tokens))
    slope = np.asarray(jax.jacobian(output)(zero))  # token, head, token
    second = np.asarray(jax.hessian(output)(zero))
    miss = np.asarray(output(zero)).copy()
    miss[0] -= 1
    c1 = np.sum(slope[:, 0] ** 2)
    c2 = np.sum(slope[:, 0, 0] ** 2)
    c3 = -miss @ second[:, 0, 0, 0, 0]
    c4 = miss @ second[:, 0, 0, 1, 0]
    c5 = 0.0
    if law.takes_bias:
        by_bias = np.asarray(jax.jacobian(lambda b: output(zero, b))(b))
        c5 = np.sum(by_bias[:, 0] ** 2)
    return np.array([c1, c2, c3, c4, c5])


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("tokens", "heads", "bias"), [(5, 3, 0.0), (3, 2, -0.7), (10, 2, 1.1)])
def test_closed_constants(activation, tokens, heads, bias):
    with jax.enable_x64(True):
        expected = derivatives_at_zero(activation, tokens, heads, bias)
    np.testing.assert_allclose(curvature(activation, tokens, heads, bias), expected, atol=1e-14)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_growth_on_the_plateau_is_the_closed_one_for_a_centred_signal(activation):
    model = SingleLocation(
        gaussian(2, 2.0, 1.0), tokens=5, heads=3, activation=activation, samples=2**14
    )
    at = plateau(model)
    c = curvature(activation, 5, 3, float(at["b"][0]) if "v" in at else 0.0)
    found = growth(model, at)
    np.testing.assert_allclose(found.rates, 2 * (c.c3 + c.c4) * np.array([2.0, 1.0]), rtol=0.02)
    np.testing.assert_allclose(np.abs(found.directions), np.eye(2), atol=0.05)
    assert found.time(1e8)[0] == pytest.approx(2 * found.time(1e4)[0])


def test_two_tokens_never_split():
    model = SingleLocation(gaussian(1, 2.0), tokens=2, heads=2, samples=2**13)
    assert abs(growth(model, plateau(model)).rates[0]) < 2e-3
    assert curvature("softmax", 2, 2).c3 == 0


def test_the_plateau_is_stationary_for_equal_heads():
    model = SingleLocation(flipping_spike(), tokens=4, heads=2, samples=4096)
    at = plateau(model)
    with jax.enable_x64(True):
        slope = eqx.filter_jit(lambda model, p: jax.grad(model.loss)(p))(model, at)
    assert np.abs(slope["m"]).max() < 1e-6
    assert at["m"][0, 0] > 0.5


@pytest.mark.slow
def test_softmax_1_balance():
    model = SingleLocation(
        gaussian(1, 1.0), tokens=5, heads=2, activation="softmax_1", samples=64, eta=1e-6
    )
    at = plateau(model)
    start = {"m": np.zeros((2, 1)), "r": np.zeros((2, 2)), "b": np.zeros(2), "v": np.ones(())}
    flow = af.gradient_flow(dataclasses.replace(model, start=start), times=[3000.0], rtol=1e-8)
    assert float(flow.gain[-1]) == pytest.approx(float(at["v"]), rel=1e-5)
    np.testing.assert_allclose(flow.bias[-1], at["b"], rtol=1e-4)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_pruning_takes_the_useless_head_first(activation):
    """Two heads on the points of the support, and one that looks away from both."""
    signal = spikes(2, 16.0)
    model = SingleLocation(signal, tokens=4, heads=3, activation=activation, samples=2**13)
    params = {"m": np.array([[4.0, 0.0], [-4.0, -4.0], [0.0, 4.0]]), "r": np.zeros((3, 3))}
    if activation != "softmax":
        params["b"] = np.full(3, 6.0 if activation == "softmax_1" else 0.0)
    if activation == "softmax_1":
        params["v"] = np.array(2.0)
    cut = prune(model, params)
    assert cut.order[0] == 1
    assert len(cut.risks) == 3
    kept = [0, 2]
    small = dataclasses.replace(model, heads=2, points=None)
    rest = {x: y[kept] if np.ndim(y) else y for x, y in params.items()} | {"r": np.zeros((2, 2))}
    with jax.enable_x64(True):
        assert cut.risks[1] == pytest.approx(float(loss_of(small, rest)), abs=6e-3)
    assert cut.spare(1e6) == 2
