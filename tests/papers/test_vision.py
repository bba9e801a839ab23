"""The experiments with vision transformers, on tiny models and random images."""

import dataclasses

import numpy as np
import pytest
import xarray as xr

from attnflow.instruments import important_keys, signal_subspace
from attnflow.papers.conditioning import (
    _separated_keys,
    _vision,
    _vision_claims,
    _vision_study,
    claims,
)
from attnflow.papers.conditioning._class_token import Seen, class_token
from attnflow.papers.conditioning._vision import VisionTrial
from attnflow.papers.conditioning._vision_study import VisionStudy
from attnflow.papers.gallery import select
from attnflow.papers.ledger import NeedsData
from tests.oracles import class_token as oracle

TINY = VisionTrial(
    images=40, steps=4, every=2, batch=4, examples=12, layers=2, heads=2, width=8, mlp=8
)


@pytest.fixture
def _random_digits(monkeypatch):
    pytest.importorskip("torch", reason="the extra [torch] is not installed")
    rng = np.random.default_rng(0)
    digits = rng.integers(0, 256, (40, 28, 28)).astype(np.uint8)
    monkeypatch.setattr(_vision, "_digits", lambda _: digits)
    monkeypatch.setattr(_vision, "needs_mnist", lambda: None)


@pytest.mark.usefixtures("_random_digits")
def test_the_class_token_is_read_as_the_model_attends():
    import torch

    model, inputs = _vision.build(TINY, 0), _vision.patches("train", 7)
    seen = class_token(model, inputs, size=3)
    with torch.no_grad():
        _, maps = model(torch.as_tensor(inputs), maps=True)
    np.testing.assert_allclose(seen.weights, maps[..., 0, :], rtol=1e-4)
    assert seen.keys.shape == seen.values.shape == (2, 7, 2, 50, 4)
    assert all(block.attention.reader is None for block in model.blocks)


@pytest.mark.parametrize("sparsity", _vision.TEACHERS)
@pytest.mark.usefixtures("_random_digits")
def test_teachers_have_the_ratio_they_should(sparsity):
    import torch

    trial = dataclasses.replace(TINY, sparsity=sparsity)
    inputs = _vision.patches("train", 8)
    model = _vision.teacher(trial, inputs)
    with torch.no_grad():
        _, maps = model.double()(torch.as_tensor(inputs).double(), maps=True)
    rows = maps[..., 0, :]
    ratio = torch.log10(rows.amax(-1) / rows.amin(-1)).mean()
    assert float(ratio) == pytest.approx(np.log10(_vision.TEACHERS[sparsity]), abs=0.01)


def test_centred_labels_and_their_loss():
    torch = pytest.importorskip("torch", reason="the extra [torch] is not installed")
    rng = np.random.default_rng(0)
    answers = rng.normal(size=(300, 10)) + np.arange(10) * 5.0
    found = _vision.labels(answers, answers.mean(axis=0))
    assert np.bincount(found, minlength=10).min() > 10
    assert set(np.argmax(answers, axis=1)) <= {8, 9}
    theirs = torch.nn.functional.cross_entropy(torch.as_tensor(answers), torch.as_tensor(found))
    assert _vision.mean_loss(answers, found) == pytest.approx(float(theirs))


@pytest.fixture
def seen(rng):
    shape = (1, 6, 2, 9)
    scores = 2 * rng.normal(size=shape)
    stretched = rng.normal(size=(*shape, 4)) * (3, 2, 1, 0.5)
    return Seen(scores, stretched, rng.normal(size=(*shape, 4)))


def test_measures_agree_with_loops(seen, rng):
    found = _separated_keys.measure(seen, 0)
    for head in range(2):
        weights, keys, values = (
            each[0, :, head] for each in (seen.weights, seen.keys, seen.values)
        )
        mine = found.isel(layer=0, head=head)
        important = important_keys(weights)
        complement, explained, kept = oracle.principal(keys[important])
        assert float(mine.dimension) == kept
        assert float(mine.explained) == pytest.approx(explained)
        assert float(mine.margin) == pytest.approx(oracle.least_margin(weights, values, important))
        tried = oracle.greatest_leakage(keys, important, complement, rng)
        assert 0 < float(mine.rho_sampled) <= float(mine.rho) * (1 + 1e-9)
        assert tried <= float(mine.rho) * (1 + 1e-9)
        assert tried == pytest.approx(float(mine.rho), rel=0.05)
        whole = keys.reshape(1, -1, 4), important.reshape(1, -1)
        pooled = oracle.greatest_leakage(*whole, complement, rng)
        assert pooled == pytest.approx(float(mine.rho_pooled), rel=0.02)
        assert int(mine.outside.sum()) == important.sum()
        for a, kappa, estimate in zip(weights, mine.kappa, mine.estimate, strict=True):
            tangent = np.linalg.eigvalsh(np.diag(a) - np.outer(a, a))[1:]
            assert float(kappa) == pytest.approx(2 * np.log10(tangent[-1] / tangent[0]), abs=1e-6)
            assert float(estimate) == pytest.approx(2 * np.log10(a.max() / a.min()))


def test_few_rows_stand_for_many(seen):
    chosen = np.reshape(seen.keys[0, :, 0], (-1, 4))
    ours = _separated_keys.subspaces(chosen)
    theirs = signal_subspace(chosen, np.ones(len(chosen), bool))
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a @ a.T, b @ b.T, atol=1e-12)


def test_a_head_that_finds_every_key_important_has_no_leakage(seen):
    even = seen._replace(scores=0.01 * seen.scores)
    found = _separated_keys.measure(even, 0)
    assert (found.undivided == 1).all()
    assert np.isnan(found.rho).all()
    assert np.isfinite(found.margin).all()


@pytest.fixture
def runs(_random_digits):
    study = VisionStudy(TINY, rates=(0.01, 0.1), seeds=(0,))
    return study, [_vision.run(trial) for trial in study.trials()]


def test_students_train_and_figures_are_drawn(runs):
    study, found = runs
    for run in found:
        assert run.loss.shape == (2,)
        assert int(run.failed) == -1
        assert float(run.classes.sum()) == pytest.approx(1)
    ends = {
        rate: [float(r.end) for t, r in zip(study.trials(), found, strict=True) if t.rate == rate]
        for rate in study.rates
    }
    best = min(ends, key=lambda rate: np.mean(np.log(ends[rate])))
    data = _vision_study.arranged(study, found)
    assert float(data.rate) == best
    assert data.end.values.ravel().tolist() == ends[best]
    for name in ("2b", "4", "5", "8", "table-1", "table-2", "table-3"):
        (figure,) = select(f"conditioning/{name}")
        assert figure.assemble is not None
        made = figure.assemble(study, found)
        assert isinstance(made, xr.Dataset)
        figure.draw(made).draw_without_rendering()


@pytest.mark.usefixtures("_random_digits")
def test_a_training_that_fails_is_kept():
    found = _vision.run(dataclasses.replace(TINY, rate=1e30))
    assert int(found.failed) > 0
    assert np.isnan(found.end)
    assert np.isfinite(found.teacher).all()


def test_bad_trials_are_told():
    with pytest.raises(ValueError, match="sparsity"):
        VisionTrial(sparsity="some")
    with pytest.raises(ValueError, match="does not repeat"):
        VisionTrial(images=10, batch=20)
    with pytest.raises(ValueError, match="multiple"):
        VisionTrial(steps=100, every=30)


def test_absent_data_are_told(monkeypatch, tmp_path):
    pytest.importorskip("transformers", reason="the extra [torch] is not installed")
    monkeypatch.setenv("ATTNFLOW_DATA", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    _vision._digits.cache_clear()
    with pytest.raises(NeedsData, match="images-idx3"):
        _vision.needs_mnist()


def made_up(ends: dict[str, float], ratios: dict[str, float]) -> xr.Dataset:
    """Three seeds, one head of one layer."""
    names = {"sparsity": list(ends), "seed": [0, 1, 2]}
    spread = np.array([1.0, 1.02, 0.98])
    by_seed = ("sparsity", "seed"), np.outer(list(ends.values()), spread)
    heads = ("sparsity", "seed", "layer", "head")
    student = np.outer(list(ratios.values()), spread)[..., None, None]
    each = {"student": student, "teacher": student, "rho_sampled": student, "margin": student}
    each |= {"rho": student, "rho_typical": student, "rho_pooled": student}
    data = xr.Dataset({name: (heads, values) for name, values in each.items()}, names)
    return data.assign(end=by_seed, start=2.0)


@pytest.mark.parametrize(
    ("ends", "ratios", "verdict"),
    [
        ({"even": 0.5, "sparse": 1.0}, {"even": 1.0, "sparse": 7.0}, "holds"),
        ({"even": 0.5, "sparse": 1.0}, {"even": 3.0, "sparse": 2.0}, "holds_corrected"),
        ({"even": 0.5, "sparse": 0.5}, {"even": 1.0, "sparse": 7.0}, "refuted"),
    ],
)
def test_slower_and_sparser_are_both_asked(monkeypatch, ends, ratios, verdict):
    monkeypatch.setattr(_vision_claims, "studied", lambda: made_up(ends, ratios))
    rows = claims.LEDGER.claims
    assert rows["figure-2b"].check().verdict == verdict
    assert rows["table-2"].check().verdict == "holds"
    assert rows["table-1"].check().verdict == "refuted"
    assert rows["table-1"].check(bound=8.0).verdict == "holds"
