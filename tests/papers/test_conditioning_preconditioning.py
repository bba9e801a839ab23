"""The figure of preconditioned steps: its numbers, and the linear algebra beside them."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
import xarray as xr

from attnflow.dynamics.batching import traced
from attnflow.papers import gallery
from attnflow.papers.conditioning._preconditioning import (
    Preconditioning,
    modes,
    preconditioning,
    rotated,
    simplex_metric,
)
from attnflow.papers.conditioning._separated import Separated, factors_at_teacher, separated
from attnflow.runs import canonical
from attnflow.runs.figures import render

SMALL = Preconditioning(
    task=Separated(deltas=(0.0, 2.0, 4.0, 6.0, 12.0), important=(2,)), cap=15_000, rates=(1e-2,)
)


@functools.cache
def data() -> xr.Dataset:
    return preconditioning(SMALL)


def by(name: str, what: str = "steps") -> np.ndarray:
    return data()[what].sel(optimizer=name).values


def test_gauss_newton_is_flat():
    steps = by("Gauss–Newton")
    assert steps.max() <= 2 * steps.min()
    assert steps.max() < 10


def test_gradient_descent_takes_steps_in_proportion_to_kappa():
    steps, kappa = by("gradient descent"), by("gradient descent", "kappa")
    done = np.isfinite(steps)
    assert done.tolist() == [True, True, True, False, False]
    assert by("gradient descent", "tried").tolist() == [True, True, True, True, False]
    ratio = steps[done] / kappa[done]
    assert ratio.max() < 1.5 * ratio.min()
    assert np.log(kappa[4] / kappa[3]) / 6 == pytest.approx(2, abs=0.05)


def test_the_natural_gradient_undoes_one_jacobian_of_two():
    steps, kappa = by("simplex natural gradient"), by("simplex natural gradient", "kappa")
    assert np.log(kappa[4] / kappa[3]) / 6 == pytest.approx(1, abs=0.05)
    assert np.log(steps[3] / steps[2]) / 2 == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("name", ["gradient descent", "simplex natural gradient"])
def test_the_linearized_count_is_right_where_runs_end(name):
    steps, linear = by(name), by(name, "linear")
    done = np.isfinite(steps)
    assert done.sum() >= 3
    np.testing.assert_allclose(steps[done], linear[done], rtol=0.02, atol=1)


def test_adam_needs_the_axes():
    assert by("Adam, aligned")[3] < 1000
    assert not by("Adam, rotated")[3] < 5000


def test_kappa_is_that_of_autodiff_and_a_rotation_leaves_it():
    model = separated(SMALL.task, 2, 4.0)
    with jax.enable_x64(True):
        hessian = np.asarray(
            jax.jit(jax.hessian(traced(model).loss))({"p": model.teacher["p"]})["p"]["p"]
        )
    metric = simplex_metric(model)
    plain = modes(factors_at_teacher(model), np.eye(6))
    natural = modes(factors_at_teacher(model), metric)
    np.testing.assert_allclose(plain.values[::-1], np.linalg.eigvalsh(hessian), rtol=1e-7)
    both = np.sort(np.linalg.eigvals(np.linalg.solve(metric, hessian)).real)
    np.testing.assert_allclose(natural.values[::-1], both, rtol=1e-7)
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(6, 6)))[0]
    turned = modes(factors_at_teacher(rotated(model, turn)), np.eye(6))
    np.testing.assert_allclose(turned.values, plain.values, rtol=1e-9)


def test_the_figure_goes_through_a_file(tmp_path):
    (figure,) = gallery.select("conditioning/preconditioning")
    assert canonical(figure.presets["quick"]) != canonical(figure.presets["paper"])
    small = dataclasses.replace(figure, compute=lambda _: data().copy())
    made = render(small, "quick", tmp_path)
    assert made.picture.stat().st_size > 10_000
    xr.testing.assert_equal(xr.load_dataset(made.data), data())
