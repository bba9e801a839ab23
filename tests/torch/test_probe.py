"""What a probe takes from a model, against the maps that the model itself returns."""

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the extra [torch] is not installed")
pytest.importorskip("transformers", reason="the extra [torch] is not installed")

from torch import nn  # noqa: E402

from attnflow.torch.modules import attention_modules, unsupported_attention  # noqa: E402
from attnflow.torch.probe import probe, some_sequences  # noqa: E402
from attnflow.torch.statistics import Attention, attention_rows  # noqa: E402
from attnflow.torch.swap import swap_attention  # noqa: E402
from tests.torch import zoo  # noqa: E402

ON_INTERFACE = [name for name in zoo.MODELS if name != "encoder"]


def look(model, inputs, loss=None):
    return probe(model, ((), inputs), attention_modules(model), loss)


def weights_of(capture):
    rows = torch.arange(capture.queries.shape[2])
    found = attention_rows(capture.queries, capture.keys, capture.attention, rows)
    return torch.nan_to_num(found.weights)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", ON_INTERFACE)
def test_captured_maps_are_the_models_own(name, padded):
    if padded and name == "vit":
        pytest.skip("images are not padded")
    model: Any = copy.deepcopy(zoo.built(name))
    inputs = zoo.inputs(name)
    if padded:
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        inputs["attention_mask"][0, :3] = 0
        inputs["attention_mask"][1, -4:] = 0
    found = look(model, inputs)
    assert found.problems == {}
    model.set_attn_implementation("eager")
    own = (
        model(**inputs, output_attentions=True, use_cache=False)
        if name != "vit"
        else model(**inputs, output_attentions=True)
    )
    assert len(found.captures) == len(own.attentions) == 2
    for capture, attention in zip(found.captures.values(), own.attentions, strict=True):
        seen = (
            inputs["attention_mask"].bool() if padded else torch.ones(3, attention.shape[2]).bool()
        )
        mine = weights_of(capture).transpose(1, 2)[seen]  # rows of padding are nobody's
        torch.testing.assert_close(mine, attention.transpose(1, 2)[seen], atol=2e-6, rtol=1e-4)


@pytest.mark.parametrize("name", ON_INTERFACE)
def test_value_rows_are_those_that_make_the_values(name):
    model = zoo.built(name)
    module = attention_modules(model)[0]
    assert module.value is not None
    seen = []
    handle = module.value.owner.register_forward_hook(lambda m, a, out: seen.append(out))
    try:
        capture = look(model, zoo.inputs(name)).captures[module.name]
    finally:
        handle.remove()
    values = seen[0][..., module.value.index.flatten()].unflatten(-1, module.value.index.shape)
    torch.testing.assert_close(values.transpose(1, 2).detach(), capture.values)


@pytest.mark.parametrize("name", [x for x in ON_INTERFACE if x != "gpt_oss"])  # not in float64
def test_gradients_at_the_heads_outputs(name):
    """Moving a head's output along its gradient changes the loss by the square of its length."""
    model = copy.deepcopy(zoo.built(name)).double()
    inputs = {k: v.double() if v.is_floating_point() else v for k, v in zoo.inputs(name).items()}

    def loss(output):
        return output.logits.logsumexp(-1).square().mean()

    found = look(model, inputs, loss)
    module = attention_modules(model)[1]
    gradient = found.captures[module.name].gradient
    assert gradient is not None
    assert module.output is not None
    step = 1e-2 * gradient.transpose(1, 2).flatten(2)
    losses = []
    for sign in (1, -1):
        hook = module.output.owner.register_forward_pre_hook(
            lambda m, a, sign=sign: (a[0] + sign * step.view_as(a[0]),)
        )
        with torch.no_grad():
            losses.append(float(loss(model(**inputs))))
        hook.remove()
    change = (losses[0] - losses[1]) / 2e-2
    assert change == pytest.approx(float(gradient.square().sum()), rel=2e-3)  # norms are in float32


@pytest.mark.parametrize("masked", ["none", "boolean", "float", "padding"])
def test_multihead_maps(masked):
    torch.manual_seed(0)
    module = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    x = torch.randn(2, 5, 16)
    hidden = torch.ones(5, 5).triu(1).bool()
    options = {
        "none": {},
        "boolean": {"attn_mask": hidden},
        "float": {"attn_mask": torch.zeros(5, 5).masked_fill(hidden, -torch.inf)},
        "padding": {"key_padding_mask": torch.tensor([[False] * 5, [False] * 3 + [True] * 2])},
    }[masked]
    _, truth = module(x, x, x, average_attn_weights=False, **options)
    site = attention_modules(module)
    found = probe(module, ((x, x, x), options), site)
    torch.testing.assert_close(weights_of(found.captures[""]), truth)


def test_multihead_gradient_and_layout():
    for batch_first in (True, False):
        torch.manual_seed(0)
        module = nn.MultiheadAttention(16, 4, batch_first=batch_first).double()
        x = torch.randn(2, 5, 16, dtype=torch.float64, requires_grad=True)
        site = attention_modules(module)
        found = probe(module, ((x, x, x), {}), site, loss=lambda out: (out[0] ** 2).sum())
        capture = found.captures[""]
        heads = weights_of(capture) @ capture.values
        out = module(x, x, x)[0].detach()
        before = 2 * out @ module.out_proj.weight.detach()
        before = before if batch_first else before.transpose(0, 1)
        torch.testing.assert_close(capture.gradient, before.unflatten(-1, (4, 4)).transpose(1, 2))
        assert capture.gradient is not None
        assert heads.shape == capture.gradient.shape


def test_layers_of_torch_are_seen_inside_an_encoder():
    model = zoo.built("encoder")
    found = look(model, zoo.inputs("encoder"), loss=lambda out: out.logsumexp(-1).sum())
    assert list(found.captures) == ["layers.layers.0.self_attn", "layers.layers.1.self_attn"]
    assert all(each.gradient is not None for each in found.captures.values())


@pytest.mark.parametrize("name", [*zoo.MODELS])
def test_a_probe_changes_nothing(name):
    model: Any = zoo.build(name).train()
    model.register_buffer("calls", torch.zeros(()))
    model.register_forward_hook(lambda m, a, out: m.calls.add_(1) and None)
    inputs = zoo.inputs(name)
    before = copy.deepcopy(model.state_dict())
    flags = [m.training for m in model.modules()]
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    numbers = torch.random.get_rng_state()
    look(model, inputs)
    assert torch.equal(numbers, torch.random.get_rng_state())
    assert flags == [m.training for m in model.modules()]
    assert hooks == [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    assert all(p.grad is None for p in model.parameters())
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]), key


def test_the_interface_is_put_back_after_an_error():
    from transformers.modeling_utils import AttentionInterface

    model = zoo.build("llama").train()
    was = AttentionInterface.get_interface
    with pytest.raises(TypeError):
        look(model, {"input_ids": "no tokens"})
    assert AttentionInterface.get_interface is was
    assert model.training


def test_unreadable_attention_is_named_and_skipped():
    model: Any = zoo.build("gpt2", reorder_and_upcast_attn=True)
    model.set_attn_implementation("eager")
    found = look(model, zoo.inputs("gpt2"))
    assert found.captures == {}
    assert "never asked for an attention function" in found.problems["transformer.h.0.attn"]


def test_other_modules_that_look_like_attention_are_named():
    class HomeMadeAttention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k = nn.Linear(4, 4), nn.Linear(4, 4)

    assert unsupported_attention(nn.Sequential(HomeMadeAttention())) == ["0 (HomeMadeAttention)"]
    for name in zoo.MODELS:
        assert unsupported_attention(zoo.built(name)) == []


def test_only_some_sequences():
    ids = torch.arange(12).reshape(4, 3)
    scale = torch.ones(())
    args, named = some_sequences(((ids,), {"positions": ids[:1], "s": scale, "flag": True}), 2)
    assert args[0].shape == (2, 3)
    assert named["positions"].shape == (1, 3)
    assert named["flag"] is True


@pytest.mark.parametrize("law", ["softmax_1", "bayes_softmax", "sigmoid"])
def test_swapped_attentions_are_measured_as_what_they_are(law):
    """Weights of the capture, times the values, are what the model passes on."""
    model = zoo.build("llama")
    learnable = law != "sigmoid"
    swap_attention(model, law, learnable=learnable, start=0.5 if learnable else 0.0)
    module = attention_modules(model)[1]
    assert module.output is not None
    seen = []
    handle = module.output.owner.register_forward_pre_hook(lambda m, a: seen.append(a[0]))
    capture = look(model, zoo.inputs("llama")).captures[module.name]
    handle.remove()
    values = capture.values.repeat_interleave(2, 1)
    mixed = (weights_of(capture) @ values).transpose(1, 2).flatten(2)
    torch.testing.assert_close(mixed, seen[0].detach(), atol=1e-5, rtol=1e-4)


def test_a_window_without_a_mask_is_read_from_the_options():
    from attnflow.torch.reading import read_attention

    site = attention_modules(zoo.built("gemma2"))[0]
    q = torch.zeros(1, 4, 6, 16)
    found = read_attention(site, "flash_attention_2", q, q, None, {"sliding_window": 4})
    assert (found.causal, found.window) == (True, 4)
    assert found == Attention(causal=True, window=4)
