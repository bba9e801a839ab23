"""The figures of the routing study at small settings, and what their pictures claim of them."""

import dataclasses
import io

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import xarray as xr

from attnflow.dynamics.schedules import alternating, em_like
from attnflow.papers import gallery
from attnflow.papers.routing import _figures_schedules, _figures_toy, _figures_values
from attnflow.runs import canonical

FIGURES = {figure.name: figure for figure in gallery.select("routing")}
SMALL = _figures_schedules.Schedules(length=150, seeds=1, steps=200, records=21)


def draws(name: str, ds: xr.Dataset, tmp_path) -> bool:
    """The data survive a file and make a picture."""
    ds.to_netcdf(tmp_path / "data.nc", engine="h5netcdf")
    stored = xr.load_dataset(tmp_path / "data.nc", engine="h5netcdf")
    buffer = io.BytesIO()
    FIGURES[name].draw(stored).savefig(buffer, dpi=40, format="png")
    return buffer.tell() > 3_000


def test_the_gallery_is_complete():
    chain = {"schedules", "speedup", "values", "freezing", "architecture"}
    assert set(FIGURES) == {"toy", "diversity"} | chain


@pytest.mark.parametrize("name", FIGURES)
def test_presets_differ_and_can_be_written_down(name):
    small, large = FIGURES[name].presets["quick"], FIGURES[name].presets["paper"]
    assert type(small) is type(large)
    assert canonical(small) != canonical(large)
    assert len(FIGURES[name].caption) > 80


@pytest.mark.slow
def test_toy_routes_to_its_advantages_and_learns(tmp_path):
    ds = _figures_toy.toy(_figures_toy.Toy(shown=(0, 30, 400), records=10))
    assert float(ds.loss[-1]) < 0.1 < 1 < float(ds.loss[0])
    np.testing.assert_allclose(ds.attention.sum("key"), 1, rtol=1e-12)
    mean = (ds.attention * ds.compatibility).sum("key")
    np.testing.assert_allclose(ds.advantage, mean - ds.compatibility, atol=1e-12)
    gained = ds.attention.isel(shown=1) - ds.attention.isel(shown=0)
    assert float((gained * ds.advantage.isel(shown=0)).sum()) > 0
    assert draws("toy", ds, tmp_path)


@pytest.mark.slow
def test_identical_errors_neither_route_nor_keep_values_apart(tmp_path):
    ds = _figures_toy.diversity(_figures_toy.Diversity(seeds=1, steps=400, records=8))
    moved = (ds.entropy.isel(step=0) - ds.entropy.isel(step=-1)).isel(seed=0)
    assert float(moved.sel(diversity="uniform")) > 0.1
    assert abs(float(moved.sel(diversity="identical"))) < 0.01
    last = ds.differentiation.isel(step=-1, seed=0)
    assert float(last.sel(diversity="identical")) < 0.5 < 0.8 < float(last.sel(diversity="uniform"))
    assert draws("diversity", ds, tmp_path)


def test_differentiation_of_known_clouds():
    same, opposite = np.ones((3, 2)), np.array([[1.0, 0], [-1, 0]])
    assert _figures_toy.differentiation(same) == 0
    assert _figures_toy.differentiation(opposite) == 1


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("values", em_like(optax.sgd(0.1), 10.0)),
        ("alternating", alternating(optax.sgd(0.1))),
        ("Adam", optax.adam(0.1)),
        ("Adam, values", em_like(optax.adam(0.1), 10.0)),
    ],
)
def test_one_program_holds_all_optimizers(name, plain):
    which, faster = _figures_schedules.CASES[name]
    scales = _figures_schedules.factors(faster, 10.0)
    chosen = _figures_schedules.make(jnp.asarray(float(which)), 0.1, **scales)
    paths = []
    for optimizer in (chosen, plain):
        params = {block: jnp.arange(1.0, 4.0) for block in _figures_schedules.BLOCKS}
        state = optimizer.init(params)
        for _ in range(3):
            updates, state = optimizer.update(jax.tree.map(jnp.sin, params), state, params)
            params = optax.apply_updates(params, updates)
        paths.append(params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), *paths)


def test_entropy_at_a_loss():
    excess, entropy = np.array([3.0, 2.0, 2.5, 1.0]), np.array([9.0, 8.0, 7.0, 5.0])
    found = _figures_schedules.entropy_at(excess, entropy, np.array([4.0, 3.0, 2.5, 1.5, 0.0]))
    np.testing.assert_allclose(found, [np.nan, 9, 8.5, 6.5, np.nan])


@pytest.mark.slow
def test_schedules_on_a_short_chain(tmp_path):
    ds = _figures_schedules.schedules(SMALL)
    assert ds.excess.dims == ("seed", "schedule", "step")
    last = ds.excess.isel(seed=0, step=-1)
    assert (last < ds.excess.isel(seed=0, step=0)).all()
    assert float(last.sel(schedule="values")) < float(last.sel(schedule="uniform"))
    assert float(last.sel(schedule="uniform")) < float(last.sel(schedule="alternating"))
    entropy = ds.entropy.isel(seed=0, step=-1)
    assert float(entropy.sel(schedule="routing")) < float(entropy.sel(schedule="values"))
    assert draws("schedules", ds, tmp_path)


@pytest.mark.slow
def test_values_start_together_and_end_in_their_plane(tmp_path):
    ds = _figures_values.values(SMALL)
    np.testing.assert_allclose(ds.shares.sum("component"), 1, rtol=1e-9)
    start = ds.shares.sel(moment="start")
    np.testing.assert_array_equal(start.sel(schedule="uniform"), start.sel(schedule="values"))
    end = ds.path.isel(step=-1)
    np.testing.assert_allclose(end.mean("symbol"), 0, atol=1e-12)
    assert draws("values", ds, tmp_path)


@pytest.mark.slow
def test_freezing_times_lie_within_training(tmp_path):
    ds = _figures_values.freezing_times(_figures_values.Frozen(SMALL))
    for name in ("attention", "values"):
        assert ds[name].dims == ("seed", "schedule", "definition")
        assert ((ds[name] >= 0) & (ds[name] <= SMALL.steps)).all()
    assert draws("freezing", ds, tmp_path)


@pytest.mark.slow
def test_speedup_and_divergence(tmp_path):
    config = _figures_schedules.Speedup(
        length=150, rates=(1.0, 3.0), factors=(5.0, 1000.0), steps=100
    )
    ds = _figures_schedules.speedups(config).isel(seed=0)
    assert (ds.speedup.sel(factor=5.0, rate=1.0) > 1).all()
    assert not ds.diverged.sel(factor=5.0, rate=1.0).any()
    assert bool(ds.diverged.sel(factor=1000.0, rate=3.0, schedule="values and output"))
    assert draws("speedup", ds.expand_dims("seed"), tmp_path)


@pytest.mark.slow
def test_with_a_residual_attention_stays_diffuse(tmp_path):
    config = dataclasses.replace(_figures_values.Architecture(), length=500, seeds=1, steps=600)
    ds = _figures_values.architecture(config)
    sharpened = (ds.entropy.isel(step=0) - ds.entropy.isel(step=-1)).isel(seed=0)
    assert float(sharpened.sel(variant="residual")) < 0.01
    assert (sharpened.drop_sel(variant="residual") > 0.02).all()
    assert draws("architecture", ds, tmp_path)
