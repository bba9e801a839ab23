"""Divided scores, against a map whose logits are divided before the softmax."""

import pytest

torch = pytest.importorskip("torch", reason="the extra [torch] is not installed")
hf = pytest.importorskip("transformers", reason="the extra [torch] is not installed")

from torch import nn  # noqa: E402

from attnflow.torch.modules import attention_modules  # noqa: E402
from attnflow.torch.swap import swap_attention  # noqa: E402
from attnflow.torch.tempering import set_temperature, temperature  # noqa: E402
from tests.oracles.interface_attention import dense_attention, mixed  # noqa: E402
from tests.torch import zoo  # noqa: E402

ON_INTERFACE = [name for name in zoo.MODELS if name != "encoder"]
FLOAT32 = ("gpt_oss", "gemma2")  # no kernel for experts, no softcap but in the eager attention
BY_HEAD = torch.tensor([0.5, 1.0, 1.7, 3.0], dtype=torch.float64)
TEMPERATURES = {"one": 1.7, "by head": BY_HEAD}


def model_and_inputs(name):
    model, batch = zoo.build(name), zoo.inputs(name, batch=2, length=7)
    if name in FLOAT32:
        return model, batch
    batch = {k: v.double() if v.is_floating_point() else v for k, v in batch.items()}
    return model.double(), batch


@torch.no_grad()
def logits(model, batch):
    return model(**batch).logits


def divided(model, batch, tau):
    """tau: by module."""
    of = {id(each.module): tau[each.name] for each in attention_modules(model)}

    def change(module, scores, values):
        heads = torch.as_tensor(of[id(module)], dtype=scores.dtype).expand(scores.shape[1])
        return mixed(scores / heads[:, None, None], values)

    with dense_attention(model, change):
        return logits(model, batch)


def everywhere(model, tau):
    return {each.name: tau for each in attention_modules(model)}


@pytest.mark.parametrize("kind", TEMPERATURES)
@pytest.mark.parametrize("name", ON_INTERFACE)
def test_scores_are_divided(name, kind):
    model, batch = model_and_inputs(name)
    tau, before = TEMPERATURES[kind], logits(model, batch)
    if kind == "by head" and name in ("qwen3", "gemma2"):
        with pytest.raises(ValueError, match="of their own"), temperature(model, tau):
            pass
        return
    truth = divided(model, batch, everywhere(model, tau))
    with temperature(model, tau):
        found = logits(model, batch)
    atol = 2e-5 if name in FLOAT32 else 1e-10
    torch.testing.assert_close(found, truth, atol=atol, rtol=0)
    assert float((truth - before).abs().max()) > 1e-2
    assert torch.equal(logits(model, batch), before)
    if name == "gemma2":
        with pytest.raises(ValueError, match="caps its scores"):
            set_temperature(model, tau)
        return
    set_temperature(model, tau)
    torch.testing.assert_close(logits(model, batch), truth, atol=atol, rtol=0)
    again = zoo.build(name).to(next(model.parameters()).dtype)
    again.load_state_dict(model.state_dict())  # it is in the weights
    torch.testing.assert_close(logits(again, batch), truth, atol=atol, rtol=0)


@pytest.mark.parametrize("tau", [3.0, torch.tensor([0.5, 2.0])])
@pytest.mark.parametrize("apart", [False, True])
def test_multihead_attention(tau, apart):
    """Of nn.MultiheadAttention the weights themselves are returned: p^(1/τ), normalized anew."""
    kdim, vdim = (5, 6) if apart else (None, None)
    layer = nn.MultiheadAttention(8, 2, batch_first=True, kdim=kdim, vdim=vdim).double().eval()
    assert layer.in_proj_bias is not None
    nn.init.normal_(layer.in_proj_bias)
    x, k, v = (torch.randn(2, 5, size).double() for size in ((8, 5, 6) if apart else (8, 8, 8)))
    options = {"average_attn_weights": False}
    plain = layer(x, k, v, **options)[1]
    truth = plain ** (1 / torch.as_tensor(tau).expand(2).double()[:, None, None])
    truth = truth / truth.sum(-1, keepdim=True)
    with temperature(layer, tau):
        torch.testing.assert_close(layer(x, k, v, **options)[1], truth)
    assert torch.equal(layer(x, k, v, **options)[1], plain)
    set_temperature(layer, tau)
    torch.testing.assert_close(layer(x, k, v, **options)[1], truth)


def test_some_modules_and_their_heads():
    model, batch = model_and_inputs("llama")
    first, second = (each.name for each in attention_modules(model))
    truth = divided(model, batch, {first: BY_HEAD, second: 1.0})
    with temperature(model, {first: BY_HEAD}):
        torch.testing.assert_close(logits(model, batch), truth, atol=1e-10, rtol=0)
    with temperature(model, {first: 2.0}), temperature(model, {first: BY_HEAD / 2}):
        torch.testing.assert_close(logits(model, batch), truth, atol=1e-10, rtol=0)


@pytest.mark.parametrize("tau", [2.0, BY_HEAD])
def test_learned_sinks_are_divided_too(tau):
    model, batch = model_and_inputs("llama")
    swap_attention(model, "softmax_1", learnable=True, start=1.5)
    sinks = {
        id(each.module): each.module.get_parameter("attnflow_bias")
        for each in attention_modules(model)
    }

    def change(module, scores, values):
        sink = sinks[id(module)].detach().reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        heads = torch.as_tensor(tau, dtype=scores.dtype).expand(scores.shape[1])
        return mixed(torch.cat([scores, sink], -1) / heads[:, None, None], values)

    with temperature(model, tau):
        found = logits(model, batch)
    with dense_attention(model, change):
        truth = logits(model, batch)
    torch.testing.assert_close(found, truth, atol=1e-10, rtol=0)


def test_gradients_reach_the_queries():
    model, batch = zoo.build("gpt2"), zoo.inputs("gpt2")
    query = attention_modules(model)[0].query
    assert query is not None
    with temperature(model, BY_HEAD):
        model(**batch).loss.backward()
    found = query.weight.grad
    assert found is not None
    baked = zoo.build("gpt2")
    set_temperature(baked, BY_HEAD)
    baked(**batch).loss.backward()
    part = attention_modules(baked)[0].query
    assert part is not None
    columns = query.index[1]  # of temperature one: the same slope
    assert part.weight.grad is not None
    torch.testing.assert_close(
        found[:, columns], part.weight.grad[:, columns], atol=1e-6, rtol=1e-3
    )


def test_norms_that_add_one_have_no_gain_to_divide():
    config = hf.Gemma3TextConfig(**zoo.SMALL, **zoo.FORWARD, num_key_value_heads=2, head_dim=8)
    model = hf.Gemma3ForCausalLM(config).eval()
    with pytest.raises(ValueError, match="no gain to divide; use `temperature`"):
        set_temperature(model, 2.0)
    batch = zoo.inputs("llama")
    truth = divided(model, batch, everywhere(model, 2.0))
    with temperature(model, 2.0):
        torch.testing.assert_close(logits(model, batch), truth, atol=1e-5, rtol=0)


def test_biases_of_positions_are_refused():
    config = hf.T5Config(d_model=32, d_kv=8, d_ff=48, num_layers=1, num_heads=4, vocab_size=64)
    with pytest.raises(ValueError, match="adds a bias of positions"):
        set_temperature(hf.T5ForConditionalGeneration(config), 2.0)


@pytest.mark.parametrize(
    ("tau", "message"),
    [
        (0.0, "tau must be positive"),
        (float("nan"), "tau must be positive"),
        (torch.tensor([1.0, -1.0, 1.0, 1.0]), "tau must be positive"),
        (torch.ones(3), "one for each of 4 heads"),
        ({"layer": 1.0}, "attention module 'layer' is not known"),
    ],
)
def test_bad_input(tau, message):
    with pytest.raises(ValueError, match=message):
        set_temperature(zoo.built("llama"), tau)
    with pytest.raises(ValueError, match="no attention was found"):
        set_temperature(nn.Linear(2, 2), 1.0)
