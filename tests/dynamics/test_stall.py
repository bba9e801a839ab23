from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.optimize import minimize

import attnflow as af
from attnflow.dynamics.batching import traced
from attnflow.dynamics.stall import FlatLoss
from attnflow.models.interface import Model
from attnflow.papers.conditioning._training import flow_on


class Landscape(Model):
    """A loss given by name, on the plane."""

    shape: str = "bowl"

    dims: ClassVar = {"x": ("axis",)}

    def init(self, key=None):
        return jnp.ones(2)

    def loss(self, params):
        x, y = params
        return {
            "bowl": lambda: x**2 + 1e-6 * y**2,
            "saddle": lambda: x**2 + (y**2 - 1) ** 2 / 4,
            "two wells": lambda: x**2 + (y**2 - 1) ** 2 + 0.3 * y + 0.3,
        }[self.shape]()

    def observe(self, params):
        return {"x": params, "loss": self.loss(params)}


def explain(shape, point, **options):
    return af.explain_stall(Landscape(shape), jnp.asarray(point), **options)


def test_a_long_valley_is_ill_conditioning():
    found = explain("bowl", [1e-8, 1.0], step=0.5)
    assert found.cause == "ill-conditioned"
    assert found.kappa == pytest.approx(1e6, rel=1e-6)
    assert found.curvature_max == pytest.approx(2)


def test_a_step_too_small_or_too_large_is_told():
    assert explain("bowl", [1.0, 1.0], step=1e-5).cause == "step size"
    assert explain("bowl", [1.0, 1.0], step=1.5).cause == "step size"


def test_a_saddle_is_told_by_its_falling_curvature():
    found = explain("saddle", [0.0, 1e-6])
    assert found.cause == "saddle"
    assert found.curvature_min == pytest.approx(-1, rel=1e-6)


def test_a_start_exactly_on_a_saddle_is_told_too():
    found = explain("saddle", [0.0, 0.0])
    assert found.cause == "saddle"
    assert found.floor_here == pytest.approx(0, abs=1e-15)
    assert found.distance_polished == pytest.approx(1, rel=1e-6)


def test_the_upper_well_is_a_local_minimum_and_the_lower_one_is_not():
    low, high = [0.0, -1.0357], [0.0, 0.9604]
    found = explain("two wells", high, reference=jnp.asarray(low))
    assert found.cause == "local minimum"
    assert found.polished_min > 0
    assert found.floor_here > found.floor_reference + 0.5
    end = explain("two wells", low, reference=jnp.asarray(low), tolerance=1e-3)
    assert end.cause == "converged"


def test_large_problems_take_products_only(monkeypatch):
    monkeypatch.setattr("attnflow.dynamics.stall.DENSE", 1)
    model = af.StudentTeacher(d=6, n=5, samples=20, sigma_p=0.3, near=0.05).model()
    matrix_free = af.explain_stall(model, model.init())
    monkeypatch.setattr("attnflow.dynamics.stall.DENSE", 1500)
    dense = af.explain_stall(model, model.init())
    assert matrix_free.cause == dense.cause
    assert matrix_free.curvature_max == pytest.approx(dense.curvature_max, rel=1e-5)


def test_the_papers_stall_is_a_strict_minimum_that_is_not_global():
    model = af.StudentTeacher(d=20, n=20, samples=100, sigma_p=1.0, seed=0).model()
    _, params = af.descend(model, 20_000, optax.sgd(0.1), return_params=True, record=2)
    found = af.explain_stall(model, params, step=0.1)
    assert found.cause == "local minimum"
    assert found.polished_min > 0
    assert found.floor_reference < 1e-20 < 0.1 < found.floor_here


@pytest.mark.parametrize("seed", [2, 3, 6])
def test_the_polish_stays_in_the_basin_that_newtons_method_leaves(seed):
    """In all three problems a trust-region Newton method ends in another basin than the flow."""
    model = af.StudentTeacher(d=6, n=6, samples=30, seed=seed).model()
    start = {block: model.start[block] for block in model.trained}
    found = af.explain_stall(model, start)
    flow = flow_on(model, start, 1e12)
    assert found.cause == "local minimum"
    assert found.floor_here == pytest.approx(flow, rel=1e-3)
    with jax.enable_x64(True):
        view = FlatLoss(traced(model), start)
        x = view.flat(start)
        newton = minimize(view.loss, x, jac=view.slope, hess=view.hessian, method="trust-exact")
    assert newton.fun < flow - 0.02


def test_a_minimum_at_infinity_is_told_from_a_strict_one():
    model = af.StudentTeacher(d=6, n=6, samples=30, seed=3).model()
    flat = af.explain_stall(model, {block: model.start[block] for block in model.trained})
    assert flat.distance_polished > 100
    assert "ever flatter" in flat.words
    well = explain("two wells", [0.0, 0.9], reference=jnp.asarray([0.0, -1.0357]))
    assert "strict minimum" in well.words
    assert well.distance_polished == pytest.approx(0.0604, abs=1e-3)


def prompt_near_teacher():
    return af.StudentTeacher(
        d=5, n=6, samples=40, sigma_p=2.0, near=0.02, trained=("p",), seed=3
    ).model()


def test_gauss_newton_is_newton_at_a_zero_residual_solution():
    model = prompt_near_teacher()
    optimizer = optax.chain(
        af.gauss_newton(model.outputs, model.loss_of_outputs), optax.scale(-1.0)
    )
    run = af.descend(model, 12, optimizer, record=np.arange(13))
    assert float(run.loss[-1]) < 1e-25


def test_the_natural_metric_is_the_sum_of_softmax_jacobians():
    model = prompt_near_teacher()
    with jax.enable_x64(True):
        params = model.init()
        gradient = jax.grad(model.loss)(params)
        natural = af.simplex_natural_gradient(model.scores)
        step: Any = natural.update(gradient, optax.EmptyState(), params)[0]
        weights = np.asarray(jax.nn.softmax(model.scores(params), axis=-1))
    metric = np.mean(
        [
            X.T @ (np.diag(a) - np.outer(a, a)) @ X
            for X, a in zip(np.asarray(model.inputs), weights, strict=True)
        ],
        axis=0,
    )
    np.testing.assert_allclose(metric @ np.asarray(step["p"]), gradient["p"], rtol=1e-6, atol=1e-12)


def test_what_no_score_depends_on_keeps_its_gradient():
    model = af.StudentTeacher(d=5, n=6, samples=40, trained=("p", "v"), seed=3).model()
    alone = af.StudentTeacher(d=5, n=6, samples=40, trained=("p",), seed=3).model()
    with jax.enable_x64(True):
        params = model.init()
        gradient = jax.grad(model.loss)(params)
        natural = af.simplex_natural_gradient(model.scores)
        step: Any = natural.update(gradient, optax.EmptyState(), params)[0]
        only = {"p": params["p"]}
        wanted: Any = af.simplex_natural_gradient(alone.scores).update(
            {"p": gradient["p"]}, optax.EmptyState(), only
        )[0]
    np.testing.assert_allclose(step["v"], gradient["v"], rtol=1e-9)
    np.testing.assert_allclose(step["p"], wanted["p"], rtol=1e-6)


def test_bad_numbers_are_refused():
    with pytest.raises(ValueError, match="damping must be positive"):
        af.simplex_natural_gradient(lambda x: x, damping=0.0)
    with pytest.raises(ValueError, match="step must be positive"):
        explain("bowl", [1.0, 1.0], step=-1.0)
