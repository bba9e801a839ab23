import dataclasses

import jax
import numpy as np
import pytest

from attnflow.models.head import ChainTask, DiversityTask, HeadTask, SymbolHead, ToyTask


def test_heads_layernorm_and_residual_are_what_the_words_say(rng):
    """Against loops over positions and heads."""
    task = ChainTask(
        symbols=5, length=30, sequences=2, width=6, embedding=6, heads=2, normalized=True,
        residual=True,
    )  # fmt: skip
    model = task.model()
    p = {name: rng.normal(size=x.shape) for name, x in model.start.items()}
    tokens = np.asarray(model.embedding)[model.symbols]
    q, k, v = (tokens @ p[f"W_{x}"] + p[f"b_{x}"] for x in "QKV")
    v = (v - v.mean(-1, keepdims=True)) / np.sqrt(v.var(-1, keepdims=True) + 1e-5)
    loss = 0.0
    for b in range(2):
        for t in range(30):
            mixed = []
            for part in (slice(0, 3), slice(3, 6)):
                scores = k[b, : t + 1, part] @ q[b, t, part] / np.sqrt(3)
                weights = np.exp(scores - scores.max())
                mixed.append(weights / weights.sum() @ v[b, : t + 1, part])
            logits = (np.concatenate(mixed) + tokens[b, t]) @ p["W_O"] + p["b_O"]
            loss += np.log(np.sum(np.exp(logits))) - logits[model.targets[b, t]]
    with jax.enable_x64(True):
        assert float(model.loss(jax.tree.map(np.asarray, p))) == pytest.approx(loss / 60)


def test_diversity_is_that_of_the_errors():
    """At small values the errors are (1/C − e_y) W_Oᵀ: as many directions as target classes."""
    for diversity, count in (("identical", 1), ("clustered", 3), ("uniform", 8)):
        model = DiversityTask(diversity, scale=0.01).model()
        with jax.enable_x64(True):
            errors = np.asarray(model.routing(model.init()).error[0])
        unit = errors / np.linalg.norm(errors, axis=1, keepdims=True)
        directions = np.unique(np.round(unit @ unit.T, 2), axis=0)
        assert len(directions) == count


def test_the_toy_is_that_of_the_document():
    model = ToyTask().model()
    assert (model.targets.shape, model.classes, model.causal) == ((1, 5), 3, False)
    assert model.start["W_Q"].shape == model.start["W_V"].shape == (5, 2)
    assert set(np.unique(model.targets)) == {0, 1, 2}


def test_tasks_by_name():
    assert isinstance(HeadTask(length=20, classes=4).model(), SymbolHead)
    assert HeadTask(length=20, classes=4).model().classes == 4
    assert HeadTask(task="toy").model().targets.shape == (1, 5)
    assert HeadTask(task="diversity", width=3).model().start["values"].shape == (24, 3)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: HeadTask(task="chian").model(), "chain"),
        (lambda: HeadTask(stay=1.5).model(), r"\[0, 1\]"),
        (lambda: HeadTask(length=1).model(), "length"),
        (lambda: HeadTask(length=0).model(), "length"),
        (lambda: ChainTask(heads=3), None),
        (lambda: ChainTask(width=6, heads=4).model(), "do not divide"),
        (lambda: ToyTask(length=1), "two positions"),
        (lambda: ToyTask(scale=0), "scale"),
        (lambda: DiversityTask("equal"), "identical"),
        (lambda: DiversityTask(clusters=9), "clusters"),
    ],
)
def test_bad_tasks(build, message):
    if message is None:
        build()
        return
    with pytest.raises(ValueError, match=message):
        build()


def test_only_the_bare_head_has_a_dense_form():
    model = ChainTask(length=20).model()
    model.dense()
    with pytest.raises(ValueError, match="dense"):
        dataclasses.replace(model, normalized=True).dense()
    with pytest.raises(ValueError, match="residual"):
        dataclasses.replace(model, residual=True)
