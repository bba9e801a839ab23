"""Every figure: its presets, its way through a file, and some of its numbers."""

import dataclasses
import functools
import io

import numpy as np
import pytest
import xarray as xr
from scipy.integrate import quad, solve_ivp
from scipy.special import expit, softmax

from attnflow.papers import gallery
from attnflow.papers.open_questions import figures as open_questions
from attnflow.papers.polarization import _regression_figures, _toy_figures
from attnflow.papers.polarization._drawing import descend_while_finite, legacy, unit
from attnflow.papers.u_shape import figures as u_shape
from attnflow.papers.u_shape._path import W_SECOND, U, walk
from attnflow.runs import canonical
from attnflow.runs.figures import render

FIGURES = {
    figure.id: figure
    for paper in ("u_shape", "polarization", "open_questions")
    for figure in gallery.select(paper)
}
CHEAP = (
    "u_shape/1",
    "polarization/2",
)


def marked(ids):
    return [id if id in CHEAP else pytest.param(id, marks=pytest.mark.slow) for id in ids]


@functools.cache
def quick(id: str) -> xr.Dataset:
    return FIGURES[id].compute(FIGURES[id].presets["quick"])


def png(drawing) -> bytes:
    buffer = io.BytesIO()
    drawing.savefig(buffer, dpi=50, format="png")
    return buffer.getvalue()


def test_the_galleries_are_complete():
    assert {"u_shape/1", "u_shape/toy", "u_shape/troughs"} <= set(FIGURES)
    published = {f"polarization/{name}" for name in ("2", "3", "10", "11", "12", "13")}
    assert published | {"polarization/sink", "open_questions/dip-survival"} <= set(FIGURES)


@pytest.mark.parametrize("id", FIGURES)
def test_presets_differ_and_can_be_written_down(id):
    figure = FIGURES[id]
    small, large = figure.presets["quick"], figure.presets["paper"]
    assert type(small) is type(large)
    assert small != large
    assert canonical(small) != canonical(large)
    assert figure.title
    assert len(figure.caption) > 80


@pytest.mark.parametrize("id", marked(FIGURES))
def test_data_survive_a_file_and_redraw_identically(id, tmp_path):
    figure = dataclasses.replace(FIGURES[id], compute=lambda _: quick(id).copy())
    made = render(figure, "quick", tmp_path)
    assert made.picture.stat().st_size > 10_000

    def never(_):
        raise AssertionError("drawing must not compute")

    again = render(dataclasses.replace(figure, compute=never), "quick", tmp_path)
    assert again.seconds == 0
    stored = xr.load_dataset(made.data)
    xr.testing.assert_equal(stored, quick(id))
    assert png(figure.draw(stored)) == png(figure.draw(quick(id)))


def test_figure_1_has_one_trough_at_half_the_start():
    ds = quick("u_shape/1")
    assert float(ds.norm2[0]) == pytest.approx(72, rel=1e-12)
    assert ds.critical_norm2.values == pytest.approx([36], rel=1e-9)
    # with equal gaps ξ' = −4 σ(2σ − 1) σ(1 − σ), σ = σ(ξ), so T1 is an integral
    slope = lambda xi: 4 * expit(2 * expit(xi) - 1) * expit(xi) * expit(-xi)  # noqa: E731
    first, _ = quad(lambda xi: 1 / slope(xi), 0, 6, epsabs=0, epsrel=1e-12)
    assert ds.critical_time.values == pytest.approx([first], rel=1e-9)
    assert ds.attrs["phases"] == "heating forging"


def test_toy_times_are_integrals_and_the_flow_agrees():
    ds = quick("u_shape/toy")
    for c in ds.gap.values:
        run = ds.sel(gap=c)
        for end, closed, found in (
            (0, run.first_closed, run.first_time),
            (-c, run.second_closed, run.second_time),
        ):
            elapsed, _ = quad(lambda xi: 1 / (2 * expit(xi)), end, c, epsabs=0, epsrel=1e-12)
            assert float(closed) == pytest.approx(elapsed, rel=1e-10)
            assert float(found) == pytest.approx(elapsed, rel=1e-5)
    np.testing.assert_allclose(ds.xi, ds.xi_closed, atol=1e-8)
    np.testing.assert_allclose(ds.rho, ds.rho_closed, rtol=1e-8)


def slope_signs(p, c0, c1):
    """Signs of d|M|²/dt along the flow of the two gaps, by a stiff solver's own steps."""

    def slopes(xi):
        s = expit(xi)
        return 2 * (1 - p) * expit((1 - p) * (2 * s - 1)) * s * expit(-xi)

    def field(_, xi):
        g = slopes(xi)
        return -2 * (1 - p) * np.array([g[0] - p * g[1], g[1] - p * g[0]])

    path = solve_ivp(field, (0, 1e8), (c0, c1), method="LSODA", rtol=1e-10, atol=1e-12)
    return np.sign(-(path.y * np.apply_along_axis(slopes, 0, path.y)).sum(axis=0))


@pytest.mark.parametrize(
    ("p", "c0", "c1", "shape"),
    [(0.0, 6.0, 6.0, U), (0.0, 9.0, 4.0, W_SECOND), (-0.5, 12.0, 10.0, W_SECOND), (-0.8, 9, 7, U)],
)
def test_shapes_agree_with_another_solver(p, c0, c1, shape):
    found = walk(p, [c0, c1], [c1, c0], length=100, steps=1000).shapes()
    assert found.tolist() == [shape, shape]
    turns = np.count_nonzero(np.diff(slope_signs(p, c0, c1)))
    assert turns == (1 if shape == U else 3)


@pytest.mark.slow
def test_map_of_troughs():
    ds = quick("u_shape/troughs")
    assert set(np.unique(ds["shape"])) == {U, W_SECOND}
    assert (ds["shape"].values == ds["shape"].transpose("p", "c1", "c0").values).all()
    diagonal = np.einsum("pcc->pc", ds["shape"].values)
    assert (diagonal == U).all()
    finer = dataclasses.replace(u_shape.Troughs(), cells=6, steps=3000)
    coarser = dataclasses.replace(finer, steps=1500)
    xr.testing.assert_equal(u_shape.troughs(finer)["shape"], u_shape.troughs(coarser)["shape"])


def test_a_walk_that_is_too_short_says_so():
    with pytest.raises(RuntimeError, match="too short"):
        walk(0.0, [6.0], [6.0], length=3.0, steps=1000).shapes()


def numpy_descent(values, scores, gradient, steps, step):
    """Plain descent on ℓ(V softmax(a)), by hand."""
    values, scores = values.copy(), scores.copy()
    for _ in range(steps):
        s = softmax(scores)
        g = gradient(values @ s)
        u = values.T @ g
        values -= step * np.outer(g, s)
        scores -= step * s * (u - u @ s)
    return softmax(scores)


def test_figure_2_flow_and_descent():
    ds, config = quick("polarization/2"), _toy_figures.Logistic()
    rng = legacy(config.seed)
    target = unit(rng.randn(config.p))
    values = config.value_scale * rng.randn(config.p, config.p)
    values = values[:, np.argsort(-values.T @ target)]
    by_hand = numpy_descent(
        values, np.zeros(8), lambda b: -target * expit(-target @ b), config.steps, config.step
    )
    np.testing.assert_allclose(ds.descent_weights[-1], by_hand, rtol=1e-9)
    np.testing.assert_allclose(ds.flow_weights[-1], by_hand, atol=2e-3)
    for name in ("flow_projections", "descent_projections"):
        assert (np.diff(ds[name], axis=1) < 0).all()


def test_regression_is_the_published_descent():
    config = dataclasses.replace(_regression_figures.FIG_3, step=1e-2, steps=3000, records=3)
    ds = _regression_figures.regression(config)
    rng = legacy(config.seed)
    target = rng.randn(20)
    values, scores = 1e-5 * rng.randn(20, 20), 1e-3 * rng.randn(20)
    x = np.diag(np.linspace(1, 1 / 5, 20))
    by_hand = numpy_descent(
        values, scores, lambda b: -2 * x.T @ (target - x @ b), config.steps, config.step
    )
    np.testing.assert_allclose(
        np.sort(ds.weights.sel(kappa=5.0)[0, -1]), np.sort(by_hand), rtol=1e-9
    )


def test_ill_conditioning_lowers_the_entropy():
    last = quick("polarization/3").entropy.isel(step=-1, problem=0)
    assert float(last.sel(kappa=5.0)) < 2 < 2.9 < float(last.sel(kappa=1.0))


def test_tied_model_is_sparse_with_one_growing_column():
    ds = quick("polarization/11")
    for index, dimension in enumerate(ds.dimension.values):
        run = ds.isel(dimension=index, token=slice(dimension))
        assert np.argmax(run["query"].values[0]) == 0
        assert float(run.weights[-1, 0]) > 0.99
        assert float(run.column_norms[-1, 0]) > 3 * float(run.column_norms[-1, 1:].max())
        assert ds.isel(dimension=index, token=slice(dimension, None)).weights.isnull().all()


@pytest.mark.slow
def test_sinks():
    ds = quick("polarization/sink")
    last = ds.weights.isel(shown=-1).values
    assert (last[0].argmax(axis=1) == 0).all()
    assert len(set(last[1].argmax(axis=1))) > 1
    assert last.max(axis=-1).min() > 0.95


@pytest.mark.slow
def test_divergence_polarizes_in_part():
    ds = quick("polarization/10")
    assert float(ds.descent_loss[-1]) < 1e-12
    assert 0.5 < float(ds.descent_weights[-1, 0]) < 0.95


@pytest.mark.slow
def test_maps():
    ds = quick("polarization/13")
    last = dict(zip(ds.attrs["maps"].split(), ds.logistic_weights.values[:, -1], strict=True))
    assert last["softmax"].max() > 0.9
    assert last["square_normalized"].max() > 0.999
    assert last["relu_normalized"].max() == 1
    assert np.ptp(last["sigmoid"]) < 0.1
    assert ds.square_weights.values[:-1, -1].max() < 0.5


def test_descent_goes_as_far_as_it_is_finite():
    model = _toy_figures.ValueSoftmax(projections=(0.3, 0.1), objective="square")
    run = descend_while_finite(model, 5000, 5.0, 20)
    assert run.step[-1] == 5000
    assert np.isfinite(run.weights[0]).all()
    assert np.isnan(run.weights[-1]).all()


def test_remarks_on_a_panel():
    steps, nothing = np.array([0, 1, 5, 9]), np.full((4, 2), np.nan)
    inside = np.full((4, 2), 0.5)
    assert _toy_figures.remark(steps, inside, steps, nothing) == ""
    outside = inside.copy()
    outside[2:] = (1.1, -0.1)
    assert "simplex\nat step 5" in _toy_figures.remark(steps, outside, steps, nothing)
    stopped = inside.copy()
    stopped[3:] = np.nan
    note = _toy_figures.remark(steps, stopped, steps, inside)
    assert "descent to 5" in note
    assert "simplex" not in note
    assert "simplex" in _toy_figures.remark(steps, stopped, steps, outside)


@pytest.mark.parametrize(
    ("series", "troughs"),
    [
        ([3, 2, 1, 2, 3], 1),
        ([3, 1, 2, 1, 3], 2),
        ([1, 2, 3, 2, 3], 1),
        ([3, 2, 1], 0),
        ([1, 2, 3], 0),
        ([1, 1 - 1e-9, 1, 1 - 1e-9, 1], 0),
        ([3, 2, 1, 1, 1, 2], 1),
    ],
)
def test_troughs_are_counted(series, troughs):
    both = np.array([series, series[::-1]], float)
    assert open_questions.count_troughs(both)[0] == troughs


def test_initial_slope_is_that_of_the_matrix():
    config = open_questions.DipSurvival(starts=5)
    tokens, logits = open_questions.sharp_wrong(4, config, np.random.default_rng(3))
    inverse = np.linalg.pinv(tokens)
    start = inverse @ logits @ inverse.mT

    def loss(matrix, x):
        z = softmax(x @ matrix @ x.T, axis=1) @ x @ x.T
        return -np.log(np.diag(softmax(z, axis=1))).sum()

    h = 1e-6
    for x, m, slope in zip(
        tokens, start, open_questions.initial_slope(tokens, logits), strict=True
    ):
        along = (loss(m * (1 + h), x) - loss(m * (1 - h), x)) / (2 * h)  # ⟨M, ∇ℒ⟩
        assert slope == pytest.approx(-2 * along, rel=1e-5, abs=1e-8)


@pytest.mark.slow
def test_orthonormal_tokens_always_dip_and_each_row_makes_a_u():
    ds = quick("open_questions/dip-survival")
    orthonormal = ds.isel(kind=0)
    assert (orthonormal.slope < 0).all()
    assert (orthonormal.rows_with_one_trough == 1).all()
    assert (orthonormal.troughs >= 1).all()
    assert int(orthonormal.troughs.max()) > 1
    falls = ds.norm2[..., 1] < ds.norm2[..., 0]
    assert ((ds.slope < 0) == falls).all()
