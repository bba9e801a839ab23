import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import attnflow as af
from tests.oracles import two_token as oracle

gaps = st.floats(-4, 8)


def at(model, f):
    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, f(model.init()))


@settings(deadline=None, max_examples=20)
@given(p=st.floats(-0.9, 0.9), c0=gaps, c1=gaps)
def test_loss_start_and_gradient_are_the_definition(p, c0, c1):
    model = af.TwoToken(p=p, c0=c0, c1=c1)
    start = oracle.start(p, c0, c1)
    np.testing.assert_allclose(at(model, lambda m: m), start, atol=1e-9)
    assert at(model, model.loss) == pytest.approx(oracle.loss(start, p), rel=1e-9)
    np.testing.assert_allclose(
        at(model, jax.grad(model.loss)), oracle.slope(start, p), atol=1e-7, rtol=1e-5
    )


def test_the_start_has_the_asked_gaps_and_least_norm(rng):
    model = af.TwoToken(p=0.4, c0=2.0, c1=5.0, d=4)
    x, start = at(model, lambda _: model.tokens()), at(model, lambda m: m)
    np.testing.assert_allclose(x @ start @ x.T, [[0, 2], [5, 0]], atol=1e-12)
    other = rng.normal(size=(4, 4))
    q = np.eye(4) - np.linalg.pinv(x) @ x
    assert np.linalg.norm(start + other @ q) > np.linalg.norm(start)  # same logits, longer


OTHERS = ("attention", "mse")


@pytest.mark.parametrize(
    "objective", ["cross_entropy", *(pytest.param(x, marks=pytest.mark.slow) for x in OTHERS)]
)
@pytest.mark.parametrize("key", [None, pytest.param(3, marks=pytest.mark.slow)])
def test_the_reduction_is_the_full_matrix_flow(objective, key):
    model = af.TwoToken(p=0.3, c0=1.0, c1=5.0, d=3, objective=objective)
    full = af.gradient_flow(model, 1e4, path="full", key=key, points=50)
    fast = af.gradient_flow(model, 1e4, path="reduced", key=key, points=50)
    assert set(full) == set(fast)
    for name in full:
        np.testing.assert_allclose(fast[name], full[name], rtol=1e-8, atol=1e-8)


def test_two_tokens_are_self_attention(rng):
    model = af.TwoToken(p=-0.3, c0=2.0, c1=3.0, d=3)
    layer = af.SelfAttention(
        tokens=at(model, lambda _: model.tokens()), start=at(model, lambda m: m)
    )
    for objective in ("cross_entropy", "attention", "mse"):
        a = af.TwoToken(p=-0.3, c0=2.0, c1=3.0, d=3, objective=objective)
        b = af.SelfAttention(tokens=layer.tokens, start=layer.start, objective=objective)
        assert at(a, a.loss) == pytest.approx(at(b, b.loss), rel=1e-12)


def test_the_flow_is_scipys():
    model = af.TwoToken(p=0.2, c0=1.0, c1=4.0)
    flow = af.gradient_flow(model, times=[1000.0])
    ab = oracle.reduced_flow(0.2, 1.0, 4.0, 1000.0, method="DOP853").y[:, -1]
    np.testing.assert_allclose([flow.a[-1], flow.b[-1]], ab, rtol=1e-8)


def test_a_flow_too_sharp_for_time_to_resolve_says_so():
    """From a gap c the escape happens within a relative time of e^-c: at 60 that lies below the
    spacing of floating-point times."""
    with pytest.raises(af.FlowError, match="stopped at"):
        af.gradient_flow(af.TwoToken(c0=60.0, c1=60.0), 1e40, points=5, max_steps=3000)


class TestCriticalPoints:
    def test_equal_gaps_make_a_u(self):
        points = af.TwoToken(p=0.5, c0=3.0, c1=3.0).critical_points()
        assert [phase.name for phase in points.phases] == ["heating", "forging"]
        assert points.norm2[0] == pytest.approx((3.0 / 1.5) ** 2, rel=1e-10)

    def test_unequal_gaps_make_a_w(self):
        points = af.TwoToken(p=0.0, c0=1.0, c1=5.0).critical_points()
        assert points.shape == "W"
        names = [phase.name for phase in points.phases]
        assert names == ["heating", "forging", "reheating", "forging"]
        assert points.norm2[2] < points.norm2[0] < points.norm2[1]

    def test_right_starts_are_monotone(self):
        points = af.TwoToken(p=0.0, c0=-1.0, c1=-2.0).critical_points()
        assert points.shape == "monotone"
        assert points.phases == (("forging", 0.0, float("inf")),)

    def test_times_are_exact_to_nine_digits(self):
        """Against mpmath: at p = 0, c0 = c1 = c the gap obeys one scalar equation, and the trough
        is where it vanishes: T = ∫_0^c dξ / (2 ∂ℒ/∂ξ)."""
        import mpmath

        def sigmoid(x):
            return 1 / (1 + mpmath.exp(-x))

        def pace(x):
            return 4 * sigmoid(mpmath.tanh(x / 2)) * sigmoid(x) * sigmoid(-x)

        exact = mpmath.quad(lambda x: 1 / pace(x), [0, 2, 4, 6])
        points = af.TwoToken(p=0.0, c0=6.0, c1=6.0).critical_points()
        assert points.times[0] == pytest.approx(float(str(exact)), rel=1e-9)

    def test_sharp_starts_are_followed(self):
        points = af.TwoToken(p=0.0, c0=600.0, c1=600.0).critical_points()
        assert points.norm2[0] == pytest.approx(600.0**2, rel=1e-9)

    def test_equal_gaps_stay_equal_where_the_smallest_difference_would_grow(self):
        points = af.TwoToken(p=0.9, c0=12.0, c1=12.0).critical_points()
        assert points.shape == "U"
        assert points.norm2[0] == pytest.approx((12 / 1.9) ** 2, rel=1e-9)

    @pytest.mark.parametrize("gaps", [(12.0, 10.0), (12.0, 11.5)])
    def test_turns_within_a_thousandth_of_the_log_clock_are_found(self, gaps):
        c0, c1 = gaps
        assert af.TwoToken(p=-0.5, c0=c0, c1=c1).critical_points().shape == "W"

    @pytest.mark.slow
    def test_resolution_does_not_matter(self):
        model = af.TwoToken(p=0.3, c0=1.0, c1=5.0)
        coarse, fine = model.critical_points(points=500), model.critical_points(points=4000)
        np.testing.assert_allclose(coarse.times, fine.times, rtol=1e-9)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"p": 1.0}, "p must lie in"),
        ({"p": -1.5}, "p must lie in"),
        ({"p": float("nan")}, "p must lie in"),
        ({"c0": float("inf")}, "c0 must be finite"),
        ({"d": 1}, "d must be a whole number of at least 2"),
        ({"d": 2.5}, "d must be a whole number"),
        ({"objective": "crossentropy"}, "did you mean 'cross_entropy'"),
        ({"scale": -1.0}, "scale must be positive"),
    ],
)
def test_bad_fields_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        af.TwoToken(**fields)


def test_theorems_ask_for_a_sharp_wrong_start():
    af.TwoToken(c0=1.0, c1=2.0).require_sharp_wrong()
    with pytest.raises(ValueError, match="c1 must be positive"):
        af.TwoToken(c0=1.0, c1=0.0).require_sharp_wrong()


def test_a_layer_refuses_shapes_that_do_not_fit():
    with pytest.raises(ValueError, match="start must be 3 × 3"):
        af.SelfAttention(tokens=np.eye(3), start=np.zeros((2, 2)))
    with pytest.raises(ValueError, match="width 3"):
        af.SelfAttention(tokens=np.eye(3), start=np.zeros((3, 3)), extra=np.zeros((1, 2)))
    with pytest.raises(ValueError, match="at least two tokens"):
        af.SelfAttention(tokens=np.eye(1), start=np.zeros((1, 1)))
