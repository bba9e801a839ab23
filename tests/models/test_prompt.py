import dataclasses
import functools

import jax
import numpy as np
import optax
import pytest
from scipy.special import softmax

import attnflow as af
from attnflow.models.prompt import SeededInputs

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


CHUNKED = af.StudentTeacher(d=4, n=5, samples=11, sigma_p=0.5, trained=("p", "v", "W"), chunk=4)


@functools.cache
def chunked_and_whole():
    model = CHUNKED.model()  # 4 does not divide the 11 samples
    return model, dataclasses.replace(model, inputs=model.inputs.array())


def test_chunks_drawn_from_the_seed_are_the_same_data():
    def everything(model):
        @jax.jit
        def seen(params):
            found = model.loss, model.outputs, model.scores, model.observe, jax.grad(model.loss)
            return [f(params) for f in found]

        return evaluate(model, seen)

    model, whole = chunked_and_whole()
    assert np.shape(whole.inputs) == (11, 5, 4)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-14),
        everything(model),
        everything(whole),
    )


@pytest.mark.slow
def test_chunks_are_standard_normal_and_differ_from_key_to_key():
    drawn = [
        SeededInputs(np.array(key, np.uint32), 50, 10, 10, 20).array()
        for key in ((0, 0), (0, 0), (0, 1))
    ]
    assert (drawn[0] == drawn[1]).all()
    assert len(np.unique(drawn)) == 2 * drawn[0].size
    assert abs(drawn[0].mean()) < 0.05
    assert drawn[0].std() == pytest.approx(1, abs=0.05)


def test_chunked_data_go_through_descent():
    model, whole = chunked_and_whole()
    runs = [af.descend(m, 100, optax.sgd(0.1), record=2).loss for m in (model, whole)]
    np.testing.assert_allclose(*runs, rtol=1e-10)


@pytest.mark.slow
def test_chunked_data_go_through_explanations_and_batches():
    model, whole = chunked_and_whole()
    found, expected = (af.explain_stall(m, m.start, step=0.1) for m in (model, whole))
    assert found.cause == expected.cause
    assert found.curvature_max == pytest.approx(expected.curvature_max)
    many = [af.descend(m, 10, optax.sgd(0.1), runs=3, key=0).loss for m in (model, whole)]
    np.testing.assert_allclose(*many, rtol=1e-10)
    assert many[0].shape[0] == 3


def test_memory_does_not_grow_with_the_number_of_samples():
    def needed(samples):
        inputs = SeededInputs(np.zeros(2, np.uint32), samples, tokens=16, width=8, chunk=32)
        model = af.Prompt(inputs, np.zeros(samples), blocks(8), blocks(8))
        with jax.enable_x64(True):
            compiled = jax.jit(jax.grad(model.loss)).lower(model.init()).compile()
        analysis = compiled.memory_analysis()
        assert analysis is not None
        return analysis.temp_size_in_bytes

    small, large = needed(64), needed(64 * 64)
    numbers_a_sample = (large - small) / (63 * 64) / 8
    assert numbers_a_sample < 8  # outputs and their gradients, not the 128 entries of the inputs


def test_large_tasks_are_chunked_by_themselves(monkeypatch):
    monkeypatch.setattr("attnflow.models.prompt.IN_MEMORY", 100)
    monkeypatch.setattr("attnflow.models.prompt.CHUNK", 60)
    inputs = TASK.draw_inputs(np.random.default_rng(0))
    assert isinstance(inputs, SeededInputs)
    assert (inputs.shape, inputs.chunk) == ((7, 5, 4), 3)


def test_chunks_are_refused_in_single_precision():
    model, _ = chunked_and_whole()
    with pytest.raises(ValueError, match="seeded inputs are float64"):
        model.loss(model.init())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n": 1}, "n must be a whole number of at least 2"),
        ({"samples": 0}, "nothing to learn"),
        ({"sigma_p": -1.0}, "sigma_p must be positive"),
        ({"near": 0.0}, "near must be positive"),
        ({"chunk": 0}, "chunk must be a whole number of at least 1"),
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


def blocks(width, without=()):
    every = {"p": np.ones(width), "v": np.ones(width), "W": np.eye(width)}
    return {block: x for block, x in every.items() if block not in without}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"inputs": np.ones((0, 4, 3)), "labels": np.ones(0)}, "N ≥ 1 samples"),
        ({"inputs": np.ones((2, 1, 3))}, "n ≥ 2 tokens"),
        ({"inputs": np.ones((4, 3))}, "N × n × d"),
        ({"inputs": np.full((2, 4, 3), np.nan)}, "inputs must be finite"),
        ({"labels": None}, "labels: one for each of the 2 samples"),
        ({"labels": np.ones(3)}, "labels: one for each of the 2 samples"),
        ({"teacher": None}, "teacher: p, v, W missing"),
        ({"teacher": blocks(3, without=("v",))}, "teacher: v missing"),
        ({"start": blocks(3, without=("p",))}, "start: p missing"),
        ({"start": blocks(4)}, "the inputs' width 3"),
        ({"start": blocks(3) | {"W": np.ones(3)}}, "the inputs' width 3"),
    ],
)
def test_incomplete_problems_are_refused(fields, message):
    whole = {
        "inputs": np.ones((2, 4, 3)),
        "labels": np.ones(2),
        "teacher": blocks(3),
        "start": blocks(3),
    }
    af.Prompt(**whole)
    with pytest.raises(ValueError, match=message) as refusal:
        af.Prompt(**(whole | fields))
    assert "\n" not in str(refusal.value)
