import jax
import numpy as np
import optax
import pytest

import attnflow as af
from tests.oracles.value_softmax import logistic_descent

U = (0.3, 0.1, -0.2)
ONES = (1.0, 1.0, 1.0)


def matrix_model(rng, **fields):
    return af.ValueSoftmax(
        values=0.1 * rng.normal(size=(4, 3)), target=rng.normal(size=4), **fields
    )


def agree(fast, full):
    assert set(fast) == set(full)
    for name in fast:
        np.testing.assert_allclose(fast[name], full[name], rtol=1e-8, atol=1e-9, err_msg=name)


@pytest.mark.parametrize(
    ("law", "scores"),
    [
        ("softmax", None),
        pytest.param("square_normalized", ONES, marks=pytest.mark.slow),
        pytest.param("softplus_normalized", None, marks=pytest.mark.slow),
        pytest.param("sigmoid", None, marks=pytest.mark.slow),
        ("relu", ONES),
    ],
)
def test_the_aligned_path_is_the_full_flow(law, scores):
    model = af.ValueSoftmax(projections=U, map=law, scores=scores, target_norm=1.3)
    agree(*(af.gradient_flow(model, 100.0, path=p, points=20) for p in ("reduced", "full")))


@pytest.mark.slow
def test_the_aligned_path_for_any_values_and_any_start(rng):
    model = matrix_model(rng)
    agree(*(af.gradient_flow(model, 100.0, path=p, points=20, key=1) for p in ("reduced", "full")))


def test_the_aligned_path_of_the_square_loss():
    model = af.ValueSoftmax(projections=U, scores=(0.3, 0.1, 0.0), objective="square")
    agree(*(af.gradient_flow(model, 50.0, path=p, points=20) for p in ("reduced", "full")))


def test_square_loss_off_the_target_line_has_no_reduced_path(rng):
    with pytest.raises(ValueError, match="no reduced path"):
        af.gradient_flow(matrix_model(rng, objective="square"), 1.0, path="reduced")


@pytest.mark.slow
def test_the_path_in_tau_does_not_depend_on_the_loss():
    """Regression stops on the logistic path where ⟨u, s⟩ = |β*|²."""
    square = af.gradient_flow(af.ValueSoftmax(projections=U, objective="square"), 1e3)
    tau = float(square.gamma_integral[-1])
    logistic = af.gradient_flow(
        af.ValueSoftmax(projections=U), 100.0, events=[af.Crosses("gamma_integral", tau)]
    )
    there = af.gradient_flow(
        af.ValueSoftmax(projections=U),
        times=[float(logistic[f"gamma_integral_crosses_{tau:g}_time"][0])],
    )
    np.testing.assert_allclose(there.weights[-1], square.weights[-1], rtol=1e-7)
    assert float(square.projections[-1] @ square.weights[-1]) == pytest.approx(1.0, abs=1e-9)


def test_a_log_time_of_thousands_is_reached():
    flow = af.gradient_flow(af.ValueSoftmax(projections=U), log_t1=5000.0, points=50)
    assert np.isinf(flow.time[-1])
    assert float(flow.log_time[-1]) == 5000
    assert float(flow.gamma_integral[-1]) == pytest.approx(5000, rel=0.01)
    assert float(flow.weights[-1, 0]) == pytest.approx(1, abs=1e-6)


def test_descent_is_the_notebooks(rng):
    values, target = 0.1 * rng.normal(size=(8, 8)), rng.normal(size=8)
    V, a = logistic_descent(values, target, np.zeros(8), step=0.1, steps=500)
    model = af.ValueSoftmax(values=values, target=target)
    run = af.descend(model, 500, optax.sgd(0.1))
    np.testing.assert_allclose(run.scores[-1], a, atol=1e-12)
    np.testing.assert_allclose(run.projections[-1], V.T @ target, atol=1e-12)


def test_small_steps_follow_the_flow():
    model = af.ValueSoftmax(projections=U)
    flow = af.gradient_flow(model, times=[20.0])
    errors = [
        float(
            abs(af.descend(model, int(20 / h), optax.sgd(h)).weights[-1] - flow.weights[-1]).max()
        )
        for h in (0.1, 0.05)
    ]
    assert errors[0] / errors[1] == pytest.approx(2, rel=0.05)  # Euler is of first order


def test_kl_is_the_divergence_of_a_softmax_head(rng):
    target = rng.dirichlet(np.ones(4))
    model = af.ValueSoftmax(values=rng.normal(size=(4, 3)), target=target, objective="kl")
    with jax.enable_x64(True):
        params = model.init()
        value = float(model.loss(params))
    output = np.asarray(model.values) @ np.full(3, 1 / 3)
    predicted = np.exp(output) / np.exp(output).sum()
    assert value == pytest.approx((target * np.log(target / predicted)).sum())


def test_data_enters_the_square_loss(rng):
    data = rng.normal(size=(5, 4))
    model = af.ValueSoftmax(
        values=rng.normal(size=(4, 3)), target=rng.normal(size=5), data=data, objective="square"
    )
    with jax.enable_x64(True):
        value = float(model.loss(model.init()))
    residual = model.target - data @ np.asarray(model.values) @ np.full(3, 1 / 3)
    assert value == pytest.approx(0.5 * residual @ residual)


def test_the_sink_matrix_reduction_is_its_full_flow():
    model = af.SinkMatrix(projections=(0.4, 0.1, -0.1), target_norm=1.2)
    agree(*(af.gradient_flow(model, 200.0, path=p, points=20, key=2) for p in ("reduced", "full")))


def test_identical_rows_of_the_sink_matrix_stay_identical():
    flow = af.gradient_flow(af.SinkMatrix(projections=U), 1e3, points=20)
    weights = flow.weights.values
    assert abs(weights - weights[:, :1]).max() < 1e-12


def test_tied_model_uses_one_matrix_twice(rng):
    model = af.TiedValueSoftmax(dimension=3, query=np.array([1.0, 0.5, 0.2]))
    with jax.enable_x64(True):
        params = model.init() | {"embedding": rng.normal(size=(3, 3))}
        value = float(model.loss(params))
    scores = params["embedding"] @ np.asarray(model.query)
    weights = np.exp(scores) / np.exp(scores).sum()
    margin = (params["embedding"] @ weights).sum() / np.sqrt(3)
    assert value == pytest.approx(np.log1p(np.exp(-margin)))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "give the start as projections"),
        ({"projections": U, "objective": "logstic"}, "did you mean 'logistic'"),
        ({"projections": U, "map": "softmx"}, "did you mean 'softmax'"),
        ({"projections": U, "map": "identity_normalized"}, "0/0"),
        ({"projections": U, "map": "square_normalized", "scores": (0.0, 0.0, 0.0)}, "0/0"),
        ({"projections": U, "scores": (1.0,)}, "one entry for each of the 3 tokens"),
        ({"projections": (1.0,)}, "at least two tokens"),
        ({"projections": (1.0, float("nan"))}, "projections must be finite"),
        ({"projections": U, "target_norm": 0.0}, "target_norm must be positive"),
        ({"projections": U, "objective": "kl"}, "need the start as a values matrix"),
        ({"values": np.ones((2, 3))}, "values need a target"),
        ({"values": np.ones((2, 3)), "target": np.ones(3)}, "target has 3 entries"),
        ({"values": np.ones((2, 3)), "target": np.ones(2), "data": np.eye(2)}, "square loss"),
    ],
)
def test_bad_fields_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        af.ValueSoftmax(**fields)


def test_bad_sink_and_tied_fields_are_refused():
    with pytest.raises(ValueError, match="3 × 3"):
        af.SinkMatrix(projections=U, scores=np.zeros((2, 2)))
    with pytest.raises(ValueError, match="at least two tokens"):
        af.SinkMatrix(projections=(1.0,))
    with pytest.raises(ValueError, match="at least 2"):
        af.TiedValueSoftmax(dimension=1)
    with pytest.raises(ValueError, match="query must have 3 entries"):
        af.TiedValueSoftmax(dimension=3, query=np.ones(2))
