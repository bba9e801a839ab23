from typing import ClassVar

import jax.numpy as jnp
import numpy as np
import pytest

import attnflow as af
from attnflow.dynamics import compiled
from attnflow.models.interface import Model

PAIR = af.TwoToken(p=0.2, c0=2.0, c1=4.0)


class Quadratic(Model):
    """½ k x²: the flow is x0 e^-kt."""

    stiffness: float = 1.0
    x0: float = 1.0

    dims: ClassVar = {}

    def init(self, key=None):
        return jnp.asarray(self.x0)

    def loss(self, params):
        return 0.5 * self.stiffness * params**2

    def observe(self, params):
        return {"x": params, "loss": self.loss(params)}


class BlowUp(Model):
    """−x³/3: the flow x' = x² from 1 ends at t = 1."""

    x0: float = 1.0

    def init(self, key=None):
        return jnp.asarray(self.x0)

    def loss(self, params):
        return -(params**3) / 3

    def observe(self, params):
        return {"x": params}


class Steep(Model):
    """x' = 1, seen through e^{80 x}: between two times it grows by 35 decades."""

    def init(self, key=None):
        return jnp.zeros(())

    def loss(self, params):
        return -params

    def observe(self, params):
        return {"height": jnp.exp(80 * params)}


def test_the_default_is_good_to_ten_digits():
    times = np.geomspace(1e-3, 10, 40)
    flow = af.gradient_flow(Quadratic(), times=times)
    np.testing.assert_allclose(flow.x, np.exp(-times), atol=1e-10)


def test_tolerances_are_in_the_users_hands():
    exact = np.exp(-np.expm1(np.linspace(0, np.log1p(5.0), 3)))
    errors = [
        float(abs(af.gradient_flow(Quadratic(), 5.0, points=3, rtol=r, atol=r).x - exact).max())
        for r in (1e-4, 1e-12)
    ]
    assert errors[1] < 1e-11 < errors[0]


@pytest.mark.parametrize(("engine", "solver"), [("auto", "LSODA"), ("compiled", "Kvaerno5")])
def test_stiff_flows_are_finished_by_the_implicit_solver(engine, solver):
    flow = af.gradient_flow(Quadratic(stiffness=3.0), 1e12, points=30, engine=engine)
    assert flow.solver == solver
    exact = np.exp(-3 * flow.time.values)
    np.testing.assert_allclose(flow.x, exact, atol=1e-9)


def test_the_quick_solver_reads_between_its_steps_and_loses_a_digit_at_most():
    times = np.linspace(0.0, 10.0, 400)
    flow = af.gradient_flow(Quadratic(), times=times, solver="quick", rtol=1e-6, atol=1e-8)
    assert flow.steps < 60
    np.testing.assert_allclose(flow.x, np.exp(-times), atol=1e-5)


def test_default_times_are_even_on_the_clock_and_keep_the_ends():
    flow = af.gradient_flow(PAIR, 1e6, points=31)
    assert flow.time[0] == 0
    assert float(flow.time[-1]) == pytest.approx(1e6)
    np.testing.assert_allclose(np.diff(flow.log_time), np.log1p(1e6) / 30)


def test_a_solve_that_cannot_arrive_says_where_it_stopped():
    with pytest.raises(af.FlowError, match=r"stopped at t = (0\.99|1,)") as failure:
        af.gradient_flow(BlowUp(), 2.0, max_steps=500)
    assert 0.99 < failure.value.time <= 1.0
    assert failure.value.state[0] > 100


@pytest.mark.parametrize("solver", ["explicit", "stiff"])
def test_a_flow_that_stops_before_its_first_output_says_so(solver):
    with pytest.raises(af.FlowError, match="stopped at t = "):
        af.gradient_flow(BlowUp(), times=[2.0], max_steps=300, engine="host", solver=solver)


@pytest.mark.parametrize("engine", ["auto", "host"])
def test_one_failing_run_of_many_is_named(engine):
    starts = {"x0": [0.1, 1.0, 3.0]}
    with pytest.raises(af.FlowError, match="run 2 of 3") as failure:
        af.gradient_flow(BlowUp(), 0.5, over=starts, max_steps=300, engine=engine)
    assert failure.value.time == pytest.approx(1 / 3, rel=1e-3)


def test_the_second_call_does_not_compile():
    af.gradient_flow(PAIR, 10.0, points=7)
    before = compiled._compiled_solve._cached._cache_size()
    af.gradient_flow(af.TwoToken(p=-0.5, c0=1.0, c1=9.0), 99.0, points=7, rtol=1e-8)
    af.gradient_flow(af.TwoToken(p=0, c0=3, c1=2), 10, points=7)  # whole numbers are numbers too
    assert compiled._compiled_solve._cached._cache_size() == before


@pytest.mark.slow
def test_runs_of_several_blocks_come_back_in_their_order():
    c0 = np.random.default_rng(0).uniform(0.5, 8.0, 700)
    many = af.gradient_flow(PAIR, times=[10.0, 1e3], over={"c0": c0})
    assert many.solver == "Dopri8"
    some = [0, 1, 350, 511, 512, 699]
    few = af.gradient_flow(PAIR, times=[10.0, 1e3], over={"c0": c0[some]}, engine="host")
    np.testing.assert_allclose(many.norm2.isel(run=some), few.norm2, rtol=1e-8)
    np.testing.assert_array_equal(many.c0, c0)


class TestManyRuns:
    def test_runs_are_the_separate_flows(self):
        c0 = np.linspace(1, 5, 4)
        many = af.gradient_flow(PAIR, 100.0, over={"c0": c0}, points=5)
        assert many.norm2.dims == ("run", "time")
        np.testing.assert_allclose(many.c0, c0)
        for run, value in enumerate(c0):
            alone = af.gradient_flow(af.TwoToken(p=0.2, c0=value, c1=4.0), 100.0, points=5)
            np.testing.assert_allclose(many.xi[run], alone.xi, rtol=1e-9, atol=1e-10)

    @pytest.mark.slow
    def test_more_than_a_block(self):
        c0 = np.linspace(1, 5, compiled.BLOCK + 3)
        many = af.gradient_flow(PAIR, 10.0, over={"c0": c0}, points=2)
        assert many.sizes["run"] == c0.size
        np.testing.assert_allclose(many.xi[:, 0, 0], c0)
        last = af.gradient_flow(af.TwoToken(p=0.2, c0=5.0, c1=4.0), 10.0, points=2)
        np.testing.assert_allclose(many.xi[-1], last.xi, rtol=1e-9, atol=1e-10)

    def test_random_starts_come_from_the_key(self):
        one = af.gradient_flow(PAIR, 10.0, runs=3, key=0, points=3)
        again = af.gradient_flow(PAIR, 10.0, runs=3, key=0, points=3)
        other = af.gradient_flow(PAIR, 10.0, runs=3, key=1, points=3)
        assert one.equals(again)
        assert not one.norm2.equals(other.norm2)
        assert len(np.unique(one.norm2[:, 0])) == 3

    @pytest.mark.slow
    def test_vector_fields_that_do_not_vary_keep_their_length(self):
        model = af.ValueSoftmax(projections=(0.3, 0.1, 0.0), scores=(0.1, 0.2, 0.3))
        many = af.gradient_flow(model, 5.0, over={"target_norm": [0.5, 1.0]}, points=3)
        alone = af.gradient_flow(model, 5.0, points=3)
        np.testing.assert_allclose(many.weights[1], alone.weights, rtol=1e-9)

    def test_vector_fields_vary_too(self):
        model = af.ValueSoftmax(projections=(0.1, 0.0))
        starts = np.array([[0.1, 0.0], [0.5, -0.5]])
        many = af.gradient_flow(model, 5.0, over={"projections": starts}, points=3)
        np.testing.assert_allclose(many.projections[:, 0], starts)


class TestEvents:
    def test_crossings_are_exact(self):
        flow = af.gradient_flow(Quadratic(), 10.0, events=[af.Crosses("x", 0.5)], points=20)
        assert float(flow["x_crosses_0.5_time"][0]) == pytest.approx(np.log(2), rel=1e-11)
        assert float(flow["x_crosses_0.5_value"][0]) == pytest.approx(0.5, rel=1e-11)

    def test_an_event_at_the_foot_of_a_steep_slope_is_found(self):
        """The secant of the bracket's ends hardly leaves the left one."""
        crossing = af.Crosses("height", float(np.exp(40.0)))
        flow = af.gradient_flow(Steep(), times=[0.0, 1.0], events=[crossing])
        assert float(flow[f"{crossing.name}_time"][0]) == pytest.approx(0.5, rel=1e-11)

    def test_runs_with_fewer_events_are_filled_with_nan(self):
        flow = af.gradient_flow(
            PAIR, 1e4, over={"c0": [4.0, -1.0], "c1": [4.0, -2.0]}, events=[af.Critical("norm2")]
        )
        times = flow.norm2_critical_time
        assert times.dims == ("run", "norm2_critical_event")
        assert times[0].notnull().sum() == 1
        assert times[1].isnull().all()

    def test_no_event_gives_no_entries(self):
        flow = af.gradient_flow(Quadratic(), 1.0, events=[af.Crosses("x", 5.0)])
        assert flow.sizes["x_crosses_5_event"] == 0

    def test_vectors_have_no_crossing(self):
        with pytest.raises(ValueError, match="scalar observable"):
            af.gradient_flow(PAIR, 1.0, events=[af.Crosses("xi", 0.0)])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"t1": -1.0}, "t1 must be finite and after the start"),
        ({"t1": float("nan")}, "t1 must be finite"),
        ({"t1": float("inf")}, "t1 must be finite"),
        ({}, "exactly one of"),
        ({"t1": 1.0, "times": [1.0]}, "exactly one of"),
        ({"times": [2.0, 1.0]}, "must increase"),
        ({"times": [-1.0, 1.0]}, "must increase from 0"),
        ({"times": []}, "non-empty"),
        ({"times": [0.0]}, "beyond the start"),
        ({"log_t1": -3.0}, "log_t1 must be finite and positive"),
        ({"t1": 1.0, "points": 1}, "points must be a whole number of at least 2"),
        ({"t1": 1.0, "rtol": 0.0}, "rtol must be positive"),
        ({"t1": 1.0, "runs": 0, "key": 0}, "runs must be a whole number of at least 1"),
        ({"t1": 1.0, "runs": 3}, "give a key"),
        ({"t1": 1.0, "over": {"c0": [1.0], "c1": [1.0, 2.0]}}, "same number of runs"),
        ({"t1": 1.0, "over": {"c9": [1.0]}}, "not a float field"),
        ({"t1": 1.0, "over": {"p": [0.0, 2.0]}}, "p must lie in"),
        ({"t1": 1.0, "path": "fast"}, "path 'fast' is not known"),
        ({"t1": 1.0, "solver": "stif"}, "did you mean 'stiff'"),
        ({"t1": 1.0, "key": -1}, "give a seed"),
    ],
)
def test_bad_input_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        af.gradient_flow(PAIR, **options)
