"""Heads switched off for a while."""

import contextlib

import pytest

torch = pytest.importorskip("torch", reason="the extra [torch] is not installed")
pytest.importorskip("transformers", reason="the extra [torch] is not installed")

from attnflow.torch.masking import mask_heads, scaled  # noqa: E402
from attnflow.torch.modules import attention_modules  # noqa: E402
from tests.torch import zoo  # noqa: E402


def logits(model, name):
    with torch.no_grad():
        output = model(**zoo.inputs(name))
    return output if isinstance(output, torch.Tensor) else output.logits


@pytest.mark.parametrize("name", zoo.MODELS)
def test_masking_is_zeroing_the_heads_outputs(name):
    """Against a copy of the model with these columns of the output projection written over."""
    model, zeroed = zoo.built(name), zoo.build(name)
    with torch.no_grad():
        for number, heads in ((0, [1, 2]), (1, [0, 1, 2, 3])):
            output = attention_modules(zeroed)[number].output
            assert output is not None
            weight = output.weight if output.axis == 1 else output.weight.T
            weight[:, output.index[heads].flatten()] = 0
    before = {n: p.clone() for n, p in model.state_dict().items()}
    full = logits(model, name)
    with mask_heads(model, {0: [1, 2], 1: [0, 1, 2, 3]}):
        masked = logits(model, name)
        assert list(model.state_dict()) == list(before)
    torch.testing.assert_close(masked, logits(zeroed, name), atol=1e-5, rtol=0)
    torch.testing.assert_close(logits(model, name), full, atol=0, rtol=0)
    assert list(model.state_dict()) == list(before)
    assert all(torch.equal(p, before[n]) for n, p in model.state_dict().items())


@pytest.mark.parametrize("name", ["llama", "encoder", "bert"])
def test_masks_are_nested(name):
    model = zoo.build(name)
    full = logits(model, name)
    with mask_heads(model, {0: [0, 3]}):
        both = logits(model, name)
    with mask_heads(model, {0: [0]}):
        one = logits(model, name)
        with mask_heads(model, {0: [3]}):
            assert torch.equal(logits(model, name), both)
        assert torch.equal(logits(model, name), one)
    assert torch.equal(logits(model, name), full)


@pytest.mark.parametrize("name", ["llama", "encoder"])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_nothing_is_left_after_an_error(name, error):
    model = zoo.build(name)
    full = logits(model, name)
    each = attention_modules(model)[0]
    assert each.output is not None
    caller = each.output.owner if name == "llama" else each.module

    def fail(*_, **__):
        raise error("in the middle of a forward pass")

    with contextlib.suppress(error), mask_heads(model, {0: [1]}):
        masked = logits(model, name)
        caller.forward = fail
        with contextlib.suppress(RuntimeError):
            logits(model, name)
        del caller.forward
        assert torch.equal(logits(model, name), masked)
        assert isinstance(each.output.weight, torch.nn.Parameter)
        raise error
    if error is KeyboardInterrupt:
        del caller.forward
    assert isinstance(each.output.weight, torch.nn.Parameter)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert torch.equal(logits(model, name), full)


def test_training_under_a_mask_leaves_the_heads_as_they_were():
    model = zoo.build("llama")
    part = attention_modules(model)[0]
    assert part.output is not None
    assert part.query is not None
    before = part.output.matrices(), part.query.matrices()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with mask_heads(model, {0: [1]}):
        model(**zoo.inputs("llama")).loss.backward()
        optimizer.step()
    for was, now in zip(before, (part.output.matrices(), part.query.matrices()), strict=True):
        assert torch.equal(was[1], now[1])
        assert not torch.equal(was[0], now[0])


def test_compiled_code_sees_the_mask():
    layer = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
    compiled = torch.compile(layer, backend="eager")
    x = torch.randn(1, 3, 8)
    with torch.no_grad():
        full = compiled(x, x, x)[0]
        with mask_heads(layer, {0: [1]}):
            expected, masked = layer(x, x, x)[0], compiled(x, x, x)[0]
        again = compiled(x, x, x)[0]
    torch.testing.assert_close(masked, expected)
    assert float((masked - full).abs().max()) > 1e-2
    torch.testing.assert_close(again, full)


def test_factors_multiply_while_the_module_runs_only():
    layer = torch.nn.Linear(2, 2, bias=False)
    weight = layer.weight
    with scaled(layer, layer, "weight", torch.tensor([[2.0], [3.0]])):
        found = layer(torch.eye(2))
        assert layer.weight is weight
    torch.testing.assert_close(found, (weight * torch.tensor([[2.0], [3.0]])).T)
