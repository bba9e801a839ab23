"""The helpers and numbers behind the conditioning ledger, against slower or other roads."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import optax
import pytest

import attnflow as af
from attnflow.dynamics.batching import traced
from attnflow.papers.conditioning import claims
from attnflow.papers.conditioning._decoupled import decoupled_condition
from attnflow.papers.conditioning._experiments import score_ranges, teacher_condition
from attnflow.papers.conditioning._ledger import (
    Problem,
    gaussian_problem,
    pair_problem,
    softmax_jacobian,
)
from attnflow.papers.conditioning._overparameterized import margin, printed_smoothness
from attnflow.papers.conditioning._sparse import aligned, condition, signs
from attnflow.papers.conditioning._training import STEP, flow_on, narrow, teacher_ratio, train
from tests.papers.reruns import numbers, output_of


def counterexample(name: str) -> Mapping[str, Any]:
    found = claims.LEDGER.claims[name].check().counterexample
    assert found is not None
    return found


def model_of(problem: Problem, start=None) -> af.Prompt:
    """The same problem as the library's model, only p trained."""
    teacher = {"p": problem.teacher, "v": problem.value, "W": problem.mixing}
    begin = teacher | {"p": problem.teacher if start is None else start}
    return af.Prompt(problem.inputs, problem.labels, teacher, begin, ("p",))


def hessian_of(model: af.Prompt, p: np.ndarray) -> np.ndarray:
    with jax.enable_x64(True):
        return np.asarray(jax.jit(jax.hessian(traced(model).loss))({"p": p})["p"]["p"])


def test_the_plain_problem_is_the_librarys_model(rng):
    problem = gaussian_problem(rng, 4, 5, 3, mixed=True)
    model, p = model_of(problem), rng.normal(size=3)
    with jax.enable_x64(True):
        loss, slope = jax.jit(jax.value_and_grad(traced(model).loss))({"p": p})
        loss, gradient = float(loss), np.asarray(slope["p"])
    np.testing.assert_allclose(problem.gradient(p), gradient, rtol=1e-12)
    np.testing.assert_allclose(problem.hessian(p), hessian_of(model, p), rtol=1e-10, atol=1e-13)
    assert problem.loss(p) == pytest.approx(loss, rel=1e-13)


def test_descent_and_training_are_the_librarys_descent(rng):
    problem = gaussian_problem(rng, 4, 5, 3)
    start = rng.normal(size=3)
    *_, last = problem.descent(start, 0.05, 50)
    _, params = af.descend(model_of(problem, start), 50, optax.sgd(0.05), return_params=True)
    np.testing.assert_allclose(last, params["p"], rtol=1e-12)
    models = [af.StudentTeacher(d=4, n=3, samples=5, seed=seed).model() for seed in (0, 1)]
    batch = train(models, (0.1, 0.05), (0, 7, 30))
    for run, (model, step) in enumerate(zip(models, (0.1, 0.05), strict=True)):
        alone, params = af.descend(
            model, 30, optax.sgd(step), record=[0, 7, 30], return_params=True
        )
        np.testing.assert_allclose(batch.loss[run], alone.loss, rtol=1e-12)
        np.testing.assert_allclose(batch.log10_ratio[run], alone.log10_ratio, rtol=1e-12)
        np.testing.assert_allclose(batch.params[run]["v"], params["v"], rtol=1e-12)


def test_pair_problem_is_a_hyperbolic_tangent():
    problem = pair_problem(1.5, 0.7, 0.4, samples=3, copies=False)
    p = np.array([0.3, -1.0, 2.0])
    np.testing.assert_allclose(problem.outputs(p), 1.05 * np.tanh(1.5 * p), rtol=1e-13)
    same = pair_problem(1.5, 0.7, 0.4, samples=3)
    np.testing.assert_allclose(same.outputs(p), 1.05 * np.tanh(0.45) * np.ones(3), rtol=1e-13)


def test_lemma_4_by_hand_on_one_pair():
    """x = 2, v = 1, teacher 0.1: C² = 8, σ_min(F) = 4."""
    y = 2 * np.tanh(0.2)
    smooth = 8**1.5 * (2 * 8**0.5 + 3 * y)
    found = margin(pair_problem(2.0, 1.0, 0.1), np.zeros(1), 0.9, 1.0)
    travel = y * 8 / (smooth * (1 - np.sqrt(0.1)))
    assert found.smoothness == pytest.approx(smooth)
    assert found.travel == pytest.approx(travel)
    assert found.slack == pytest.approx(
        4 - 3 * 8**0.5 * travel * 8 - np.sqrt(0.9 / smooth / 2), rel=1e-9
    )
    mended = margin(pair_problem(2.0, 1.0, 0.1), np.zeros(1), 0.9, 1.0, mended=True)
    assert mended.travel == pytest.approx(y * 8 * 2 / (0.9 / smooth), rel=1e-4)


@pytest.mark.parametrize(("name", "steps"), [("theorem-1i-bounded", 300), ("theorem-1i-rate", 1)])
def test_the_librarys_descent_breaks_the_printed_promises(name, steps):
    """The counterexamples to theorem 1(i), run with autodiff gradients."""
    shown = counterexample(name)
    assert shown["slack_of_the_margin"] > 0
    x = np.array(shown["inputs"])
    problem = Problem(x, np.eye(1), np.array(shown["v"]), np.array(shown["teacher"]))
    step = shown["c2"] / printed_smoothness(problem, np.zeros(1))
    run, params = af.descend(
        model_of(problem, np.zeros(1)), steps, optax.sgd(step), return_params=True
    )
    if name == "theorem-1i-bounded":
        assert params["p"][0] == pytest.approx(shown["largest_norm"])
        assert params["p"][0] > 3 * shown["M_p"]
    else:
        ratio = float(run.loss[1] / run.loss[0])
        assert ratio == pytest.approx(shown["loss_ratio_after_one_step"], rel=1e-8)
        assert ratio > shown["printed_bound"] + 0.02


@pytest.mark.parametrize("delta", [0.5, 3.0, 9.0])
def test_one_important_token_leaves_the_hessian_a_multiple_of_the_identity(delta):
    a = 1 / (1 + np.exp(-delta))
    problem = signs(8, delta).problem
    hessian = hessian_of(model_of(problem), problem.teacher)
    np.testing.assert_allclose(hessian, (a * (1 - a)) ** 2 * np.eye(2), rtol=1e-9, atol=1e-18)


@pytest.mark.parametrize(("size", "even", "grows"), [(1, False, 0), (2, True, 0), (2, False, 2)])
def test_condition_numbers_of_aligned_keys_come_from_autodiff_too(size, even, grows):
    kappa = []
    for delta in (3.0, 6.0):
        split = aligned(size, delta, even_values=even)
        values = np.linalg.eigvalsh(hessian_of(model_of(split.problem), split.problem.teacher))
        kappa.append(values[-1] / values[0])
        assert condition(split) == pytest.approx(kappa[-1], rel=1e-6)
    assert np.log(kappa[1] / kappa[0]) / 3 == pytest.approx(grows, abs=0.35)


def test_decoupled_condition_of_the_identity_is_that_of_the_squared_jacobian(rng):
    for n in (2, 3, 6):
        scores = rng.normal(size=n)
        a = np.exp(scores) / np.exp(scores).sum()
        exact = np.exp(2 * af.instruments.softmax_conditioning(scores).log_kappa)
        assert decoupled_condition(a, np.eye(n)) == pytest.approx(float(exact), rel=1e-9)


def test_eigenvalues_of_the_decoupled_operator_are_those_of_its_symmetric_form(rng):
    a, half = rng.dirichlet(np.ones(4)), rng.normal(size=(4, 4))
    curvature = half @ half.T + np.eye(4)
    J = softmax_jacobian(a)
    whole = np.sort(np.linalg.eigvals(J @ J @ curvature).real)[1:]
    assert decoupled_condition(a, curvature) == pytest.approx(whole[-1] / whole[0], rel=1e-8)


def test_score_ranges_are_those_of_drawn_teachers():
    drawn = [teacher_ratio(narrow(1.0, seed)) for seed in range(20)]
    quick = [np.mean(score_ranges(20, seed=seed)) / np.log(10) for seed in range(20)]
    assert np.mean(drawn) == pytest.approx(np.mean(quick), rel=0.1)


def test_condition_at_the_teacher_is_that_of_the_whole_hessian():
    model = narrow(1.0, 0)
    with jax.enable_x64(True):
        solution = {b: model.teacher[b] for b in ("p", "v")}
        blocks: Any = jax.jit(jax.hessian(traced(model).loss))(solution)
        rows = [np.concatenate([blocks[a][b] for b in ("p", "v")], axis=1) for a in ("p", "v")]
    values = np.linalg.eigvalsh(np.concatenate(rows))
    assert teacher_condition(1.0, 0) == pytest.approx(values[-1] / values[0], rel=1e-8)


def plain_descent(model: af.Prompt, steps: int) -> float:
    """GD on p and v with the gradients written out; the last loss."""
    X, y = model.inputs, model.labels
    p, v = model.start["p"].copy(), model.start["v"].copy()
    for _ in range(steps + 1):
        a = np.exp(X @ p)
        a /= a.sum(axis=1, keepdims=True)
        u = X @ v
        f = np.sum(a * u, axis=1)
        r = (f - y) / len(y)
        p = p - STEP * np.einsum("i,ij,ijd->d", r, a * (u - f[:, None]), X)
        v = v - STEP * np.einsum("i,ij,ijd->d", r, a, X)
    return float(0.5 * np.mean((f - y) ** 2))  # pyright: ignore[reportPossiblyUnbound]


@pytest.mark.slow
def test_the_stall_and_its_floor_without_the_library():
    shown = counterexample("stall-cause")
    model = narrow(1.0, shown["seed"])
    assert plain_descent(model, 3000) == pytest.approx(shown["loss_of_GD"], rel=1e-6)
    assert shown["loss_of_gradient_flow_at_1e8"] == pytest.approx(
        shown["loss_where_explain_stall_ends"], rel=1e-6
    )
    assert shown["least_curvature_there"] > 0
    assert shown["loss_where_explain_stall_ends"] > 1


def test_flow_on_reaches_the_solution_from_its_basin():
    model = af.StudentTeacher(d=4, n=4, samples=30, sigma_p=0.3, near=0.02).model()
    assert flow_on(model, {b: model.start[b] for b in ("p", "v")}, 1e8) < 1e-20


def test_the_control_cannot_fit_softmax_labels_from_the_teacher_either():
    """The floor of the linear student on softmax labels is not an accident of the start."""
    shown = counterexample("linear-attention-control")
    soft = narrow(1.0, 0)
    X, y = soft.inputs, soft.labels
    products = np.einsum("ija,ijb->iab", X, X) / X.shape[1]
    v = soft.teacher["v"]
    for _ in range(300):  # alternating least squares
        p = np.linalg.lstsq(products @ v, y, rcond=None)[0]
        v = np.linalg.lstsq(np.einsum("iab,a->ib", products, p), y, rcond=None)[0]
    left = y - np.einsum("iab,a,b->i", products, p, v)  # pyright: ignore[reportPossiblyUnbound]
    assert 0.5 * np.mean(left**2) > 0.5 * shown["last_losses"][1]


# what a command prints, by the names under which the counterexample keeps the same numbers
PRINTED = {
    "equation-10": ("loss_before", "loss_after_printed_step"),
    "lemma-2": ("left", "right"),
    "equation-22": ("gradient", "printed_bound"),
    "equation-30": ("curvature", "printed_bound"),
    "lemma-4": ("sum_of_steps",),
    "theorem-1i-rate": ("loss_ratio_after_one_step", "printed_bound"),
    "theorem-1i-bounded": ("largest_norm", "M_p"),
    "proposition-1": ("kappa", "printed_bound"),
    "table-3-approximation": ("kappa", "printed_bound"),
    "lemma-3-sharper": ("greatest_other_weight", "printed_bound"),
    "equation-36": ("printed_sum_of_weights",),
    "lemma-7": ("lambda_min", "printed_bound"),
    "corollary-1": ("factor",),
    "overparameterized-ratio": ("log10_R_end", "log10_R_teacher"),
}


@pytest.mark.parametrize("name", PRINTED)
def test_the_command_of_a_counterexample_shows_its_numbers(name):
    shown = counterexample(name)
    expected = [shown[key] for key in PRINTED[name]]
    assert numbers(output_of(shown["run"])) == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_other_commands_show_what_they_should():
    velocity = numbers(output_of(counterexample("equation-12")["run"]))
    assert velocity == pytest.approx([0.5, -0.5, 0.25, -0.25])
    assert numbers(output_of(counterexample("proposition-1-hypothesis")["run"])) == [0, 0]
    kappa, growth = numbers(output_of(counterexample("theorem-2")["run"]))
    assert kappa == pytest.approx(1)
    assert growth > 1e10
    exact, sampled = numbers(output_of(counterexample("leakage-sampling")["run"]))
    assert sampled < 1 < exact
    assert min(numbers(output_of(counterexample("theorem-1i-margin")["run"]))) > 1
    ratios = numbers(output_of(counterexample("theorem-1ii")["run"]))
    assert len(ratios) == 3
    assert min(ratios) > 1
    assert np.ptp(ratios) < 1e-7
    spread, sparse = numbers(output_of(counterexample("near-teacher")["run"]))
    assert sparse < spread
    assert numbers(output_of(counterexample("stall-under-assumption-a")["run"]))[0] < 1e-6
    first, last = numbers(output_of(counterexample("linear-attention-control")["run"]))
    assert last > 0.1 * first
    assert "local minimum" in output_of(counterexample("stall-cause")["run"])
    decades = output_of(counterexample("attention-ratio-settings")["run"])
    assert len(numbers(decades)) == 12
