"""The figures' data: small settings, and what their pictures claim of them."""

import io

import jax
import numpy as np
import pytest
import xarray as xr

import attnflow as af
from attnflow.models.single_location import SingleLocation, flipping_spike
from attnflow.papers import gallery
from attnflow.papers.specialization import (
    _figures_dimension,
    _figures_heads,
    _figures_plane,
    _figures_points,
    _figures_risk,
    _figures_sgd,
    _figures_time,
)
from attnflow.papers.specialization._figures_flow import (
    Training,
    flow_from,
    packed,
    params_at,
    start,
    trained,
    unpacked,
)
from attnflow.runs import canonical

FIGURES = {figure.name: figure for figure in gallery.select("specialization")}
SMALL = {"samples": 512, "records": 20}


def draws(name: str, ds: xr.Dataset, tmp_path) -> bool:
    """The data survive a file and make a picture."""
    ds.to_netcdf(tmp_path / "data.nc")
    stored = xr.load_dataset(tmp_path / "data.nc")
    buffer = io.BytesIO()
    FIGURES[name].draw(stored).savefig(buffer, dpi=40, format="png")
    return buffer.tell() > 3_000


def test_the_gallery_is_complete():
    assert set(FIGURES) == {*map(str, range(1, 21)), "quadrature", "dimension"}


@pytest.mark.parametrize("name", FIGURES)
def test_presets_differ_and_can_be_written_down(name):
    small, large = FIGURES[name].presets["quick"], FIGURES[name].presets["paper"]
    assert type(small) is type(large)
    assert canonical(small) != canonical(large)
    assert len(FIGURES[name].caption) > 80


@pytest.mark.parametrize("activation", ["softmax", "softmax_1", "bayes_softmax"])
def test_parameters_in_a_row(activation):
    model = Training(activation=activation, samples=64).model()
    params = start(model, 3)
    with jax.enable_x64(True):
        assert set(params) == set(model.init(jax.random.key(0)))
    again = unpacked(model, packed(params))
    assert all((again[name] == params[name]).all() for name in params)


def test_starts_have_the_law_of_the_model():
    model = Training(heads=3, samples=64, dimension=100.0).model()
    drawn = [start(model, seed) for seed in range(400)]
    m = np.stack([params["m"] for params in drawn])
    q = np.stack([params["r"] @ params["r"].T for params in drawn]) + m @ m.mT
    assert m.std() == pytest.approx(0.1, rel=0.1)
    np.testing.assert_allclose(q.mean(axis=0), np.eye(3), atol=0.03)


@pytest.mark.slow
def test_flow_is_that_of_the_library():
    class FromZero(SingleLocation):
        def init(self, key=None):
            del key
            return {"m": 0.01 * np.array([[1.0, 2.0], [3.0, -1.0]]), "r": np.eye(2)}

    model = FromZero(flipping_spike(2.0, 2.0), tokens=4, samples=512)
    times = np.linspace(0, 60, 7)
    flow = flow_from(model, model.init(), times, rtol=1e-6)
    library = af.gradient_flow(model, times=times, solver="quick", rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(flow.m, library.m, atol=1e-3)


def test_heads_of_a_flipping_spike_part_on_the_second_feature(tmp_path):
    config = _figures_plane.by_heads((2,), (_figures_plane.FLIPPING,), last=500.0, **SMALL)
    ds = _figures_plane.planes(config)
    last = ds.m.values[0, -1]
    assert (last[:, 0] > 1).all()
    assert np.prod(last[:, 1]) < -0.1
    early = ds.m.sel(head=[0, 1]).values[0, 8]  # τ ≈ 13
    assert np.abs(early[:, 0] - early[:, 1].mean()).min() > 0.5
    assert np.abs(early[:, 1]).max() < 0.2
    assert draws("2", ds, tmp_path)


def test_numbers_of_heads_may_differ_between_panels(tmp_path):
    fields = {"last": 2.0, **SMALL}
    both = (Training(heads=2, **fields), Training(heads=3, **fields))
    ds = _figures_plane.planes(_figures_plane.Planes(both, ("two", "three"), 2))
    assert ds.m.isnull().sum() == 20 * 2
    assert draws("15", ds, tmp_path)


def test_features_are_learned_from_strong_to_weak(tmp_path):
    config = _figures_time.Sequence(
        activations=("softmax",), heads=4, last=100.0, samples=2048, records=40
    )
    ds = _figures_time.sequence(config)
    split = ds.split_time.values[0, 0]
    assert split[0] < split[1] < split[2]
    assert np.isinf(split[2])  # ν = 1 is not learned by then
    for name in ("4", "19", "20"):
        assert draws(name, ds, tmp_path)


def test_sgd_follows_the_flow_from_its_own_start(tmp_path):
    config = _figures_sgd.Comparison(
        tokens=4, activations=("softmax_1",), rate=0.2, last=8.0, samples=1024, records=6
    )
    ds = _figures_sgd.comparison(config).isel(activation=0)
    for name in ("m", "q", "b", "v"):
        first, dots = ds[name].isel(time=0), ds[f"sgd_{name}"].isel(record=0)
        np.testing.assert_allclose(first, dots, atol=0.01)
    along = ds.m.interp(time=ds.sgd_time)
    np.testing.assert_allclose(along, ds.sgd_m.transpose(*along.dims), atol=0.1)
    assert float(ds.sgd_m[-1, :, 0].min()) > 0.6
    assert draws("9", ds.expand_dims("activation"), tmp_path)


def test_roots_of_overlaps():
    m, p = np.array([[0.3, 0.1], [0.2, -0.4]]), np.array([[1.1, 0.1], [0.1, 0.9]])
    q = np.array([[1.0, 0.2], [0.2, 1.3]])
    dims = {"m": ("h", "f"), "q": ("h", "g"), "p": ("f", "e")}
    run = xr.Dataset({"m": (dims["m"], m), "q": (dims["q"], q), "p": (dims["p"], p)})
    r = _figures_sgd.overlap_params(run)["r"]
    np.testing.assert_allclose(r @ r.T + m @ np.linalg.inv(p) @ m.T, q)


@pytest.mark.slow
def test_dimension_times_and_slopes(tmp_path):
    rates = np.full(50, 0.1)
    times = np.linspace(0, 40, 50)
    grown = _figures_dimension.grown_by(times, rates, np.array([1.0, 3.0, 6.0]))
    np.testing.assert_allclose(grown, [10, 30, 60])
    config = _figures_dimension.Dimensions(
        tokens=5, decades=(3, 6), runs=2, rate=1.0, last=20.0, samples=128
    )
    ds = _figures_dimension.dimensions(config)
    assert float(ds.rate) > 0
    ds["split_time"] = (("dimension", "run"), np.array([[10.0, 12.0], [30.0, 32.0]]))
    slope, _ = _figures_dimension.slope_in_log(ds.dimension.values, ds.split_time.values)
    assert slope == pytest.approx(20 / np.log(1e3))
    assert draws("dimension", ds, tmp_path)


def test_b_softmax_reaches_the_bayes_risk_on_two_spikes():
    training = Training(
        ("spikes", 2, 10.0), tokens=4, activation="bayes_softmax", last=300.0, samples=4096
    )
    best, error = af.models.single_location.bayes_risk(training.model().signal, 4)
    assert _figures_risk.final_risk(training) == pytest.approx(best, abs=0.01 + 3 * error)


@pytest.mark.slow
def test_pruning_b_softmax_spares_what_spikes_do_not_need(tmp_path):
    config = _figures_risk.Pruned(
        features=2, heads=3, tokens=4, runs=1, last=100.0, samples=1024, laws=("spikes",)
    )
    ds = _figures_risk.pruned(config)
    risk = ds.risk.sel(activation="bayes_softmax").values[0, 0]
    assert risk[1] == pytest.approx(risk[0], rel=0.1)
    assert risk[2] > 2 * risk[1]
    assert draws("7", ds, tmp_path)


@pytest.mark.slow
def test_maps_point_at_the_framed_token(tmp_path):
    ds = _figures_heads.maps(_figures_heads.Maps(features=2, last=50.0, samples=512, sequences=40))
    mean = ds.weights.mean("head")
    on = mean.isel(token=ds.relevant)
    np.testing.assert_allclose(ds.weights.sel(activation="softmax").sum("token"), 1)
    np.testing.assert_allclose(
        ds.weights.sel(activation="bayes_softmax").sum(("head", "token")), ds.sizes["head"]
    )
    softmax, softmax_1, bayes = (on.sum("sequence") / mean.sum(("token", "sequence"))).values
    assert 1 / ds.sizes["token"] < softmax < softmax_1 < bayes
    assert draws("6", ds.isel(sequence=slice(3)), tmp_path)


def test_likeness_grows_with_the_constant_feature(tmp_path):
    config = _figures_heads.Similarity(strengths=(0.5, 3.0), last=500.0, samples=512)
    ds = _figures_heads.similarity(config)
    assert (ds.cosine.sel(nu1=3.0) > ds.cosine.sel(nu1=0.5)).all()
    assert float(ds.cosine.sel(nu1=0.5, nu2=3.0)) < float(ds.cosine.sel(nu1=0.5, nu2=0.5))
    assert draws("11", ds, tmp_path)


def test_new_points_make_no_difference_to_the_constant_feature(tmp_path):
    config = _figures_points.Changed(last=20.0, samples=4096, runs=2, records=10)
    ds = _figures_points.changed(config)
    first = ds.m.isel(head=0, feature=0)
    assert float(np.abs(first.isel(anew=1) - first.isel(anew=0)).max()) < 0.2
    assert float(first[..., -1].min()) > 1
    assert draws("8", ds, tmp_path)


@pytest.mark.slow
def test_mirrored_averages_are_the_models_own_and_push_nowhere(tmp_path):
    training = Training(("gaussian", 2, 8.0, 2.0), samples=1024, last=5.0, records=2)
    model, params = training.model(), params_at(trained(training))
    with jax.enable_x64(True):
        mine = _figures_points.averaged(model, params, _figures_points.METHODS[-1], 1024, 0)
        assert mine[0] == pytest.approx(float(model.loss(params)), rel=1e-12)
    config = _figures_points.Quadrature(
        heads=2, last=2.0, powers=(10, 12), replicates=3, reference=14
    )
    ds = _figures_points.quadrature(config)
    assert float(ds.push[2].max()) < 1e-15
    assert float(ds.push[0].min()) > 1e-4
    assert (ds.risk_error[0] > ds.risk_error[1]).all()
    assert draws("quadrature", ds, tmp_path)
