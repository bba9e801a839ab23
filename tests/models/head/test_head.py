import dataclasses

import equinox as eqx
import jax
import numpy as np
import optax
import pytest

import attnflow as af
from attnflow.models.head import BIASES, WEIGHTS, Head, SymbolHead
from attnflow.models.head import head as heads
from attnflow.tasks.markov import StickyChain
from tests.oracles import head as oracle

look = eqx.filter_jit(lambda model, p: (model.observe(p), jax.grad(model.loss)(p)))


def start(rng, width=4, key=3, value=2, classes=5, biases=True):
    shapes = {"W_Q": (width, key), "W_K": (width, key), "W_V": (width, value)}
    shapes |= {"W_O": (value, classes)}
    if biases:
        shapes |= {"b_Q": (key,), "b_K": (key,), "b_V": (value,), "b_O": (classes,)}
    return {name: rng.normal(size=shape) for name, shape in shapes.items()}


def some_head(rng, causal=True, length=7, **fields):
    inputs = rng.normal(size=(2, length, 4))
    targets = rng.integers(5, size=(2, length))
    return Head(
        inputs=inputs, targets=targets, start=start(rng), classes=5, causal=causal, **fields
    )


@pytest.mark.parametrize("causal", [True, False])
def test_the_head_is_that_of_the_loops(causal, rng):
    model = some_head(rng, causal)
    loss, attention, error, values, _, _ = oracle.forward(
        model.inputs, model.targets, model.start, causal
    )
    with jax.enable_x64(True):
        seen = model.observe(model.init())
        routing = model.routing(model.init())
    assert float(seen["loss"]) == pytest.approx(loss, rel=1e-12)
    np.testing.assert_allclose(routing.attention, attention, atol=1e-14)
    np.testing.assert_allclose(routing.error, error, atol=1e-14)
    np.testing.assert_allclose(routing.compatibility, error @ values.swapaxes(1, 2), atol=1e-13)
    rows = np.sum(attention * np.asarray(routing.advantage), axis=-1)
    np.testing.assert_allclose(rows, 0, atol=1e-14)
    np.testing.assert_allclose(routing.usage, attention.sum(axis=1), atol=1e-14)
    expected = -np.sum(attention * np.log(np.where(attention > 0, attention, 1)), axis=-1).mean()
    assert float(seen["entropy"]) == pytest.approx(expected)


@pytest.mark.parametrize("block", [*(pytest.param(k, marks=pytest.mark.slow) for k in (3, 4)), 100])
def test_blocks_of_queries_change_nothing(block, rng, monkeypatch):
    model = some_head(rng, length=11)
    with jax.enable_x64(True):
        whole = model.observe(model.init()), jax.grad(model.loss)(model.init())
        monkeypatch.setattr(heads, "QUERY_BLOCK", block)
        parts = model.observe(model.init()), jax.grad(model.loss)(model.init())
    for a, b in zip(*map(jax.tree.leaves, (whole, parts)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-14)


@pytest.mark.slow
def test_memory_grows_with_the_length_not_with_its_square(rng):
    def bytes_for(length):
        model = some_head(rng, length=length)
        with jax.enable_x64(True):
            arrays, static = eqx.partition(model, eqx.is_array)
            run = jax.jit(lambda a, p: jax.grad(eqx.combine(a, static).loss)(p))
            analysis = run.lower(arrays, model.init()).compile().memory_analysis()
        assert analysis is not None
        return analysis.temp_size_in_bytes

    assert bytes_for(4096) < 3 * bytes_for(2048)
    assert bytes_for(2048) < 100e6


def test_free_scores_are_a_head_with_those_scores(rng):
    """The same attention from projections and as free parameters: same loss, same errors."""
    model = some_head(rng)
    one = dataclasses.replace(model, inputs=model.inputs[:1], targets=model.targets[:1])
    with jax.enable_x64(True):
        routing = one.routing(one.init())
        scores = np.log(np.where(routing.attention[0] > 0, routing.attention[0], 1.0))
        given = {"scores": scores, "values": np.asarray(routing.values[0])}
        given |= {name: model.start[name] for name in ("W_O", "b_O")}
        free = Head(inputs=None, targets=one.targets, start=given, classes=5)
        np.testing.assert_allclose(free.loss(free.init()), one.loss(one.init()), rtol=1e-12)
        np.testing.assert_allclose(free.routing(free.init()).error, routing.error, atol=1e-13)


def test_symbols_by_counting_are_the_dense_head(rng):
    chain = StickyChain(symbols=5, length=60, sequences=2)
    symbols, targets = chain.draw()
    embedding = rng.normal(size=(5, 4))
    model = SymbolHead(
        symbols=symbols,
        targets=targets,
        start=start(rng),
        classes=5,
        embedding=embedding,
        floor=chain.entropy_rate,
    )
    with jax.enable_x64(True):
        fast, dense = (look(m, m.init()) for m in (model, model.dense()))
    for name, b in (dense[0] | dense[1]).items():
        np.testing.assert_allclose((fast[0] | fast[1])[name], b, rtol=1e-9, atol=1e-15)
    assert np.abs(np.asarray(fast[1]["b_K"])).max() == pytest.approx(0, abs=1e-15)


def test_descent_learns_the_chain():
    chain = StickyChain(symbols=4, stay=0.7, length=300)
    symbols, targets = chain.draw()
    rng = np.random.default_rng(0)
    first = {name: 0.3 * rng.normal(size=(4, 4)) for name in WEIGHTS}
    first |= {name: np.zeros(4) for name in BIASES}
    model = SymbolHead(
        symbols=symbols,
        targets=targets,
        start=first,
        classes=4,
        embedding=np.eye(4),
        floor=chain.entropy_rate,
    )
    run = af.descend(model, 300, optax.sgd(1.0), record=4)
    assert float(run.excess[-1]) < 0.5 * float(run.excess[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"targets": np.full((2, 7), 5)}, "whole numbers from 0 to 4"),
        ({"targets": np.zeros((2, 7))}, "whole numbers"),
        ({"targets": np.zeros((2, 1), int)}, "two positions"),
        ({"targets": np.zeros((2, 0), int)}, "T = 0"),
        ({"targets": np.zeros(7, int)}, "sequence, position"),
        ({"inputs": np.zeros((2, 6, 4))}, "inputs must be"),
        ({"classes": 4}, "4 classes"),
        ({"start": {"W_Q": np.eye(4)}}, "needs W_K, W_O, W_Q, W_V"),
    ],
)
def test_bad_heads_are_refused(change, message, rng):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(some_head(rng), **change)


def test_bad_symbols_are_refused(rng):
    with pytest.raises(ValueError, match="from 0 to 3"):
        SymbolHead(
            symbols=np.full((1, 5), 4),
            targets=np.zeros((1, 5), int),
            start=start(rng),
            classes=5,
            embedding=np.eye(4),
        )
