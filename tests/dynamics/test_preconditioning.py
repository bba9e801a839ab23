import jax
import numpy as np
import optax
import pytest

import attnflow as af
from attnflow.dynamics.preconditioning import levenberg_marquardt
from attnflow.papers.conditioning._separated import Separated, separated


def far_model():
    return af.StudentTeacher(d=6, n=6, samples=30, seed=6).model()


def test_levenberg_marquardt_never_climbs_where_gauss_newton_does():
    model = far_model()
    plain = optax.chain(af.gauss_newton(model.outputs, model.loss_of_outputs), optax.scale(-1.0))
    adaptive = levenberg_marquardt(model.outputs, model.loss_of_outputs)
    every = np.arange(41)
    climbing = af.descend(model, 40, plain, record=every).loss.values
    falling = af.descend(model, 40, adaptive, record=every).loss.values
    assert np.diff(climbing).max() > 0.01
    assert (np.diff(falling) <= 0).all()
    assert falling[-1] < falling[0]


def test_levenberg_marquardt_arrives_however_sparse_the_teacher():
    """From 0.1 off the teacher; three important keys, attention ratio e¹² = 1.6e5."""
    model = separated(Separated(), 3, 12.0)
    optimizer = levenberg_marquardt(model.outputs, model.loss_of_outputs)
    rng = np.random.default_rng(1)
    for _ in range(3):
        away = rng.normal(size=6)
        start = model.teacher["p"] + 0.1 * away / np.linalg.norm(away)
        begun = type(model)(
            model.inputs, model.labels, model.teacher, model.teacher | {"p": start}, ("p",)
        )
        run = af.descend(begun, 40, optimizer, record=[0, 40])
        assert float(run.teacher_distance[-1]) < 1e-7


def test_a_step_left_out_raises_the_damping_and_a_good_one_lowers_it():
    adaptive = levenberg_marquardt(lambda x: x**3, lambda y: 0.5 * ((y - 1) ** 2).sum(), 1e-6)
    with jax.enable_x64(True):
        for x, factor, moved in ((0.01, 10, False), (0.9, 0.1, True)):
            params = np.array([x])
            slope = 3 * params**2 * (params**3 - 1)
            step, state = adaptive.update(slope, adaptive.init(params), params)
            assert float(state.damping) == pytest.approx(1e-6 * factor)  # pyright: ignore[reportAttributeAccessIssue]
            assert bool(np.any(np.asarray(step) != 0)) == moved


def test_parameters_must_be_given():
    adaptive = levenberg_marquardt(lambda x: x, lambda y: (y**2).sum())
    with pytest.raises(ValueError, match="pass params"):
        adaptive.update(np.ones(2), adaptive.init(np.ones(2)))
    with pytest.raises(ValueError, match="damping must be positive"):
        levenberg_marquardt(lambda x: x, lambda y: y, damping=0.0)
