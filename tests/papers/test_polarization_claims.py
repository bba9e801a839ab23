"""The helpers and numbers behind the polarization ledger, against slower or other roads."""

from collections.abc import Mapping
from typing import Any

import mpmath
import numpy as np
import pytest

import attnflow as af
from attnflow import attention
from attnflow.papers.polarization import claims
from attnflow.papers.polarization._asymptotics import growth_bound
from attnflow.papers.polarization._flows import Start, softmax_flows
from attnflow.papers.polarization._normalized_maps import IdentityPath
from attnflow.papers.polarization._other_losses import CONVERGED, entropies, time_to_a_tenth
from attnflow.papers.polarization._tau_path import SLOPES, tau_path, weights, where_margin_is
from tests.papers.reruns import numbers, output_of


def counterexample(name: str) -> Mapping[str, Any]:
    found = claims.LEDGER.claims[name].check().counterexample
    assert found is not None
    return found


@pytest.mark.parametrize(("lead", "norm2"), [(0.01, 1.0), (0.7, 0.25), (3.0, 4.0)])
def test_growth_bound_is_its_integral(lead, norm2):
    with mpmath.workdps(30):

        def density(y):
            return norm2 / (1 + y) / mpmath.sqrt(lead**2 + 2 * norm2 * (y - mpmath.log1p(y)))

        exact: Any = mpmath.quad(density, [0, lead / 10, lead, 1, 10, 1e3, 1e6, mpmath.inf])
    assert growth_bound(lead, norm2) == pytest.approx(float(exact), rel=1e-6)


def test_two_token_law_gives_the_limit_of_its_projection():
    """For two tokens q follows from u_0 − u_1 alone, so u_1(∞) is one integral."""
    lead, norm2 = 0.7, 2.0

    def slope(d):  # du_1/dd = q/(1 − q) with (1 − q)²/q = (d² − lead²)/|β*|²
        x = (d * d - lead**2) / norm2
        q = 1 + x / 2 - mpmath.sqrt(x + x * x / 4)
        return q / (1 - q)

    exact: Any = mpmath.quad(slope, [lead, lead + 0.01, 1, 3, 30, 1e3, mpmath.inf])
    growth = float(exact)
    (run,) = softmax_flows([Start(np.array([lead, 0.0]), np.sqrt(norm2))], 1e4)
    tail = norm2 / run.log_t[-1]  # ∫ |β*|² s_1 dτ beyond the horizon, s_1 ~ |β*|²/log² t
    assert run.u[-1, 1] + tail == pytest.approx(growth, rel=1e-5)
    assert growth < growth_bound(lead, norm2)


def test_score_rate_on_the_scipy_path():
    """s_j ~ 2/(p |β*|² τ²), where the ledger fits 2|β*|²/(p log² t) on the library's flows."""
    tau, norm2, u = np.array([2000.0, 4000.0]), 2.0, np.array([0.8, 0.3, 0.1, -0.6])
    s = weights("softmax", tau_path("softmax", u, 0.0, norm2, tau)[1])
    root = np.sqrt(np.mean(1 / s[:, 1:], axis=1))
    slope = (root[1] - root[0]) / (tau[1] - tau[0])
    assert slope**2 == pytest.approx(len(u) * norm2 / 2, rel=1e-3)


def test_an_absent_token_changes_nothing():
    """The ledger pads its flows with tokens whose softmax weight is exactly 0."""
    u = (0.4, 0.1, -0.3)
    (padded,) = softmax_flows([Start(np.array(u), 2.0)], 8.0)
    plain = af.gradient_flow(
        af.ValueSoftmax(projections=u, target_norm=2.0), log_t1=8.0, points=padded.log_t.size
    )
    np.testing.assert_allclose(padded.u, plain.projections.values, rtol=1e-9)
    np.testing.assert_allclose(padded.s, plain.weights.values, rtol=1e-9)


@pytest.mark.parametrize("law", SLOPES)
def test_slopes_are_those_of_the_registry(law):
    similarity, h = attention.get(law).similarity, 1e-6
    a = np.array([-1.3, -0.2, 0.4, 1.7])
    difference = (similarity(a + h) - similarity(a - h)) / (2 * h)
    np.testing.assert_allclose(SLOPES[law](a), difference, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("law", ["square_normalized", "relu_normalized", "sigmoid", "relu"])
@pytest.mark.slow
def test_tau_path_is_the_path_of_the_library(law):
    u, a = (0.4, 0.1, -0.3), (1.0, 1.1, 0.9)
    model = af.ValueSoftmax(projections=u, scores=a, map=law, target_norm=1.3)
    flow = af.gradient_flow(model, t1=1e4, points=40)
    path = tau_path(law, np.array(u), np.array(a), 1.69, flow.gamma_integral.values)
    np.testing.assert_allclose(path[0], flow.projections.values, atol=2e-7)
    np.testing.assert_allclose(path[1], flow.scores.values, atol=2e-7)


@pytest.mark.slow
def test_the_normalized_relu_becomes_one_hot_in_finite_time():
    model = af.ValueSoftmax(
        projections=(0.4, 0.1, -0.3), scores=(1.0, 1.0, 1.0), map="relu_normalized"
    )
    flow = af.gradient_flow(model, t1=1e6, points=100)
    assert flow.weights.values[-1].tolist() == [1.0, 0.0, 0.0]
    assert flow.scores.values[-1, 0] == pytest.approx(np.sqrt(3), rel=1e-8)


@pytest.mark.slow
def test_the_identity_map_stays_on_its_ray_for_ever():
    """Σa > 0 falls to 0 as t → ∞, while s runs off the simplex along u(0) − mean u(0)."""
    u = np.array([0.4, 0.1, -0.3])
    model = af.ValueSoftmax(projections=tuple(u), scores=(1.0, 1.0, 1.0), map="identity_normalized")
    flow = af.gradient_flow(model, log_t1=300.0, points=60)
    s, total = flow.weights.values, flow.scores.values.sum(axis=1)
    path = IdentityPath(u, 1.0)
    x = (s - 1 / 3) @ path.c / (path.c @ path.c)
    np.testing.assert_allclose(s, 1 / 3 + np.outer(x, path.c), atol=1e-7 * x.max())
    assert (np.diff(total) < 0).all()
    assert total[-1] > 0 > s[-1, -1]
    np.testing.assert_allclose((flow.scores.values**2).sum(axis=1), 3.0, rtol=1e-8)
    assert flow.gamma_integral.values[-1] < path.tau(path.end)


@pytest.mark.slow
def test_full_and_reduced_regression_agree_from_zero_values():
    """Lemma 3.5 as a flow: the matrix V follows β* uᵀ/|β*|², or the losses would differ."""
    target, scores = np.array([0.6, -1.2, 0.4]), (0.3, 0.1, -0.1, -0.3)
    full = af.gradient_flow(
        af.ValueSoftmax(values=np.zeros((3, 4)), target=target, scores=scores, objective="square"),
        t1=40.0,
        points=30,
        path="full",
    )
    reduced = af.gradient_flow(
        af.ValueSoftmax(
            projections=(0.0,) * 4,
            scores=scores,
            target_norm=float(np.linalg.norm(target)),
            objective="square",
        ),
        t1=40.0,
        points=30,
        path="reduced",
    )
    for name in ("projections", "scores", "weights", "loss", "gamma_integral"):
        np.testing.assert_allclose(full[name].values, reduced[name].values, atol=1e-9)


def test_the_square_loss_stops_on_the_path():
    """Plain Euler steps of the matrix flow end where the path in τ reaches ⟨u, s⟩ = |β*|²."""
    target, scores = np.array([0.6, -1.2, 0.4]), np.array([0.3, 0.1, -0.1, -0.3])
    values, a, step = np.zeros((3, 4)), scores.copy(), 1e-3
    for _ in range(60_000):
        s = np.exp(a) / np.exp(a).sum()
        residual = target - values @ s
        pulled = values.T @ residual
        values = values + step * np.outer(residual, s)
        a = a + step * s * (pulled - pulled @ s)
    norm2 = float(target @ target)
    _, u, end = where_margin_is(norm2, "softmax", np.zeros(4), scores, norm2, longest=4.0)
    np.testing.assert_allclose(values, np.outer(target, u) / norm2, atol=2e-3)
    np.testing.assert_allclose(a, end, atol=2e-3)


def test_a_path_that_cannot_be_followed_is_refused():
    path = IdentityPath(np.array([1.0, 0.0, -1.0]), 1.0)
    beyond = 1.1 * path.tau(path.end)
    with pytest.raises(ValueError, match="ends before"):
        tau_path("identity_normalized", path.u, 1.0, 1.0, [beyond])
    with pytest.raises(ValueError, match="does not reach"):
        where_margin_is(50.0, "softmax", np.array([0.1, 0.0]), 0.0, 1.0, longest=1.0)


def test_the_score_gap_of_two_losers_shrinks():
    found = counterexample("score-gaps")
    gap = np.array(numbers(output_of(found["run"])))
    assert gap[0] == 0
    assert gap[1:].argmin() == gap.size - 2
    assert gap[-1] == pytest.approx(found["a_1 − a_2 at log t = 10⁴"], rel=1e-6)
    assert found["largest a_1 − a_2"] > 20 * gap[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("equations-6-7", lambda out, found: out[1] > out[0]),
        ("theorem-3.2b", lambda out, found: (np.diff(out) < 0).all()),
        ("lyapunov-bracket", lambda out, found: abs(out - found["true a_0'"]).max() < 1e-15),
        ("lemma-d.2-operator", lambda out, found: abs(out[0] - found["true dβ/dt"]) < 1e-3),
        ("proof-margin", lambda out, found: out[0] < out[2]),
        ("equations-20-22", lambda out, found: abs(out - 0.5).max() < 1e-3),
        ("lemma-d.4", lambda out, found: (out[2::2] < out[3::2]).all()),
        ("sink-matrix", lambda out, found: (out.reshape(4, 4).argmax(axis=1) == range(4)).all()),
    ],
)
def test_counterexamples_can_be_seen_again(name, expected):
    found = counterexample(name)
    assert expected(np.array(numbers(output_of(found["run"]))), found)


@pytest.mark.slow
def test_a_weight_falls_above_average():
    found = counterexample("replicator")
    assert "True" in output_of(found["run"])


@pytest.mark.slow
def test_conditioning_still_sparsifies_a_little_at_a_fixed_solution():
    assert (np.diff(entropies("solution", CONVERGED), axis=1) < 0).all()
    assert (np.diff(time_to_a_tenth("solution"), axis=1) > 0).all()


@pytest.mark.slow
def test_the_tied_column_follows_log_t_to_the_end():
    """The ledger descends to t = 10⁴; the flow goes on to 10⁸ at the same pace."""
    flow = af.gradient_flow(
        af.TiedValueSoftmax(dimension=10), times=[1e4, 1e8], runs=4, key=0, rtol=1e-7, atol=1e-9
    )
    growth = np.diff(flow.column_norms.values.max(axis=2), axis=1) / np.log(1e4)
    np.testing.assert_allclose(growth, 1.0, atol=0.02)
    assert flow.weights.values[:, -1].max(axis=1).min() > 0.999


@pytest.mark.slow
def test_the_solution_not_the_conditioning_sparsifies():
    found = counterexample("conditioning-cause")
    target_fixed, solution_fixed = eval(output_of(found["run"]))
    assert target_fixed < solution_fixed - 0.9 * found["entropy lost from κ = 1 to 5, target fixed"]
