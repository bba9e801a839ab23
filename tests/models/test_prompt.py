import jax
import numpy as np
import optax
import pytest
from scipy.special import softmax

import attnflow as af

TASK = af.StudentTeacher(d=4, n=5, samples=7, sigma_p=0.5)


def evaluate(model, f):
    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, f(model.init()))


def test_outputs_are_the_definition():
    model = TASK.model()
    start = model.start
    by_hand = [softmax(X @ start["p"]) @ X @ start["v"] for X in model.inputs]
    np.testing.assert_allclose(evaluate(model, model.outputs), by_hand)
    assert evaluate(model, model.loss) == pytest.approx(
        0.5 * np.mean((np.array(by_hand) - model.labels) ** 2)
    )


def test_the_teacher_solves_its_own_task():
    model = TASK.model()
    with jax.enable_x64(True):
        assert float(model.loss(model.solution())) < 1e-30


def test_only_the_trained_blocks_move_and_the_rest_is_the_teachers():
    model = af.StudentTeacher(d=4, n=5, samples=7, trained=("p",)).model()
    assert set(model.init()) == {"p"}
    run, params = af.descend(model, 50, optax.sgd(0.1), return_params=True)
    assert set(params) == {"p"}
    assert float(run.gradient_v[-1]) == 0
    assert float(run.loss[-1]) < float(run.loss[0])


def test_ratios_beyond_floating_point_are_told():
    model = af.StudentTeacher(d=4, n=5, samples=7, sigma_p=3000.0, near=1e-9).model()
    assert 308 < evaluate(model, model.observe)["log10_ratio"] < 3000


def test_linear_attention_is_the_control():
    model = af.StudentTeacher(d=4, n=5, samples=7, attention="linear").model()
    X, start = model.inputs, model.start
    by_hand = np.einsum("kni,i,knj,j->k", X, start["p"], X, start["v"]) / 5
    np.testing.assert_allclose(evaluate(model, model.outputs), by_hand)


def test_logistic_labels_are_signs():
    model = af.StudentTeacher(d=4, n=5, samples=7, objective="logistic").model()
    assert set(np.unique(model.labels)) <= {-1.0, 1.0}
    outputs = evaluate(model, model.outputs)
    assert evaluate(model, model.loss) == pytest.approx(
        np.mean(np.log1p(np.exp(-model.labels * outputs)))
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n": 1}, "n must be a whole number of at least 2"),
        ({"samples": 0}, "nothing to learn"),
        ({"sigma_p": -1.0}, "sigma_p must be positive"),
        ({"near": 0.0}, "near must be positive"),
    ],
)
def test_bad_tasks_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        af.StudentTeacher(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"trained": ("q",)}, "trained block 'q' is not known"),
        ({"trained": ()}, "name at least one"),
        ({"attention": "linar"}, "did you mean 'linear'"),
        ({"objective": "sqare"}, "did you mean 'square'"),
    ],
)
def test_bad_models_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        af.StudentTeacher(d=3, n=3, samples=2, **fields).model()
