import importlib

import numpy as np
import optax
import pytest

import attnflow as af
from attnflow.dynamics.arrival import steps_to_solution
from attnflow.dynamics.descent import step_grid
from attnflow.dynamics.descents import descents

RATE = {"learning_rate": 0.1}
MODEL = af.ValueSoftmax(projections=(0.3, 0.1, -0.2))


def test_records_do_not_change_the_path():
    sparse = af.descend(MODEL, 300, optax.adam(0.05), record=[300])
    dense = af.descend(MODEL, 300, optax.adam(0.05), record=np.arange(301))
    assert dense.sizes["step"] == 301
    np.testing.assert_array_equal(sparse.weights[-1], dense.weights[-1])


def test_the_grid_is_log_spaced_with_both_ends():
    grid = step_grid(10**6, 200)
    assert grid[0] == 0
    assert grid[-1] == 10**6
    assert (np.diff(grid) > 0).all()
    assert len(grid) > 150


def test_runs_are_the_separate_descents_and_the_seed_decides():
    many = af.descend(MODEL, 100, optax.sgd(0.1), over={"target_norm": [0.5, 2.0]}, record=5)
    alone = af.descend(
        af.ValueSoftmax(projections=MODEL.projections, target_norm=2.0),
        100,
        optax.sgd(0.1),
        record=5,
    )
    np.testing.assert_allclose(many.loss[1], alone.loss, rtol=1e-12)
    one, again, other = (
        af.descend(MODEL, 10, optax.sgd(0.1), runs=2, key=k, record=3) for k in (0, 0, 1)
    )
    assert one.equals(again)
    assert not one.loss.equals(other.loss)


def test_divergence_raises_with_its_step():
    model = af.ValueSoftmax(values=np.ones((2, 2)), target=2 * np.ones(2), objective="square")
    with pytest.raises(af.DescentError, match="not finite at step") as failure:
        af.descend(model, 10_000, optax.sgd(1e3))
    error = failure.value
    assert 0 < error.step <= 10_000
    assert error.what == "loss" or error.what in str(error)
    kept = error.recorded
    assert kept.step.values[0] == 0
    assert kept.step.values[-1] < error.step
    assert np.isfinite(kept.loss).all()


def test_divergence_in_a_batch_names_its_runs():
    model = af.ValueSoftmax(values=np.ones((2, 2)), target=2 * np.ones(2), objective="square")
    with pytest.raises(af.DescentError, match="in run 1") as failure:
        af.descend(model, 1000, optax.sgd, tuned={"learning_rate": [1e-3, 1e3]}, record=20)
    assert failure.value.runs == [1]
    assert failure.value.recorded.sizes["run"] == 2


def test_the_others_of_a_batch_go_on_if_asked():
    model = af.ValueSoftmax(values=np.ones((2, 2)), target=2 * np.ones(2), objective="square")
    tuned = {"learning_rate": [1e-3, 1e3]}
    kept = af.descend(model, 1000, optax.sgd, tuned=tuned, record=20, keep_diverged=True)
    alone = af.descend(model, 1000, optax.sgd(1e-3), record=20)
    np.testing.assert_allclose(kept.loss[0], alone.loss, rtol=1e-12)
    when = kept.diverged.values
    assert np.isinf(when[0])
    assert 0 < when[1] <= 1000
    np.testing.assert_array_equal(np.isnan(kept.loss[1]), kept.step >= when[1])


def test_tuned_optimizers_are_the_separate_ones():
    rates = [0.01, 0.1, 0.3]
    many = af.descend(MODEL, 50, optax.adam, tuned={"learning_rate": rates}, record=4)
    for run, rate in enumerate(rates):
        alone = af.descend(MODEL, 50, optax.adam(rate), record=4)
        np.testing.assert_allclose(many.loss[run], alone.loss, rtol=1e-12)
    both = af.descend(
        MODEL,
        50,
        optax.sgd,
        tuned={"learning_rate": [0.1, 0.2]},
        over={"target_norm": [0.5, 2.0]},
        record=4,
    )
    alone = af.descend(MODEL, 50, optax.sgd(0.2), over={"target_norm": [2.0]}, record=4)
    np.testing.assert_allclose(both.loss[1], alone.loss[0], rtol=1e-12)
    one = af.descend(MODEL, 50, optax.sgd, tuned={"learning_rate": 0.2}, record=4)
    assert "run" not in one.dims
    np.testing.assert_allclose(one.loss, af.descend(MODEL, 50, optax.sgd(0.2), record=4).loss)
    same = af.descend(
        MODEL, 50, optax.sgd, tuned={"learning_rate": 0.2}, over={"target_norm": [0.5, 2]}, record=4
    )
    np.testing.assert_allclose(same.loss[1], alone.loss[0], rtol=1e-12)
    with pytest.raises(ValueError, match="one value a run"):
        af.descend(MODEL, 5, lambda a, b: optax.sgd(a * b), tuned={"a": [1.0], "b": [1.0, 2.0]})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps must be a whole number of at least 1"),
        ({"steps": 10, "record": [0, 20]}, "between 0 and the 10 steps"),
        ({"steps": 10, "record": [5, 5]}, "must increase"),
        ({"steps": 10, "record": 1}, "record must be a whole number of at least 2"),
        ({"steps": 10, "runs": 2}, "give a key"),
    ],
)
def test_bad_input_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        af.descend(MODEL, optimizer=optax.sgd(0.1), **options)


def test_short_work_is_silent(capsys):
    af.descend(MODEL, 100, optax.sgd(0.1))
    assert capsys.readouterr() == ("", "")


class Kept:
    """A checkpoint in memory that gives up after some saves."""

    def __init__(self, saves):
        self.state, self.left = None, saves

    def due(self):
        return True

    def load(self):
        return self.state

    def save(self, state):
        self.state, self.left = state, self.left - 1
        if not self.left:
            raise KeyboardInterrupt


@pytest.mark.parametrize("options", [{}, {"runs": 3, "key": 1}])
@pytest.mark.parametrize("saves", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_an_interrupted_descent_continues_to_the_same_bits(options, saves):
    place = Kept(saves)
    call = lambda place: af.descend(  # noqa: E731
        MODEL, 3000, optax.adam(0.05), record=40, checkpoint=place, **options
    )
    with pytest.raises(KeyboardInterrupt):
        call(place)
    assert call(place).identical(call(None))
    other = af.descend(MODEL, 50, optax.adam(0.05), record=12, checkpoint=place, **options)
    fresh = af.descend(MODEL, 50, optax.adam(0.05), record=12, **options)
    assert other.identical(fresh)  # other steps: from the start


@pytest.mark.parametrize("options", [{}, {"runs": 3, "key": 1}])
def test_records_of_one_call_are_those_of_many(monkeypatch, options):
    descent = importlib.import_module("attnflow.dynamics.descent")
    together = af.descend(MODEL, 300, optax.adam(0.05), record=30, **options)
    monkeypatch.setattr(descent, "LARGE", 0)  # a call for each record
    assert af.descend(MODEL, 300, optax.adam(0.05), record=30, **options).identical(together)


def scaled(model, rate):
    return optax.sgd(rate / float(np.size(model.projections)))


def test_an_optimizer_can_be_made_of_the_model():
    made = af.descend(MODEL, 50, scaled, tuned={"rate": 0.2}, record=5)
    plain = af.descend(MODEL, 50, optax.sgd(0.2 / 3), record=5)
    np.testing.assert_allclose(made.loss, plain.loss, rtol=1e-12)


def test_steps_to_a_solution_are_those_of_a_loop():
    model = af.StudentTeacher(d=4, n=3, samples=20, trained=("v",), seed=1).model()
    start, target = {"v": model.teacher["v"] + 0.1}, 0.02
    count = steps_to_solution(model, optax.sgd, target, 9000, tuned=RATE, start=start)
    path = af.descend(
        model, int(count), optax.sgd, tuned=RATE, record=[int(count) - 1, int(count)], start=start
    )
    before, after = path.teacher_distance.values
    assert after <= target < before
    assert np.isnan(steps_to_solution(model, optax.sgd, target, 1, tuned=RATE, start=start))


def test_short_descents_in_one_program_are_those_of_descend():
    steps = np.array([0, 0, 1, 5, 40])
    rates = [0.2, 0.05]
    short = descents(MODEL, scaled, [{"rate": rate} for rate in rates], steps)
    many = af.descend(MODEL, 40, scaled, tuned={"rate": rates}, record=np.unique(steps))
    for run, found in enumerate(short):
        for name, path in found.items():
            np.testing.assert_allclose(path, many[name].isel(run=run).sel(step=steps), rtol=1e-12)


def test_a_run_that_diverged_before_an_interruption_is_known_after_it():
    place = Kept(3)
    call = lambda place: af.descend(  # noqa: E731
        af.ValueSoftmax(values=np.ones((2, 2)), target=2 * np.ones(2), objective="square"),
        3000,
        optax.sgd,
        tuned={"learning_rate": [1e-3, 1e3]},
        record=40,
        checkpoint=place,
        keep_diverged=True,
    )
    with pytest.raises(KeyboardInterrupt):
        call(place)
    found = call(place)
    assert np.isfinite(found.diverged.values).tolist() == [False, True]
    assert found.identical(call(None))
