"""The host engine and the compiled one: one contract, the same numbers."""

import dataclasses
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import xarray as xr

import attnflow as af
from attnflow.dynamics import engines
from attnflow.dynamics.batching import prepare
from attnflow.dynamics.dop853 import numpy_step
from attnflow.dynamics.starts import Start
from attnflow.dynamics.traced import TracedSystem
from attnflow.dynamics.trees import Packing, leaves, mapped

MODELS = {
    "two tokens": af.TwoToken(p=0.3, c0=6.0, c1=3.0),
    "two tokens, equal gaps": af.TwoToken(p=0.0, c0=5.0, c1=5.0),
    "two tokens, attention": af.TwoToken(p=-0.4, c0=2.0, c1=4.0, objective="attention"),
    "two tokens, mse": af.TwoToken(p=0.2, c0=3.0, c1=1.0, objective="mse"),
    "two tokens, right": af.TwoToken(p=0.0, c0=-1.0, c1=-2.0, d=5),
    "logistic": af.ValueSoftmax(projections=(0.3, 0.1, -0.2)),
    "logistic, scores": af.ValueSoftmax(
        projections=(0.3, 0.1), scores=(1.0, -2.0), target_norm=2.0
    ),
    "logistic, values": af.ValueSoftmax(values=np.eye(3), target=np.array([0.5, -0.2, 1.0])),
    "square": af.ValueSoftmax(projections=(0.3, 0.1, -0.2), objective="square"),
}
COMPILED_VELOCITY = {
    "square, values": af.ValueSoftmax(values=np.eye(2), target=np.ones(2), objective="square"),
    "kl": af.ValueSoftmax(
        values=np.eye(3, 4) - 0.1, target=np.array([0.6, 0.3, 0.1]), objective="kl"
    ),
    "relu": af.ValueSoftmax((0.3, 0.1), map="relu", scores=(1.0, 2.0)),
    "self-attention": af.SelfAttention(tokens=np.eye(3), start=np.diag([0.1, -0.2, 0.3])),
    "sink matrix": af.SinkMatrix((0.3, 0.1, -0.2)),
    "tied": af.TiedValueSoftmax(dimension=3, query=np.array([1.0, 0.8, 0.5])),  # off the balance
}


@pytest.fixture(autouse=True)
def nothing_followed_yet(monkeypatch):
    monkeypatch.setattr(engines, "_followed", engines.Counter())


SLOW = pytest.mark.slow  # those that compile once more
HORIZONS = [{"times": [0.5, 3.0, 70.0]}, pytest.param({"t1": 1e4}, marks=SLOW)]


@pytest.mark.parametrize(
    "name", [*MODELS, *(pytest.param(name, marks=SLOW) for name in COMPILED_VELOCITY)]
)
@pytest.mark.parametrize("horizon", HORIZONS)
def test_both_engines_give_the_same_flow(name, horizon):
    model = (MODELS | COMPILED_VELOCITY)[name]
    host, compiled = (
        af.gradient_flow(model, **horizon, engine=engine) for engine in ("host", "compiled")
    )
    assert (host.solver, compiled.solver) == ("DOP853", "Dopri8")
    assert list(host.data_vars) == list(compiled.data_vars)
    xr.testing.assert_allclose(host.drop_attrs(), compiled.drop_attrs(), rtol=1e-8, atol=1e-9)


@SLOW
@pytest.mark.parametrize("model", [MODELS["logistic"], MODELS["two tokens"]])
def test_both_engines_reach_times_beyond_floating_point(model):
    host, compiled = (
        af.gradient_flow(model, log_t1=3000.0, points=20, engine=engine)
        for engine in ("host", "compiled")
    )
    xr.testing.assert_allclose(host.drop_attrs(), compiled.drop_attrs(), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("log_t1", [5.0, pytest.param(300.0, marks=SLOW)])
@pytest.mark.parametrize(
    ("model", "over"),
    [
        (af.TwoToken(), {"p": [-0.4, 0.3, 0.0], "c0": [6.0, 2.0, 5.0], "c1": [1.0, 2.0, 5.0]}),
        (af.ValueSoftmax(projections=(0.3, 0.1, -0.2)), {"target_norm": [0.5, 1.0, 2.0]}),
        pytest.param(
            af.ValueSoftmax((0.3, 0.1), map="relu", scores=(1.0, 2.0)),  # compiled velocity
            {"target_norm": [0.5, 1.0, 2.0]},
            marks=SLOW,
        ),
    ],
)
def test_small_batches_are_the_same_on_both(model, over, log_t1):
    host, compiled = (
        af.gradient_flow(model, log_t1=log_t1, points=9, over=over, engine=engine)
        for engine in ("host", "compiled")
    )
    assert (host.solver, compiled.solver) == ("DOP853", "Dopri8")
    assert list(host.data_vars) == list(compiled.data_vars)
    xr.testing.assert_allclose(host.drop_attrs(), compiled.drop_attrs(), rtol=1e-8, atol=1e-9)
    for run in range(3):
        fields = {name: values[run] for name, values in over.items()}
        alone = af.gradient_flow(dataclasses.replace(model, **fields), log_t1=log_t1, points=9)
        batch = host.isel(run=run).drop_vars(["run", *over])
        xr.testing.assert_allclose(batch.drop_attrs(), alone.drop_attrs(), rtol=1e-8, atol=1e-9)


@SLOW
def test_random_runs_and_many_starts_are_the_same_on_both():
    model = MODELS["two tokens"]
    cases: list[dict[str, Any]] = [
        {"runs": 4, "key": 1},
        {"start": np.stack([np.eye(2), -np.eye(2)])},
        {"start": np.eye(2), "over": {"p": [0.1, 0.2]}},
    ]
    for options in cases:
        host, compiled = (
            af.gradient_flow(model, t1=50.0, points=6, engine=engine, **options)
            for engine in ("host", "compiled")
        )
        assert (host.solver, compiled.solver) == ("DOP853", "Dopri8")
        xr.testing.assert_allclose(host.drop_attrs(), compiled.drop_attrs(), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", ["two tokens", pytest.param("relu", marks=SLOW)])
def test_both_engines_find_the_same_events_of_many_runs(name):
    model = (MODELS | COMPILED_VELOCITY)[name]
    over, event = {
        "two tokens": ({"c0": [6.0, -1.0, 4.0], "c1": [3.0, -2.0, 4.0]}, af.Critical("norm2")),
        "relu": ({"target_norm": [0.5, 1.0, 2.0]}, af.Crosses("loss", 0.4)),
    }[name]
    host, compiled = (
        af.gradient_flow(model, t1=1e3, points=200, over=over, events=[event], engine=engine)
        for engine in ("host", "compiled")
    )
    for part in ("time", "value"):
        found = host[f"{event.name}_{part}"]
        assert found.dims == ("run", f"{event.name}_event")
        assert found.notnull().any()
        np.testing.assert_allclose(found, compiled[f"{event.name}_{part}"], rtol=1e-8)


def test_both_engines_find_the_same_events():
    events = [af.Critical("norm2"), af.Crosses("norm2", 50.0), af.Crosses("loss", 0.9)]
    model = af.TwoToken(p=0.0, c0=6.0, c1=3.0)
    host, compiled = (
        af.gradient_flow(model, t1=1e5, points=400, events=events, engine=engine)
        for engine in ("host", "compiled")
    )
    assert host.norm2_critical_time.size == 3
    for name in ("norm2_critical", "norm2_crosses_50", "loss_crosses_0.9"):
        for part in ("time", "value"):
            np.testing.assert_allclose(
                host[f"{name}_{part}"], compiled[f"{name}_{part}"], rtol=1e-8
            )


@pytest.mark.parametrize(
    "fields",
    [
        {"c0": 6.0, "c1": 3.0},
        pytest.param({"c0": 1.0, "c1": 5.0}, marks=SLOW),
        {"c0": 6.0, "c1": 6.0},
        {"c0": -1.0, "c1": -2.0},
        {"c0": 0.0, "c1": 0.0},
        {"c0": 12.0, "c1": 12.0, "p": 0.9},
        pytest.param({"c0": 4.0, "c1": 2.0, "p": -0.5}, marks=SLOW),
        {"c0": 600.0, "c1": 600.0},
        pytest.param({"c0": 3.0, "c1": 2.0, "objective": "attention"}, marks=SLOW),
        pytest.param({"c0": 3.0, "c1": 2.0, "objective": "mse"}, marks=SLOW),
    ],
)
def test_both_engines_find_the_same_critical_points(fields):
    model = af.TwoToken(**({"p": 0.0} | fields))
    host, compiled = (model.critical_points(engine=engine) for engine in ("host", "compiled"))
    assert host.shape == compiled.shape
    np.testing.assert_allclose(host.times, compiled.times, rtol=1e-9)
    np.testing.assert_allclose(host.norm2, compiled.norm2, rtol=1e-9)
    assert [phase.name for phase in host.phases] == [phase.name for phase in compiled.phases]


def test_random_starts_are_the_same_on_both():
    model = af.TwoToken(p=0.1, c0=2.0, c1=1.0)
    host, compiled = (
        af.gradient_flow(model, t1=100.0, key=3, engine=engine) for engine in ("host", "compiled")
    )
    xr.testing.assert_allclose(host.drop_attrs(), compiled.drop_attrs(), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("engine", ["host", "compiled"])
def test_a_flow_that_cannot_arrive_raises_on_both(engine):
    options = {"engine": engine, "solver": "explicit", "points": 5}
    with pytest.raises(af.FlowError, match="the flow stopped at t = "):
        af.gradient_flow(MODELS["two tokens"], t1=1e6, max_steps=5, **options)
    with pytest.raises(af.FlowError) as caught:
        af.gradient_flow(af.TwoToken(c0=60.0, c1=60.0), t1=1e30, max_steps=500, **options)
    assert np.isfinite(caught.value.time)


def test_the_first_flows_of_a_kind_are_for_the_host():
    def solver(**options):
        return af.gradient_flow(af.TwoToken(c0=2.0, **options), t1=10.0, points=7).solver

    assert [solver(c1=float(i)) for i in range(10)] == ["DOP853"] * 8 + ["Dopri8"] * 2
    assert solver(c1=1.0, objective="mse") == "DOP853"  # of another kind


def test_what_the_host_cannot_do_is_compiled():
    many = af.gradient_flow(MODELS["logistic"], t1=10.0, points=5, runs=600, key=0)
    assert many.solver == "Dopri8"
    large = af.SelfAttention(tokens=np.eye(18), start=np.zeros((18, 18)))
    with pytest.raises(ValueError, match="needs engine='compiled'"):
        af.gradient_flow(large, t1=10.0, engine="host")
    with pytest.raises(ValueError, match="engine 'hast' is not known: did you mean 'host'"):
        af.gradient_flow(MODELS["logistic"], t1=10.0, engine="hast")


def test_what_the_host_has_not():
    with pytest.raises(ValueError, match=r"the host follows one flow.* needs engine='compiled'"):
        af.gradient_flow(MODELS["logistic"], t1=100.0, solver="quick", engine="host")
    options: dict[str, Any] = {"solver": "stiff", "engine": "host"}
    options["over"] = {"target_norm": [1.0, 2.0]}
    with pytest.raises(ValueError, match="needs engine='compiled'"):
        af.gradient_flow(MODELS["logistic"], t1=100.0, **options)


def test_the_stiff_solver_of_the_host():
    for name in ("two tokens, mse", "square", "logistic"):
        explicit, stiff = (
            af.gradient_flow(MODELS[name], t1=1e3, points=30, engine="host", solver=solver)
            for solver in ("explicit", "stiff")
        )
        assert (explicit.solver, stiff.solver) == ("DOP853", "LSODA")
        xr.testing.assert_allclose(explicit.drop_attrs(), stiff.drop_attrs(), rtol=1e-8, atol=1e-9)
    options: dict[str, Any] = {"engine": "host", "solver": "stiff", "max_steps": 5}
    with pytest.raises(af.FlowError, match="the flow stopped at t = "):
        af.gradient_flow(MODELS["logistic"], t1=1e6, **options)


def test_a_stiff_flow_stays_on_the_host():
    """The square loss ends in a minimum: on the clock log(1 + t) it is ever more stiff."""
    model = MODELS["square"]
    flow = af.gradient_flow(model, t1=1e8, points=20)
    assert flow.solver == "LSODA"
    assert float(flow.loss[-1]) < 1e-15
    end = af.gradient_flow(model, t1=1e3, points=20, solver="explicit")
    np.testing.assert_allclose(flow.weights[-1], end.weights[-1], rtol=1e-8)


def test_a_small_flow_imports_no_compiler():
    code = (
        "import sys, attnflow as af;"
        "af.gradient_flow(af.TwoToken(c1=3.0), t1=1e4); af.TwoToken(c1=3.0).critical_points();"
        "af.gradient_flow(af.ValueSoftmax(projections=(0.3, 0.1)), t1=1e12);"
        "heavy = {'jax', 'equinox', 'diffrax', 'optax', 'matplotlib', 'scipy'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_trees_without_jax():
    tree = {"b": np.arange(6.0).reshape(2, 3), "a": (np.array(7.0), np.array([8.0]))}
    assert [np.shape(x) for x in leaves(tree)] == [(), (1,), (2, 3)]
    packing = Packing(tree)
    back = packing.unpacked(packing.packed(tree))
    many = packing.unpacked(np.stack([packing.packed(tree)] * 4))
    assert [np.shape(x) for x in leaves(many)] == [(4,), (4, 1), (4, 2, 3)]
    assert packing.packed(many).shape == (4, 8)
    assert list(back) == ["b", "a"]
    np.testing.assert_array_equal(back["b"], tree["b"])
    assert mapped(np.sum, tree)["a"] == (7.0, 8.0)


def test_the_compiled_step_is_the_one_in_numpy():
    for over in (None, {"target_norm": [0.5, 2.0]}):
        prepared = prepare(COMPILED_VELOCITY["relu"], over, None, Start())
        system = TracedSystem(prepared, "auto")
        y = system.init()
        s, h = np.full(y.shape[:-1], 0.7), np.full(y.shape[:-1], 0.3)
        with system.precision():
            f = system.velocity(s, y)
            parts = zip(
                system.stepped(s, y, h, f), numpy_step(system.velocity, s, y, h, f), strict=True
            )
        for compiled, plain in parts:
            np.testing.assert_allclose(compiled, plain, rtol=1e-10, atol=1e-13)


def test_a_long_batch_stays_on_the_host(monkeypatch):
    """To log t = 10⁴ an explicit batch takes 1,700 steps: less time than compiling a solver."""
    monkeypatch.setattr("attnflow.dynamics.compiled.flow", None)
    model = af.ValueSoftmax(projections=(0.3, 0.1, -0.2))
    flow = af.gradient_flow(model, log_t1=1e4, points=5, over={"target_norm": [0.5, 1.0]})
    alone = af.gradient_flow(model, log_t1=1e4, points=5, engine="host", max_steps=5000)
    np.testing.assert_allclose(flow.loss.values[1], alone.loss, rtol=1e-7)
    np.testing.assert_allclose(flow.scores.values[1], alone.scores, rtol=1e-8)
