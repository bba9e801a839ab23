"""The risk in order parameters against plain Monte Carlo, in the limit and at finite D."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnflow as af
from attnflow.models.single_location import (
    SingleLocation,
    discrete,
    estimate,
    flipping_spike,
    from_sampler,
    gaussian,
    spikes,
)
from attnflow.models.single_location import points as points_module
from attnflow.models.single_location.model import ACTIVATIONS
from attnflow.models.single_location.points import Image, sobol
from tests.oracles import single_location as oracle

loss_of = eqx.filter_jit(lambda model, params: model.loss(params))
slope_of = eqx.filter_jit(lambda model, params: jax.grad(model.loss)(params))


def some_params(model, rng):
    heads, features = model.heads, model.signal.features
    params = {
        "m": rng.normal(size=(heads, features)),
        "r": 0.5 * rng.normal(size=(heads, heads)),
    }
    if model.law.takes_bias:
        params["b"] = rng.normal(size=heads)
    if model.law.has_sink:
        params["v"] = np.array(1.3)
    return params


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("signal", [flipping_spike(2.0, 3.0), gaussian(2, 4.0, 1.0)])
def test_the_limit_is_that_of_plain_sampling(signal, activation, rng):
    model = SingleLocation(signal, tokens=4, heads=2, activation=activation, samples=2**14)
    params = some_params(model, rng)
    extra = {"bias": params.get("b"), "gain": float(params.get("v", 1.0))}
    mean, error = oracle.limit_risk(
        signal, 4, params["m"], params["r"], activation, rng, 200_000, **extra
    )
    with jax.enable_x64(True):
        assert float(loss_of(model, params)) == pytest.approx(mean, abs=5 * error + 2e-3)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_finite_form_is_exact_at_small_dimension(activation, rng):
    """At D = 7 the limit is far off, the exact form is not."""
    signal, dimension = flipping_spike(2.0, 2.0), 7
    size = signal.features + 2
    basis = np.linalg.qr(rng.normal(size=(dimension, dimension)))[0][:size]
    model = SingleLocation(
        signal, tokens=3, heads=2, activation=activation, dimension=dimension, samples=2**15
    )
    params = some_params(model, rng)
    k_star = basis[:2]
    k = params["m"] @ basis[:2] + params["r"] @ basis[2:]
    extra = {"bias": params.get("b"), "gain": float(params.get("v", 1.0))}
    mean, error = oracle.risk_in_dimension(signal, 3, k_star, k, activation, rng, 400_000, **extra)
    with jax.enable_x64(True):
        exact = float(loss_of(dataclasses.replace(model, finite=True), params))
        limit = float(loss_of(model, params))
    assert exact == pytest.approx(mean, abs=5 * error + 2e-3)
    assert abs(limit - mean) > 10 * abs(exact - mean)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_one_pass_gives_the_loss_and_its_gradient(activation, rng):
    model = SingleLocation(
        flipping_spike(2.0, 3.0), tokens=4, heads=3, activation=activation, samples=5000
    )
    with jax.enable_x64(True):
        params = {k: jnp.asarray(rng.normal(size=x.shape)) for k, x in model.init().items()}
        value, slope = model.value_and_slope(params)
        truth, slopes = jax.value_and_grad(model.loss)(params)
        np.testing.assert_allclose(value, truth, rtol=1e-13)
        for name in slopes:
            np.testing.assert_allclose(slope[name], slopes[name], rtol=1e-10, atol=1e-15)
        theta, noise = rng.normal(size=(2, 9)), rng.normal(size=(4, 5, 9))
        mean = np.array(jnp.mean(model.weights(params, theta, noise), axis=0))
        mean[0] -= 1
        np.testing.assert_allclose(model.misses(params, theta, noise), mean, atol=1e-14)


def test_error_bars_cover_the_truth(rng):
    """Against plain sampling, and the gradient's bars against the spread over more seeds."""
    model = SingleLocation(flipping_spike(2.0, 3.0), tokens=4, heads=2, samples=1024)
    params = some_params(model, rng)
    found = estimate(model, params)
    mean, error = oracle.limit_risk(
        model.signal, 4, params["m"], params["r"], "softmax", rng, 400_000
    )
    assert found.risk == pytest.approx(mean, abs=4 * (error + found.risk_error))
    assert 0 < found.risk_error < 0.01
    other = estimate(model, params, seed=1)
    gap = found.gradient["m"] - other.gradient["m"]
    bars = np.hypot(found.gradient_error["m"], other.gradient_error["m"])
    assert np.abs(gap / bars).max() < 6
    with pytest.raises(ValueError, match="two"):
        estimate(model, params, replicates=1)


def test_points_made_on_the_way_are_the_kept_ones(rng):
    model = SingleLocation(gaussian(2, 2.0), tokens=3, heads=2, samples=2**13)
    lean = dataclasses.replace(model, points=model.fresh_points(2**13, 0, keep=False))
    assert lean.points.normals is None
    params = some_params(model, rng)
    with jax.enable_x64(True):
        assert float(loss_of(lean, params)) == pytest.approx(
            float(loss_of(model, params)), rel=1e-12
        )
        slopes = slope_of(model, params), slope_of(lean, params)
        for kept, made in zip(*map(jax.tree.leaves, slopes), strict=True):
            np.testing.assert_allclose(kept, made, rtol=1e-10)


def test_memory_does_not_grow_with_the_points():
    def bytes_for(samples):
        model = SingleLocation(flipping_spike(), tokens=4, heads=2, samples=2)
        model = dataclasses.replace(model, points=model.fresh_points(samples, 0, keep=False))
        with jax.enable_x64(True):
            arrays, static = eqx.partition(model, eqx.is_array)
            run = jax.jit(lambda a, p: jax.grad(eqx.combine(a, static).loss)(p))
            analysis = run.lower(arrays, model.init()).compile().memory_analysis()
        assert analysis is not None
        return analysis.temp_size_in_bytes

    assert bytes_for(2**18) < 1.2 * bytes_for(2**14)


def test_blocks_are_the_sobol_sequence_itself():
    from scipy.stats import qmc

    points = sobol(2, 5, 4096, 3, (Image((1.0,), 1.0, 0),), keep=False)
    bits = np.concatenate([(points.first ^ move[:, None]).T for move in points.moves])
    expected = qmc.Sobol(7, bits=30, rng=np.random.default_rng(3)).random(4096)
    assert {tuple(x) for x in bits.tolist()} == {
        tuple(x) for x in np.rint(expected * 2**30).astype(int).tolist()
    }


def test_images_at_once_and_in_turn_are_one_average(rng, monkeypatch):
    model = SingleLocation(flipping_spike(), tokens=4, heads=2, samples=1024)
    params = some_params(model, rng)
    assert model.points.few
    with jax.enable_x64(True):
        at_once = jax.value_and_grad(model.loss)(params)
        monkeypatch.setattr(points_module, "FEW", 0)
        in_turn = jax.value_and_grad(model.loss)(params)
    for one, other in zip(*map(jax.tree.leaves, (at_once, in_turn)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_symmetric_heads_stay_symmetric_to_rounding():
    """Mirror images make the gradients that vanish by symmetry vanish exactly."""
    model = SingleLocation(flipping_spike(), tokens=4, heads=2, samples=1024)
    params = {"m": np.array([[0.7, 0.0], [0.7, 0.0]]), "r": np.zeros((2, 2))}
    with jax.enable_x64(True):
        slopes = slope_of(model, params)
        swapped = dataclasses.replace(model, points=model.fresh_points(1024, 0, swap_heads=True))
        noisy = slope_of(swapped, params | {"r": 0.3 * np.eye(2)})
    assert np.abs(slopes["m"][:, 1]).max() < 1e-15
    assert np.abs(slopes["r"]).max() < 1e-15
    np.testing.assert_allclose(noisy["m"][0], noisy["m"][1], atol=1e-15)


@pytest.mark.slow
def test_the_start_has_the_law_of_random_vectors(rng):
    model = SingleLocation(flipping_spike(), tokens=3, heads=2, eta=0.5, dimension=6, samples=2)
    with jax.enable_x64(True):
        starts = jax.vmap(model.init)(jax.random.split(jax.random.key(0), 4000))
        q = jnp.einsum("rhf,rkf->rhk", starts["m"], starts["m"])
        q = np.asarray(q + jnp.einsum("rhf,rkf->rhk", starts["r"], starts["r"]))
    k = 0.5 * rng.normal(size=(4000, 2, 6)) / np.sqrt(6)
    direct = k @ k.transpose(0, 2, 1)
    np.testing.assert_allclose(q.mean(axis=0), direct.mean(axis=0), atol=0.01)
    np.testing.assert_allclose(q.std(axis=0), direct.std(axis=0), atol=0.01)


@pytest.mark.slow
def test_the_flow_splits_the_heads_and_batches_over_signals():
    model = SingleLocation(flipping_spike(2.0, 4.0), tokens=4, heads=2, samples=512)
    options = {"times": np.array([1.0, 100.0]), "solver": "quick", "rtol": 1e-4, "atol": 1e-6}
    flow = af.gradient_flow(model, **options)
    assert np.ptp(flow.m.values[0, :, 1]) < 0.1 < 1 < np.ptp(flow.m.values[-1, :, 1])
    signals = [flipping_spike(2.0, 4.0), flipping_spike(1.0, 1.0)]
    both = af.gradient_flow(model, over={"signal": signals}, **options)
    np.testing.assert_allclose(both.loss[0], flow.loss, rtol=1e-3)
    assert abs(float(both.loss[1, -1] - both.loss[0, -1])) > 0.05


def test_moments_of_the_laws(rng):
    for signal in (
        flipping_spike(2.0, 3.0),
        spikes(3, 4.0),
        gaussian(3, 4.0, 1.0),
        discrete([[1.0, 0.0], [0.0, 2.0]], [0.25, 0.75]),
    ):
        drawn = oracle.draw_theta(signal, rng, 200_000)
        np.testing.assert_allclose(signal.mean(), drawn.mean(axis=0), atol=0.03)
        np.testing.assert_allclose(signal.covariance(), np.cov(drawn.T), atol=0.05)


def test_symmetries_of_the_laws():
    assert set(flipping_spike().mirrors()) == {(1.0, 1.0), (1.0, -1.0)}
    assert len(gaussian(3, 1.0).mirrors()) == 8
    assert spikes(2, 1.0).mirrors() == ((1.0, 1.0),)
    assert len(gaussian(6, 1.0).mirrors()) == 2


BAD = [
    ({"tokens": 1}, "two tokens"),
    ({"heads": 0}, "heads"),
    ({"activation": "sofmax"}, "did you mean"),
    ({"eta": 0.0}, "eta"),
    ({"dimension": 3}, r"F \+ H"),
    ({"samples": 0}, "samples"),
    ({"samples": 2**40}, "at most"),
    ({"start": {"m": np.zeros((2, 2))}}, "parameters m, r"),
]


@pytest.mark.parametrize(("fields", "message"), BAD)
def test_bad_fields_are_refused_in_one_line(fields, message):
    with pytest.raises(ValueError, match=message) as caught:
        SingleLocation(flipping_spike(), **fields)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: flipping_spike(-1.0, 1.0), "nu1 must be positive"),
        (lambda: spikes(0, 1.0), "features"),
        (lambda: gaussian(2, 0.0), "nu1"),
        (lambda: discrete([[1.0], [2.0]], [0.5, 0.6]), "sum to one"),
        (lambda: discrete([[1.0], [2.0]], [1.5, -0.5]), "positive"),
        (lambda: discrete([1.0, 2.0]), "one row each"),
        (lambda: from_sampler(lambda g, n: g.normal(size=(n, 3)), 2), "must return 4096 × 2"),
    ],
)
def test_bad_signals_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_another_symmetry_cannot_slip_in():
    model = SingleLocation(flipping_spike(), tokens=3, samples=64)
    with pytest.raises(ValueError, match="changes under the signs"):
        dataclasses.replace(model, signal=discrete([[1.0, 1.0], [1.0, 2.0]]))


def test_a_sampler_becomes_its_draws():
    signal = from_sampler(lambda g, n: g.normal(size=(n, 2)) + 1.0, 2, draws=500)
    np.testing.assert_allclose(signal.mean(), 1.0, atol=0.2)
