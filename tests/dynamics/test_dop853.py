"""The stepper against SciPy's tableau, SciPy's solver and solutions in closed form."""

import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.integrate._ivp import dop853_coefficients as scipy_has

from attnflow.dynamics import dop853
from attnflow.dynamics.dop853 import Dop853
from attnflow.dynamics.roots import roots, sign_changes


def test_the_coefficients_are_those_of_the_book():
    for stage in range(1, 12):
        np.testing.assert_allclose(dop853.ROWS[stage], scipy_has.A[stage, :stage], rtol=1e-15)
    np.testing.assert_allclose(dop853.C, scipy_has.C[:12], rtol=1e-15)
    np.testing.assert_allclose(dop853.WEIGHTS, scipy_has.B, rtol=1e-15)
    np.testing.assert_allclose(dop853.ERRORS[0], scipy_has.E5[:12], rtol=1e-15)
    np.testing.assert_allclose(dop853.ERRORS[1], scipy_has.E3[:12], rtol=1e-13, atol=1e-16)
    for stage in range(1, 12):
        assert dop853.ROWS[stage].sum() == pytest.approx(dop853.C[stage], rel=1e-13)


def rotation(s, y):
    return np.stack([y[..., 1], -y[..., 0]], axis=-1)


def test_a_rotation_is_exact_at_the_steps_and_between_them():
    run = Dop853(rotation, np.array([[0.0, 1.0]]), 1e-11, 1e-13)
    assert run.to(20.0, 1000)
    s = np.linspace(0, 20, 777)
    states = run.at(s)[:, 0]
    np.testing.assert_allclose(states, np.stack([np.sin(s), np.cos(s)], axis=-1), atol=1e-9)
    np.testing.assert_array_equal(run.at(np.array(run.s)), run.y)
    assert run.s[-1] == 20.0


PACE = np.array([0.1, 1.0, 30.0])


def at_their_pace(s, y):
    return PACE[:, None] * rotation(s, y)


def test_runs_have_steps_of_their_own():
    run = Dop853(at_their_pace, np.array([[0.0, 1.0]] * 3), 1e-11, 1e-13)
    assert run.to(5.0, 1000)
    s = np.linspace(0, 5, 50)
    angle = s[:, None] * PACE
    wanted = np.stack([np.sin(angle), np.cos(angle)], axis=-1)
    np.testing.assert_allclose(run.at(s), wanted, atol=1e-8)
    np.testing.assert_array_equal(run.at(np.stack([s] * 3, axis=1)), run.at(s))
    taken = [len(np.unique(own)) for own in np.asarray(run.s).T]
    assert 3 * taken[0] < taken[1] < 0.3 * taken[2]


def test_a_run_that_is_stuck_holds_up_no_other():
    run = Dop853(lambda s, y: y**2, np.array([[1.0], [0.1], [4.0]]), 1e-10, 1e-12)
    with np.errstate(all="ignore"):
        assert not run.to(2.0, 10_000)  # y = 1 / (1 / y0 - s)
    assert run.stuck.tolist() == [True, False, True]
    np.testing.assert_allclose(run.s[-1], [1.0, 2.0, 0.25], rtol=1e-7)
    np.testing.assert_allclose(run.y[-1][1], 0.125, rtol=1e-9)


def test_each_run_until_it_is_done():
    run = Dop853(at_their_pace, np.array([[0.0, 1.0]] * 3), 1e-11, 1e-13)
    assert run.until(lambda y: y[..., 1] < 0, 1000)
    for own, pace in zip(np.asarray(run.s).T, PACE, strict=True):
        assert np.pi / 2 < pace * own[-1] < 3 * np.pi / 2
    assert np.isfinite(run.y[-1]).all()


def test_sign_changes_of_each_run():
    run = Dop853(at_their_pace, np.array([[0.0, 1.0]] * 3), 1e-12, 1e-14)
    assert run.to(4.0, 1000)
    found = sign_changes(run, lambda y: y[..., 1], samples=20)  # cos(pace s) = 0
    for times, pace in zip(found, PACE, strict=True):
        wanted = (np.arange(100) + 0.5) * np.pi / pace
        np.testing.assert_allclose(times, wanted[wanted < 4.0], rtol=1e-9)
    zeros = sign_changes(run, lambda y: y[..., 0], samples=20)  # the start itself is none
    assert [len(x) for x in zeros] == [0, 1, 38]


def test_as_many_steps_as_scipy():
    def field(s, y):
        return np.stack([y[..., 1], 5 * (1 - y[..., 0] ** 2) * y[..., 1] - y[..., 0]], axis=-1)

    start = np.array([2.0, 0.0])
    run = Dop853(field, start[None], 1e-10, 1e-12)
    assert run.to(30.0, 10_000)
    theirs = solve_ivp(field, (0, 30), start, method="DOP853", rtol=1e-10, atol=1e-12)
    assert 0.7 * theirs.t.size < len(run.s) < 1.5 * theirs.t.size
    np.testing.assert_allclose(run.y[-1][0], theirs.y[:, -1], rtol=1e-7, atol=1e-7)


def test_the_order_is_eight():
    errors = []
    for n in (8, 16):
        y, f = np.array([0.0, 1.0]), np.array([1.0, 0.0])
        for i in range(n):
            y = dop853.numpy_step(rotation, np.array(i * 2 / n), y, 2 / n, f)[0]
            f = rotation(0, y)
        errors.append(np.abs(y - [np.sin(2), np.cos(2)]).max())
    assert 7.5 < np.log2(errors[0] / errors[1]) < 9


def test_a_pole_is_not_passed():
    run = Dop853(lambda s, y: y**2, np.array([[1.0]]), 1e-10, 1e-12)  # y = 1 / (1 - s)
    with np.errstate(all="ignore"):
        assert not run.to(2.0, 10_000)
    assert run.s[-1] == pytest.approx(1.0, abs=1e-8)  # where the pole is, up to the tolerance
    assert np.isfinite(run.y).all()


def test_few_steps_are_not_enough():
    run = Dop853(rotation, np.array([[0.0, 1.0]]), 1e-12, 1e-14)
    assert not run.to(1e6, 20)
    assert run.steps == 20


@pytest.mark.parametrize("place", [1e-6, 0.3, 0.999999])
def test_roots(place):
    low, high = np.array([0.0, -1.0, 0.0]), np.array([1.0, 1.0, place])
    found = roots(lambda s: np.tanh(5 * (s - place)), low, high)
    np.testing.assert_allclose(found, place, atol=3e-14)
    assert roots(lambda s: s - 0.5, low[:1], high[:1]) == 0.5
