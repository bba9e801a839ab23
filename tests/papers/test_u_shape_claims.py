"""What the U-shape ledger rests on: its plane, its sharp constants, its counterexamples."""

import json
import shlex

import jax
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import brentq

import attnflow as af
from attnflow.models.self_attention import layer_loss
from attnflow.papers.u_shape import _flows, _plane, _variations, _wider
from attnflow.papers.u_shape.claims import LEDGER

ROWS = [
    "lemma-3.1",
    "lemma-3.2",
    "theorem-3.3",
    "invariants",
    "equation-4",
    "theorem-3.4",
    "unique-trough",
    "heating",
    "trough-depth",
    "frozen-offset",
    "toy-example",
    "correct-basin-monotone",
    "vocabulary-extension",
    "tokens-rank",
    "tokens-conservation",
]


def test_every_statement_has_its_row_in_the_order_of_the_paper():
    listed = [name for name in LEDGER.claims if name in ROWS]
    assert listed == ROWS


@pytest.mark.parametrize(
    "start",
    [
        pytest.param((0.0, 1.0, 4.0), marks=pytest.mark.slow),
        (0.5, 1.0, 4.0),
        pytest.param((-0.4, 2.0, 2.0), marks=pytest.mark.slow),
    ],
)
def test_orbit_agrees_with_the_events_of_the_flow(start):
    p, c0, c1 = start
    found = af.TwoToken(p=p, c0=c0, c1=c1).critical_points(points=400)
    (path,) = _plane.orbits(p, c0, c1)
    frozen = float(af.TwoToken(p=p, c0=c0, c1=c1).observe(_start(start))["frozen_norm2"])
    np.testing.assert_allclose(path.times, found.times, rtol=1e-7)
    np.testing.assert_allclose(_plane.active_norm2(path.gaps, p) + frozen, found.norm2, rtol=1e-6)


def _start(start):
    p, c0, c1 = start
    x = np.array([[1.0, 0.0], [p, np.sqrt(1 - p * p)]])
    inverse = np.linalg.inv(x)
    return inverse @ np.array([[0.0, c0], [c1, 0.0]]) @ inverse.T


@pytest.mark.parametrize("p", [-0.8, 0.0, 0.6])
@pytest.mark.parametrize("c", [0.1, 2.0, 9.0])
def test_symmetric_time_is_its_integral(p, c):
    slow, _ = quad(lambda xi: 1 / (4 * (1 - p) ** 3 * _plane.pull(xi, p)), 0, c, epsrel=1e-12)
    np.testing.assert_allclose(_plane.symmetric_time(c, p), slow, rtol=1e-10)


def test_push_slope_is_the_derivative_of_push():
    xi, step = np.linspace(-6, 6, 25), 1e-5
    slow = (_plane.push(xi + step, 0.3) - _plane.push(xi - step, 0.3)) / (2 * step)
    np.testing.assert_allclose(_plane.push_slope(xi, 0.3), slow, atol=1e-9)


@pytest.mark.parametrize("p", [-0.9, -0.3, 0.0, 0.5, 0.9])
def test_orbits_touch_the_critical_curve_once(p):
    """So no orbit crosses it more than three times: a norm has one or three critical points."""
    top = brentq(_plane.push_slope, 0.1, 5.0, args=(p,))
    depth = np.exp(np.linspace(np.log(1e-3), np.log(40), 600))
    touches = []
    for low, high in ((top, 700.0), (0.0, top)):

        def across(x, low=low, high=high):
            y = brentq(lambda y: _plane.push(y, p) - _plane.pull(-x, p) * x, low, high)
            velocity = _plane.velocity(np.array([-x, y]), p)
            rate = _plane.push_slope(np.array([-x, y]), p) @ velocity
            return np.sign(rate)

        signs = np.array([across(x) for x in depth])
        touches.append(int(np.sum(signs[1:] != signs[:-1])))
    assert touches == [1, 0]


def test_threshold_at_right_angles_is_a_time_lag():
    """At p = 0 both rows run through the same curve, so the border is one number."""
    (xi0,), (xi1,) = _plane.tangency(0.0)
    until, _ = quad(lambda xi: 1 / (4 * _plane.pull(xi, 0.0)), xi0, 0)
    lag = _plane.symmetric_time(xi1, 0.0) + until
    assert lag == pytest.approx(16.0813, abs=5e-5)
    c0 = np.array([0.3, 1.0, 3.0, 5.0])
    c1 = _plane.threshold(0.0, c0)
    spent = _plane.symmetric_time(c1, 0.0) - _plane.symmetric_time(c0, 0.0)
    np.testing.assert_allclose(spent, lag, rtol=1e-8)
    assert c1[1] == pytest.approx(3.739, abs=5e-4)


@pytest.mark.parametrize("p", [0.0, 0.3])
def test_threshold_closes_in_on_the_diagonal(p):
    c0 = np.array([5.0, 6.0])
    excess = _plane.threshold(p, c0) - c0
    assert np.log(excess[0] / excess[1]) == pytest.approx((1 + p) / (1 - p), rel=0.1)


def test_starts_with_prescribed_gaps_keep_their_frozen_part():
    rng = np.random.default_rng(0)
    tokens = rng.normal(size=(4, 2, 3))
    tokens /= np.linalg.norm(tokens, axis=-1, keepdims=True)
    before, gaps = rng.normal(size=(4, 3, 3)), rng.normal(size=(4, 2))
    after = _flows.with_gaps(tokens, before, gaps)
    logits = tokens @ after @ np.swapaxes(tokens, 1, 2)
    xi = [logits[:, 0, 1] - logits[:, 0, 0], logits[:, 1, 0] - logits[:, 1, 1]]
    np.testing.assert_allclose(np.stack(xi, axis=1), gaps, atol=1e-12)
    across = np.cross(tokens[:, 0], tokens[:, 1])
    np.testing.assert_allclose(np.einsum("rd,rde->re", across, after - before), 0, atol=1e-12)


@pytest.mark.parametrize(
    ("slope", "objective"),
    [(_variations.attention_slope, "attention"), (_variations.embedding_slope, "mse")],
)
def test_loss_slopes_are_the_gradients_of_the_layer(slope, objective):
    p, xi = 0.3, np.array([1.5, -0.7])
    x = np.array([[1.0, 0.0], [p, np.sqrt(1 - p * p)]])
    with jax.enable_x64(True):

        def loss(xi):
            logits = jax.numpy.array([[0.0, xi[0]], [xi[1], 0.0]])
            return layer_loss(logits, x, x, objective)

        exact = np.asarray(jax.grad(loss)(xi))
    np.testing.assert_allclose(slope(xi, p), exact, rtol=1e-12)


def test_vocabulary_slope_is_the_gradient_of_the_layer():
    words, xi = np.array([[1.0, 0], [0, 1], [8, 0], [0, 3]]), np.array([1.0, -0.6])
    with jax.enable_x64(True):

        def loss(xi):
            logits = jax.numpy.array([[0.0, xi[0]], [xi[1], 0.0]])
            return layer_loss(logits, words[:2], words, "cross_entropy")

        exact = np.asarray(jax.grad(loss)(xi))
    np.testing.assert_allclose(_wider.vocabulary_slope(words, xi, 0.0), exact, rtol=1e-12)


@pytest.mark.slow
def test_counterexamples_are_plain_numbers_with_a_command():
    for claim in LEDGER.claims.values():
        if claim.recorded == "holds":
            continue
        finding = claim.check()
        assert finding.counterexample is not None, claim.name
        assert finding.correction, claim.name
        json.dumps(finding.counterexample)
        words = shlex.split(finding.counterexample["run"])
        assert words[:3] == ["attnflow", "simulate", "two_token"] or words[:2] == ["python", "-c"]
        if words[0] == "python":
            compile(words[2], claim.name, "exec")


def test_the_w_and_the_climb_through_the_public_flow():
    w, climb = (LEDGER.claims[name].check().counterexample for name in ("unique-trough", "heating"))
    assert w is not None
    assert climb is not None
    times = np.unique([0.0, *w["critical_times"], climb["T1"], *np.geomspace(1, 1e4, 200)])
    starts = {name: np.array([w[name], climb[name]]) for name in ("p", "c0", "c1")}
    flow = af.gradient_flow(af.TwoToken(), times=times, over=starts)
    at = [int(np.argmin(np.abs(times - t))) for t in w["critical_times"]]
    norm2 = flow.norm2.values[0]
    np.testing.assert_allclose(norm2[at], w["norm2_there"], rtol=1e-8)
    assert norm2[at[2]] < norm2[at[0]] < norm2[at[1]]
    gap = flow.xi.values[1, :, 1]
    assert gap[int(np.argmin(np.abs(times - climb["T1"])))] == pytest.approx(climb["gap1_at_T1"])
    assert gap[0] == pytest.approx(4.0)
    assert 4.0 < climb["gap1_at_T1"] < gap.max() <= climb["gap1_highest"] + 1e-9


def test_the_offset_start_and_the_small_start_through_the_public_flow():
    deep = LEDGER.claims["trough-depth"].check().counterexample
    small = LEDGER.claims["symmetric-start"].check().counterexample
    assert deep is not None
    assert small is not None
    starts = np.array([deep["start"], [[0, small["c0"]], [small["c1"], 0]]], float)
    times = np.array([0.0, *_plane.symmetric_time(np.array([0.1, 2.0]), 0.0), 1e3])
    model = af.SelfAttention(np.eye(2), starts[0])
    norm2 = af.gradient_flow(model, times=times, over={"start": starts}).norm2.values
    assert np.sqrt(norm2[0, 2]) == pytest.approx(deep["trough"], rel=1e-9)
    assert norm2[1, 0] - norm2[1, 1] == pytest.approx(small["dip_of_norm2"], rel=1e-9)


def test_the_toy_reaches_its_troughs_at_the_closed_times():
    c = np.array([0.5, 2.0, 6.0])
    times = np.sort([*_variations.toy_clock(c, 0.0), *(c + np.sinh(c))])
    starts = c[:, None, None] * np.array([[0.0, 1.0], [1.0, 0.0]])
    model = af.SelfAttention(np.eye(2), starts[0], objective="attention")
    matrices = af.gradient_flow(model, times=times, over={"start": starts}).logits.values
    np.testing.assert_allclose(matrices.sum(axis=3), np.broadcast_to(c[:, None, None], (3, 6, 2)))
    for run, height in enumerate(c):
        first = np.searchsorted(times, _variations.toy_clock(height, 0.0))
        second = np.searchsorted(times, height + np.sinh(height))
        half = height / 2
        np.testing.assert_allclose(matrices[run, first], [[half, half], [half, half]], rtol=1e-9)
        np.testing.assert_allclose(matrices[run, second], height * np.eye(2), atol=1e-8)


def test_the_vocabulary_counterexample_through_the_public_flow():
    shown = LEDGER.claims["vocabulary-extension"].check().counterexample
    assert shown is not None
    model = af.SelfAttention(
        np.array(shown["tokens"]), np.array(shown["start"], float), np.array(shown["extra"])
    )
    flow = af.gradient_flow(model, times=[0.0, 1e-4, 500.0, 1000.0])
    norm2 = flow.norm2.values
    slope = shown["initial_slope_of_norm2"]
    assert slope > 0
    assert (norm2[1] - norm2[0]) / 1e-4 == pytest.approx(slope, rel=1e-2)
    assert norm2[3] == pytest.approx(norm2[2], rel=1e-6)
    assert norm2[3] - norm2[0] == pytest.approx(shown["norm2_change_in_the_end"], rel=1e-5)
    wrong = [float(flow.attention[-1, i, 1 - i]) for i in (0, 1)]
    np.testing.assert_allclose(wrong, shown["wrong_attention_in_the_end"], rtol=1e-5)


def test_three_tokens_keep_the_weighted_sum_and_not_the_plain_one():
    shown = LEDGER.claims["tokens-conservation"].check().counterexample
    assert shown is not None
    model = af.SelfAttention(np.array(shown["tokens"]), np.array(shown["start"]))
    flow = af.gradient_flow(model, times=[0.0, 1e-4, 100.0])
    sums = flow.logits.sum("key").values
    np.testing.assert_allclose((sums[1] - sums[0]) / 1e-4, shown["row_sum_rates"], atol=1e-3)
    assert np.abs(sums[2] - sums[0]).max() > 0.1
    np.testing.assert_allclose(flow.conserved.values[2], flow.conserved.values[0], atol=1e-10)
