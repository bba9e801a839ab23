"""The experiments' transformer under the instruments and the remedies."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the extra [torch] is not installed")

from attnflow.torch.groups import param_groups  # noqa: E402
from attnflow.torch.masking import mask_heads  # noqa: E402
from attnflow.torch.modules import attention_modules, unsupported_attention  # noqa: E402
from attnflow.torch.probe import probe  # noqa: E402
from attnflow.torch.tempering import temperature  # noqa: E402
from attnflow.torch.training import train  # noqa: E402
from attnflow.torch.watcher import watch  # noqa: E402
from attnflow.torch.weights import interaction_norms  # noqa: E402
from tests.torch.tiny import small, tokens  # noqa: E402


def test_the_instruments_find_its_attention():
    model = small()
    modules = attention_modules(model)
    assert [each.name for each in modules] == ["blocks.0.attention", "blocks.1.attention"]
    assert unsupported_attention(model) == []
    each: Any = modules[0]
    inner = model.blocks[0].attention
    assert (each.heads, each.key_heads, each.width, each.fused) == (2, 2, 8, True)
    q, k, v = inner.qkv.weight.detach().reshape(3, 2, 8, 16)
    torch.testing.assert_close(each.query.matrices(), q)
    torch.testing.assert_close(each.value.matrices(), v)
    torch.testing.assert_close(each.output.matrices(), inner.o_proj.weight.T.reshape(2, 8, 16))
    wanted = [(a.T @ b).norm() for a, b in zip(q, k, strict=True)]
    torch.testing.assert_close(interaction_norms(each), torch.stack(wanted))


def test_the_gradient_at_the_heads_is_captured():
    model = small().double()
    modules = attention_modules(model)
    found = probe(model, ((tokens(),), {}), modules, lambda logits: logits.square().sum())
    inner = model.blocks[1].attention
    kept = []
    handle = inner.o_proj.register_forward_pre_hook(lambda _, given: kept.append(given[0]))
    loss = model(tokens()).square().sum()
    handle.remove()
    (wanted,) = torch.autograd.grad(loss, kept)
    gradient = found.captures["blocks.1.attention"].gradient
    torch.testing.assert_close(gradient, wanted.unflatten(-1, (2, 8)).transpose(1, 2))
    assert found.loss == pytest.approx(loss.item())
    assert inner.reader is None


def test_masked_heads_add_nothing():
    model = small(layers=1, mlp=0)
    with mask_heads(model, {0: [0, 1]}):
        masked = model(tokens())
    x = model._placed(tokens()) + model.blocks[0].attention.o_proj.bias
    torch.testing.assert_close(masked, model.readout(model.final_norm(x)))
    assert not torch.allclose(masked, model(tokens()))


def test_a_temperature_flattens():
    for attention in ("softmax", "softmax_1"):
        model = small(attention=attention)
        with temperature(model, 1e9):
            _, maps = model(tokens(), maps=True)
        even = 1 / (7 if attention == "softmax" else 8)
        torch.testing.assert_close(maps[..., -1, :], torch.full_like(maps[..., -1, :], even))


def test_values_of_fused_weights_learn_faster():
    model = small()
    before = model.blocks[0].attention.qkv.weight.detach().clone()
    optimizer = torch.optim.SGD(param_groups(model, lr=0.1, value_scale=10.0))
    model(tokens()).square().mean().backward()
    gradient = model.blocks[0].attention.qkv.weight.grad
    optimizer.step()
    change = model.blocks[0].attention.qkv.weight.detach() - before
    torch.testing.assert_close(change[:32], -0.1 * gradient[:32], atol=1e-6, rtol=1e-3)
    torch.testing.assert_close(change[32:], -1.0 * gradient[32:], atol=1e-6, rtol=1e-3)


def test_watching_leaves_training_bit_identical():
    def batch(step):
        return tokens(6, seed=step), tokens(6, seed=step + 1)

    plain, watched = (small(attention=("softmax", "sigmoid_normalized")) for _ in range(2))
    records = []
    for model in (plain, watched):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        watcher = watch(model, every=2) if model is watched else None
        records.append(
            train(model, batch, steps=5, optimizer=optimizer, record_every=1, watch=watcher)
        )
    assert records[0].identical(records[1])
    assert all(
        torch.equal(a, b) for a, b in zip(plain.parameters(), watched.parameters(), strict=True)
    )
    assert watcher is not None
    history = watcher.history
    assert history.step.values.tolist() == [0, 2, 4]
    for name in ("entropy", "advantage", "interaction_norm", "update_value", "contribution"):
        assert np.isfinite(history[name]).all(), name
