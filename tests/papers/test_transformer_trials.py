"""The trainings of the polarization paper: induction and token groups, at sizes of a second."""

import dataclasses

import numpy as np
import pytest

pytest.importorskip("torch", reason="the extra [torch] is not installed")
import torch

from attnflow.papers import gallery
from attnflow.papers.open_questions import _transformers
from attnflow.papers.polarization import (
    _induction,
    _induction_figures,
    _swap_figures,
    _swaps,
)
from attnflow.tasks.induction import Induction
from attnflow.torch import train, training

TINY = _induction.Trial(heads=2, width=16, mlp=0, steps=3, batch=4, vocabulary=8, context=4)
SWAP = _swaps.Swap(width=16, batch=4, steps=3, pairs=20)


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_sink_scores_are_shares_of_the_first_key():
    task = Induction(vocabulary=8, context=4)
    maps = np.zeros((2, 1, 6, 6))
    maps[..., 0] = 0.6
    maps[..., 1] = 0.2
    np.testing.assert_allclose(_induction.sink_scores(maps, task), [0.75])
    maps[:, :, [0, 4, 5], 0] = 100.0  # BOS itself and where something can be known do not count
    np.testing.assert_allclose(_induction.sink_scores(maps, task), [0.75])


@pytest.mark.parametrize("attention", [*_induction.ATTENTIONS, "softmax_1", "bayes_softmax"])
def test_every_attention_trains(attention):
    found = _induction.run(dataclasses.replace(TINY, attention=attention))
    assert found.sink.shape == (2,)
    assert ((found.sink >= 0) & (found.sink <= 1)).all()
    assert 0 <= found.accuracy <= 1
    assert int(found.steps) == 3
    assert int(found.failed) == -1


def test_a_training_stops_once_it_has_learned(monkeypatch):
    easy = dataclasses.replace(TINY, steps=400, patience=1)
    monkeypatch.setattr("attnflow.torch.training.last_accuracy", lambda *_: torch.tensor(1.0))
    assert int(_induction.run(easy).steps) == 1


def test_the_share_of_a_row_that_gives_little_is_not_its_weight():
    found = _induction.run(dataclasses.replace(TINY, attention="softmax_1"))
    assert (found["first"] < found.sink).all()


def test_a_training_that_breaks_keeps_its_record(monkeypatch):
    losses = iter([1.0, 1.0, float("nan")])
    plain = training.train

    def breaking(*given, **named):
        return plain(
            *given, **named, loss=lambda *_: torch.tensor(next(losses), requires_grad=True)
        )

    monkeypatch.setattr("attnflow.torch.train", breaking)
    found = _induction.run(dataclasses.replace(TINY, steps=9))
    assert int(found.failed) == 2
    assert found.training_loss.values.tolist() == [1.0]
    assert np.isnan(found.sink).all()
    assert np.isnan(found.accuracy)


def flip_rates(model, trial) -> np.ndarray:
    """The published pseudocode, one pair and one head at a time, in the order of the tokens."""
    first, second = trial.task.pairs(trial.seed, _swaps.FRESH, trial.pairs)
    flips = np.zeros((trial.layers, trial.heads))

    def predict(row):
        with torch.no_grad():
            return int(model(torch.tensor(row)[None]).argmax())

    for x1, y1, x2, y2 in zip(*first, *second, strict=True):
        maps = [model(torch.tensor(x)[None], maps=True)[1][:, 0] for x in (x1, x2)]
        for layer in range(trial.layers):
            for head in range(trial.heads):
                i, j = (int(m[layer, head, -1, :-1].argmax()) for m in maps)
                mixed1, mixed2 = x1.copy(), x2.copy()
                mixed1[i], mixed2[j] = x2[j], x1[i]
                flips[layer, head] += (predict(mixed1) == y2) + (predict(mixed2) == y1)
    return flips / (2 * trial.pairs)


def test_flip_rates_are_those_of_the_pseudocode():
    trial = dataclasses.replace(SWAP, layers=2, heads=2, steps=60, rate=1e-2, batch=16)
    model = _swaps.build(trial)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    train(model, lambda k: trial.task.batch(0, k, 16), steps=60, optimizer=optimizer)
    _, rates, _ = _swaps.measured(model, trial)
    assert rates.max() > 0
    np.testing.assert_allclose(rates, flip_rates(model, trial), atol=1e-12)


def test_the_weights_of_cls_are_followed():
    found = _swaps.run(dataclasses.replace(SWAP, looks=3))
    assert found.weights.dims == ("step", "layer", "head", "sequence", "key")
    assert found.step[0] == 0
    assert found.step[-1] == 3
    np.testing.assert_allclose(found.weights.sum("key"), 1, atol=1e-6)
    assert (found.tokens[:, -1] == 0).all()
    twice = _swaps.run(dataclasses.replace(SWAP, looks=2))
    assert twice.flip.identical(found.flip)  # looking changes nothing
    np.testing.assert_array_equal(twice.weights[-1], found.weights[-1])


SMALLER = {
    "1": _induction_figures.Patterns(TINY),
    "4": _induction_figures.Sinks(TINY, ("softmax", "linear"), heads=(1, 2)),
    "14": _induction_figures.Sinks(
        TINY, ("softmax", "mlp"), heads=(2,), **_induction_figures.GRIDS
    ),
    "5": _swap_figures.Evolution(SWAP, ("softmax",)),
    "6": _swap_figures.Flips(SWAP, ("softmax", "mlp"), vocabulary=(40, 80), seed=(0,)),
    "18": _swap_figures.Flips(SWAP, ("softmax",), mlp=(True, False), norm=(True, False), seed=(0,)),
}


@pytest.mark.parametrize("name", SMALLER)
def test_figures_are_made_of_small_trainings(name, tmp_path):
    (figure,) = gallery.select(f"polarization/{name}")
    draws(figure, SMALLER[name], tmp_path)


def draws(figure, config, tmp_path):
    assert figure.trials is not None
    assert figure.assemble is not None
    found = [figure.trials.experiment.run(each) for each in figure.trials.grid(config)]
    data = figure.assemble(config, found)
    assert "reduced" in data.attrs
    figure.draw(data).savefig(tmp_path / "figure.png", dpi=40)


def test_remedies_are_compared(tmp_path):
    (figure,) = gallery.select("open_questions/sink-remedies")
    draws(figure, _transformers.Remedies(TINY, seed=(0,)), tmp_path)


def test_one_training_on_one_clock(tmp_path):
    (figure,) = gallery.select("open_questions/one-clock")
    config = _transformers.Clock(dataclasses.replace(TINY, steps=9), every=3, sequences=2)
    draws(figure, config, tmp_path)


def test_presets_are_the_published_grids():
    assert len(_induction_figures.PUBLISHED.grid) == 660
    (figure,) = gallery.select("polarization/21")
    assert len(figure.presets["paper"].grid) == 11 * 2 * 3 * 15
    for name in ("1", "4", "5", "6", *map(str, range(14, 22))):
        (figure,) = gallery.select(f"polarization/{name}")
        assert not figure.tour
        assert figure.presets["quick"] != figure.presets["paper"]
