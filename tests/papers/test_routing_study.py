"""The speed-up study and the measures behind the rows on schedules and values."""

import numpy as np
import optax
import pytest
import xarray as xr

import attnflow as af
from attnflow.dynamics.schedules import em_like
from attnflow.models.head import ChainTask
from attnflow.papers.routing import _shape
from attnflow.papers.routing._schedules import Order
from attnflow.papers.routing._study import (
    BLOCKS,
    FASTER,
    Study,
    factors,
    joined,
    reached,
    run,
    speedup,
    when_reached,
)

SHORT = ChainTask(length=60, width=4)


def made_up(**losses) -> xr.Dataset:
    """One seed and one rate; records every 10 steps; entropy is minus the step."""
    paths = np.array(list(losses.values()), float)[None, None]
    steps = 10 * np.arange(paths.shape[-1])
    dims = ("seed", "rate", "schedule", "step")
    entropy = np.broadcast_to(-steps, paths.shape).astype(float)
    coords = {"rate": [0.1], "schedule": list(losses), "step": steps}
    return xr.Dataset({"loss": (dims, paths), "entropy": (dims, entropy)}, coords)


def test_the_target_is_found_between_records():
    data = made_up(uniform=[5, 4, 3, 2], quick=[5, 2.5, 1, 0], at_once=[2, 2, 2, 2])
    assert reached(data, "quick")[0, 0] == pytest.approx(10 + 10 / 3)
    assert reached(data, "at_once")[0, 0] == 0
    assert reached(data, "uniform")[0, 0] == 30
    assert speedup(data, "quick")[0, 0] == pytest.approx(30 / (40 / 3))
    assert speedup(data, "at_once")[0, 0] == np.inf
    assert when_reached(data, "entropy", "quick")[0, 0] == pytest.approx(-40 / 3)
    assert reached(data, "uniform", against="quick")[0, 0] == np.inf


def test_runs_that_do_not_get_there_or_diverge_count_as_never():
    data = made_up(uniform=[5, 4, 3, 2], slow=[5, 5, 4, 3], lost=[5, np.nan, np.nan, np.nan])
    assert reached(data, "slow")[0, 0] == np.inf
    assert reached(data, "lost")[0, 0] == np.inf
    assert speedup(data, "slow")[0, 0] == 0
    assert np.isnan(when_reached(data, "entropy", "slow")[0, 0])
    assert reached(data, "slow", against="lost")[0, 0] == np.inf


def test_factors_go_to_the_named_blocks():
    assert factors("uniform", 10.0) == dict.fromkeys(BLOCKS, 1.0)
    assert factors("values", 10.0) == dict.fromkeys(BLOCKS, 1.0) | {"W_V": 10.0}
    for schedule in FASTER:
        fast = {name for name, factor in factors(schedule, 3.0).items() if factor > 1}
        assert fast == set(FASTER[schedule])
    mean, values = factors("mean", 10.0), factors("values", 10.0)
    assert np.prod(list(mean.values())) == pytest.approx(np.prod(list(values.values())))


@pytest.mark.slow
@pytest.mark.parametrize(("optimizer", "schedule"), [("sgd", "values"), ("adam", "routing")])
def test_a_study_is_its_descents_one_by_one(optimizer, schedule):
    schedules = ("uniform", "values", "routing")
    data = run(Study(SHORT, (0.02, 0.1), schedules, 10.0, 2, 40, 5, optimizer))
    assert dict(data.loss.sizes) == {"seed": 2, "rate": 2, "schedule": 3, "step": 5}
    assert list(data.schedule.values) == list(schedules)
    alone = em_like(getattr(optax, optimizer)(0.1), 10.0, FASTER[schedule])
    model = ChainTask(length=60, width=4, seed=1).model()
    found = af.descend(model, 40, alone, record=[0, 10, 20, 30, 40])
    ours = data.sel(rate=0.1, schedule=schedule).isel(seed=1)
    np.testing.assert_allclose(ours.loss, found.loss, rtol=1e-10)
    np.testing.assert_allclose(ours["values"], found["values"], rtol=1e-7, atol=1e-10)


@pytest.mark.slow
def test_studies_join_on_the_seeds_they_share():
    two = Study(SHORT, (0.1,), seeds=2, steps=20, records=3)
    one = Study(SHORT, (0.1,), schedules=("all",), seeds=1, steps=20, records=3)
    data = joined(two, one)
    assert list(data.schedule.values) == ["uniform", "values", "all"]
    assert data.sizes["seed"] == 1
    np.testing.assert_array_equal(data.loss.sel(schedule="all"), run(one).loss.sel(schedule="all"))


def test_an_unknown_optimizer_is_refused():
    with pytest.raises(ValueError, match="optimizer"):
        run(Study(SHORT, optimizer="lion"))


def test_ties_are_nobodys_first():
    order = Order(np.array([1.0, 2.0, 3.0, 4.0]), np.array([2.0, 2.0, 2.0, 5.0]))
    assert order.share() == 0.5
    assert order.share("values") == 0.25


def test_votes_that_agree_have_no_spread(rng):
    values, outputs = rng.normal(size=(8, 4)), rng.normal(size=(4, 8))
    same = np.repeat(values[:1], 8, axis=0)
    assert _shape.vote_spread(same, outputs) == pytest.approx(0, abs=1e-12)
    one = _shape.vote_spread(values, outputs)
    assert _shape.vote_spread(values + same, outputs) == pytest.approx(one)
    assert _shape.vote_spread(3 * values, outputs) == pytest.approx(3 * one)


def test_the_uneven_chain_has_the_asked_chances():
    stays = np.array([0.1, 0.5, 0.8])
    symbols, targets = _shape.uneven_chain(stays, 30_000, 0)
    np.testing.assert_array_equal(symbols[0, 1:], targets[0, :-1])
    for symbol, stay in enumerate(stays):
        following = targets[symbols == symbol]
        assert np.mean(following == symbol) == pytest.approx(stay, abs=0.02)
    even = _shape.chain_entropies(np.full(8, 0.3))
    np.testing.assert_allclose(even, ChainTask().chain().entropy_rate, rtol=1e-12)


@pytest.mark.slow
def test_uneven_symbols_do_not_line_up_by_entropy():
    found = _shape.posterior_entropy_axis((0.05, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75))
    assert found.verdict == "refuted"
    assert found.counterexample
    assert max(found.counterexample["correlations"]) < 0.5
