"""Any start, blocks that stay, blocks with a clock of their own: against SciPy on the gradient."""

import jax
import numpy as np
import optax
import pytest
import xarray as xr
from scipy.integrate import solve_ivp

import attnflow as af
from attnflow.dynamics import compiled

MODEL = af.ValueSoftmax(values=np.eye(2, 3), target=np.array([1.0, 0.5]), objective="square")
START = {"values": np.array([[0.3, -0.1, 0.2], [0.0, 0.4, 0.1]]), "scores": np.array([0.1, 0, -1])}


def oracle(rates, t1=5.0, start=START):
    """Scores at t1, by SciPy."""
    sizes = np.cumsum([6])

    def field(_, y):
        values, scores = np.split(y, sizes)
        with jax.enable_x64(True):
            slope = jax.grad(MODEL.loss)({"values": values.reshape(2, 3), "scores": scores})
        return -np.concatenate(
            [rates[name] * np.ravel(slope[name]) for name in ("values", "scores")]
        )

    begin = np.concatenate([start["values"].ravel(), start["scores"]])
    found = solve_ivp(field, (0, t1), begin, method="DOP853", rtol=1e-10, atol=1e-12)
    return found.y[6:, -1]


@pytest.mark.parametrize("engine", ["host", "compiled"])
@pytest.mark.parametrize(
    ("options", "rates"),
    [
        ({}, {"values": 1.0, "scores": 1.0}),
        ({"frozen": ("values",)}, {"values": 0.0, "scores": 1.0}),
        ({"rates": {"scores": 0.1}}, {"values": 1.0, "scores": 0.1}),
    ],
)
def test_flows_from_a_start(engine, options, rates):
    flow = af.gradient_flow(MODEL, times=[0.5, 5.0], start=START, engine=engine, **options)
    np.testing.assert_allclose(flow.scores[-1], oracle(rates), rtol=1e-8)


def test_lists_are_arrays_too():
    lists = {name: x.tolist() for name, x in START.items()}
    one, other = (
        af.gradient_flow(MODEL, times=[0.5, 5.0], start=start, frozen=["values"])
        for start in (START, lists)
    )
    xr.testing.assert_identical(one, other)


def test_another_start_or_rate_does_not_compile_again():
    options = {"times": [0.5, 5.0], "engine": "compiled"}
    af.gradient_flow(MODEL, start=START, rates={"scores": 0.5}, **options)
    before = compiled._compiled_solve._cached._cache_size()
    other = {name: 2 * x for name, x in START.items()}
    af.gradient_flow(MODEL, start=other, rates={"values": 3.0}, **options)
    af.gradient_flow(MODEL, start=other, frozen=("scores",), **options)
    assert compiled._compiled_solve._cached._cache_size() == before


def test_many_starts_are_many_runs():
    many = {name: np.stack([x, -x]) for name, x in START.items()}
    flows = af.gradient_flow(MODEL, times=[0.5, 5.0], start=many)
    assert flows.scores.dims == ("run", "time", "token")
    for run, sign in enumerate((1, -1)):
        one = {name: sign * x for name, x in START.items()}
        alone = af.gradient_flow(MODEL, times=[0.5, 5.0], start=one)
        np.testing.assert_allclose(flows.scores[run], alone.scores, rtol=1e-8)


def test_a_start_of_the_reduced_path():
    model = af.TwoToken(p=0.2, c0=3.0, c1=1.0)
    own = af.gradient_flow(model, t1=50.0, points=5)
    same = af.gradient_flow(model, t1=50.0, points=5, start=model.init())
    xr.testing.assert_allclose(own.drop_attrs(), same.drop_attrs(), rtol=1e-8, atol=1e-9)
    other = af.gradient_flow(model, t1=50.0, points=5, start=np.array([[0.0, 2.0], [1.0, -1.0]]))
    assert float(other.norm2[0]) == 6.0


def test_descent_from_a_start():
    run, params = af.descend(
        MODEL, 50, optax.sgd(0.1), start=START, frozen=("values",), return_params=True
    )
    np.testing.assert_array_equal(params["values"], START["values"])
    np.testing.assert_array_equal(run.scores[0], START["scores"])
    assert run.loss[-1] < run.loss[0]
    slow = af.descend(MODEL, 500, optax.sgd(0.01), start=START, rates={"values": 0.5})
    with jax.enable_x64(True):
        params = START
        for _ in range(500):
            slope = jax.grad(MODEL.loss)(params)
            params = {
                "values": params["values"] - 0.005 * slope["values"],
                "scores": params["scores"] - 0.01 * slope["scores"],
            }
    np.testing.assert_allclose(slow.scores[-1], params["scores"], rtol=1e-12)
    both = {name: np.stack([x, 2 * x]) for name, x in START.items()}
    many = af.descend(MODEL, 50, optax.sgd(0.1), start=both, frozen=("values",))
    np.testing.assert_allclose(many.scores[0], run.scores, rtol=1e-12)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"start": START["scores"]}, "start must have the blocks values, scores"),
        ({"start": {"values": START["values"]}}, "start must have the blocks values, scores"),
        ({"start": START | {"scores": np.zeros(4)}}, "values 2 × 3, scores 3, or an axis of runs"),
        ({"start": START | {"scores": ["a", 0, 1]}}, "start: scores must be numbers"),
        ({"start": START | {"scores": [[0], [1, 2]]}}, "start: scores must be numbers"),
        ({"start": START | {"scores": np.full(3, np.nan)}}, "start must be finite"),
        ({"start": START | {"scores": np.zeros((2, 3))}}, "the same number of runs"),
        ({"start": START, "key": 0}, "a start or a key"),
        ({"frozen": ("scorse",)}, "frozen 'scorse' is not known: did you mean 'scores'"),
        ({"frozen": ("scores", "values")}, "some block must move"),
        ({"rates": {"scores": 0.0}}, r"rates\['scores'\] must be positive"),
        ({"rates": {"scores": 1.0}, "frozen": ("scores",)}, "'scores' is frozen"),
        ({"rates": {"scores": 0.1}, "path": "reduced"}, "with frozen blocks or rates has no red"),
    ],
)
def test_bad_starts(options, said):
    with pytest.raises(ValueError, match=said):
        af.gradient_flow(MODEL, t1=1.0, **options)


def test_a_single_block_has_no_rates_of_its_own():
    with pytest.raises(ValueError, match="TwoToken has a single block"):
        af.gradient_flow(af.TwoToken(), t1=1.0, frozen=("M",))
    start = np.zeros((2, 2, 2))
    with pytest.raises(ValueError, match="is for 2 runs where there are 3"):
        af.gradient_flow(af.TwoToken(), t1=1.0, start=start, over={"c0": [1.0, 2.0, 3.0]})
