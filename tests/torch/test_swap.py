"""One contract over the whole registry, inside real models."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the extra [torch] is not installed")
hf = pytest.importorskip("transformers", reason="the extra [torch] is not installed")

from attnflow import attention as registry  # noqa: E402
from attnflow.attention import normalizations  # noqa: E402
from attnflow.attention.registry import _REGISTRY  # noqa: E402
from attnflow.torch.swap import (  # noqa: E402
    register_with_transformers,
    restore_attention,
    swap_attention,
)
from tests.oracles import torch_attention as oracle  # noqa: E402
from tests.torch import zoo  # noqa: E402
from tests.torch.test_attention import BIASED, NAMES, random  # noqa: E402


def steady(module):
    """Scores q·k of queries and keys that are alike, so that no sum of similarities vanishes."""
    with torch.no_grad():
        for part in module.modules():
            for query, key in (("q_proj", "k_proj"), ("query", "key")):
                if hasattr(part, query):
                    q, k = getattr(part, query).weight, getattr(part, key).weight
                    heads = k.unflatten(0, (k.shape[0] * 4 // q.shape[0], -1))
                    q.copy_(heads.repeat_interleave(4 // len(heads), dim=0).flatten(0, 1))
            if hasattr(part, "c_attn"):
                width = part.c_attn.weight.shape[0]
                part.c_attn.weight[:, width : 2 * width] = part.c_attn.weight[:, :width]
            if isinstance(part, torch.nn.Embedding):
                part.weight.copy_(0.3 * part.weight + random(part.weight.shape[1], seed=8))
    return module.double()


def model(kind, name, **more) -> Any:
    groups = {"num_key_value_heads": 4} if kind == "llama" else {}
    return swap_attention(steady(zoo.build(kind, **groups, **more)), name)


def tokens(batch=2, length=8, seed=0):
    return torch.randint(3, 64, (batch, length), generator=torch.Generator().manual_seed(seed))


def causal_future_does_not_leak(net):
    ids = tokens()
    other = ids.clone()
    other[:, 5:] = tokens(seed=1)[:, 5:]
    with torch.no_grad():
        first, second = net(ids).logits, net(other).logits
    assert torch.isfinite(first).all()
    torch.testing.assert_close(first[:, :5], second[:, :5], atol=1e-10, rtol=0)
    assert not torch.allclose(first[:, 5:], second[:, 5:])


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("name", NAMES)
def test_the_future_does_not_leak(name, kind):
    causal_future_does_not_leak(model(kind, name))


def test_the_future_does_not_leak_from_an_attention_of_your_own(monkeypatch):
    law = registry.Attention("cubes", lambda x: x * x * x, normalizations.sink_sum)
    monkeypatch.setitem(_REGISTRY, "cubes", law)
    causal_future_does_not_leak(model("llama", "cubes"))


def padded_is_single(net, side):
    ids, seen = tokens(), torch.ones(2, 8, dtype=torch.long)
    kept = slice(3, None) if side == "left" else slice(None, 5)
    seen[0] = 0
    seen[0, kept] = 1
    places = (seen.cumsum(-1) - 1).clamp_min(0)
    with torch.no_grad():
        batch = net(ids, attention_mask=seen, position_ids=places).logits
        single = net(ids[:1, kept]).logits
    torch.testing.assert_close(batch[:1, kept], single, atol=1e-10, rtol=0)


@pytest.mark.parametrize(
    ("kind", "side"), [("llama", "left"), ("llama", "right"), ("gpt2", "left"), ("bert", "right")]
)
@pytest.mark.parametrize("name", NAMES)
def test_padding_does_not_leak(name, kind, side):
    padded_is_single(model(kind, name), side)


def test_without_a_mask_function_padding_would_leak():
    """What `register_with_transformers` guards against, and that the test above can fail."""
    register_with_transformers("softmax")
    forward = hf.AttentionInterface._global_mapping["attnflow_softmax"]
    hf.AttentionInterface.register("without_mask", forward)
    net: Any = zoo.build("llama").double()
    net.set_attn_implementation("without_mask")
    try:
        with pytest.raises(AssertionError):
            padded_is_single(net, "left")
    finally:
        del hf.AttentionInterface._global_mapping["without_mask"]


def generated(net, ids, seen, **more):
    """Tokens, and the logits (step, batch, vocabulary; single precision) that chose them."""
    found = net.generate(
        ids, attention_mask=seen, max_new_tokens=5, do_sample=False, eos_token_id=None,
        output_logits=True, return_dict_in_generate=True, **more,
    )  # fmt: skip
    return found.sequences, torch.stack(found.logits)


@pytest.mark.parametrize("hidden", [0, 2])
@pytest.mark.parametrize("name", NAMES)
def test_generation_with_a_cache_is_the_full_forward_pass(name, hidden):
    net = model("llama", name)
    ids, seen = tokens(length=6), torch.ones(2, 11, dtype=torch.long)
    seen[0, :hidden] = 0
    places = (seen.cumsum(-1) - 1).clamp_min(0)
    ids, found = generated(net, ids, seen[:, :6])
    with torch.no_grad():
        whole = net(ids, attention_mask=seen, position_ids=places).logits
    torch.testing.assert_close(found.double(), whole[:, 5:10].transpose(0, 1), atol=1e-5, rtol=0)
    assert ids[:, 6:].tolist() == whole[:, 5:10].argmax(-1).tolist()


@pytest.mark.parametrize("hidden", [0, 2])
@pytest.mark.parametrize("name", ["softmax_1", "sigmoid"])
def test_a_static_cache_is_the_same(name, hidden):
    net = model("llama", name)
    ids, seen = tokens(length=6), torch.ones(2, 6, dtype=torch.long)
    seen[0, :hidden] = 0
    static = generated(net, ids, seen, cache_implementation="static", disable_compile=True)
    torch.testing.assert_close(static, generated(net, ids, seen), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_gradient_checkpointing_changes_nothing(name):
    net = model("llama", name, num_hidden_layers=1).train()
    ids = tokens(length=6)
    net(ids, labels=ids).loss.backward()
    plain = {key: x.grad.clone() for key, x in net.named_parameters()}
    net.zero_grad()
    net.gradient_checkpointing_enable()
    net(ids, labels=ids).loss.backward()
    assert torch.isfinite(net.model.layers[0].self_attn.q_proj.weight.grad).all()
    for key, x in net.named_parameters():
        torch.testing.assert_close(x.grad, plain[key], atol=1e-12, rtol=1e-9)


def written_out(name):
    """An attention function of transformers that makes its window and future itself."""

    def forward(module, query, key, value, attention_mask, scaling, sliding_window=None, **more):
        out, _ = oracle.attention(
            name, *(x.detach() for x in (query, key, value)), causal=True, scale=scaling,
            window=sliding_window, softcap=more.get("softcap"),
        )  # fmt: skip
        return torch.as_tensor(out).transpose(1, 2).contiguous(), None

    return forward


def mistral():
    sizes = {**zoo.SMALL, **zoo.FORWARD, "num_key_value_heads": 4, "sliding_window": 3}
    return hf.MistralForCausalLM(hf.MistralConfig(**sizes)).eval()


@pytest.mark.parametrize("kind", ["mistral", "gemma2"])
@pytest.mark.parametrize("name", NAMES)
def test_a_sliding_window_is_kept(name, kind):
    """Of Gemma every second layer has one, and there is a soft cap."""
    torch.manual_seed(0)
    net = zoo.build(kind) if kind == "gemma2" else mistral()
    net: Any = swap_attention(steady(net), name)
    ids = tokens(batch=1)
    with torch.no_grad():
        found = net(ids).logits
        hf.AttentionInterface.register("written_out", written_out(name))
        net.set_attn_implementation("written_out")
        expected = net(ids).logits
    del hf.AttentionInterface._global_mapping["written_out"]
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", ["softmax_1", "bayes_softmax", "relu"])
def test_packed_sequences_do_not_see_each_other(name):
    net = model("llama", name)
    ids = tokens(batch=1)
    places = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4]])
    with torch.no_grad():
        packed = net(ids, position_ids=places, use_cache=False).logits
        apart = torch.cat([net(ids[:, :3]).logits, net(ids[:, 3:]).logits], dim=1)
    torch.testing.assert_close(packed, apart, atol=1e-10, rtol=0)


def logits_of(net, ids, implementation):
    net.set_attn_implementation(implementation)
    with torch.no_grad():
        return net(ids).logits


@pytest.mark.parametrize("kind", zoo.LANGUAGE)
def test_softmax_is_the_model_itself(kind):
    """With keys in groups, soft caps (Gemma), partial rotations; GPT-OSS has sinks of its own."""
    net = zoo.build(kind)
    own = "softmax_1" if kind == "gpt_oss" else "softmax"
    register_with_transformers(own)
    eager = logits_of(net, tokens(), "eager")
    torch.testing.assert_close(
        logits_of(net, tokens(), f"attnflow_{own}"), eager, atol=2e-5, rtol=1e-5
    )


def t5():
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    config = hf.T5Config(**sizes, vocab_size=64, decoder_start_token_id=0, dropout_rate=0.0)
    return hf.T5ForConditionalGeneration(config).double().train()


def test_position_bias_is_added_and_learned():
    net, ids = t5(), tokens()
    seen = torch.ones_like(ids)
    seen[0, 5:] = 0
    bias = net.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight
    losses, slopes = [], []
    for implementation in ("eager", *register_with_transformers("softmax")):
        net.set_attn_implementation(implementation)
        loss = net(input_ids=ids, attention_mask=seen, labels=ids).loss
        losses.append(loss)
        slopes.append(torch.autograd.grad(loss, bias)[0])
    assert slopes[0].abs().max() > 1e-6
    torch.testing.assert_close(losses[0], losses[1], atol=1e-10, rtol=0)
    torch.testing.assert_close(slopes[0], slopes[1], atol=1e-10, rtol=0)


def test_sinks_of_the_model_are_not_dropped():
    net = zoo.build("gpt_oss")
    with pytest.raises(ValueError, match="swap to softmax_1"):
        swap_attention(net, "softmax")(tokens())
    with pytest.raises(ValueError, match="learnable=False"):
        swap_attention(net, "softmax_1", learnable=True)(tokens())


def test_dropout():
    net = zoo.build("llama", attention_dropout=0.5).train()
    with pytest.raises(ValueError, match="attention_dropout=0"):
        swap_attention(net, "softmax_1")(tokens())
    swap_attention(net, "softmax")
    assert not torch.equal(net(tokens()).logits, net(tokens()).logits)
    net.eval()
    assert torch.equal(net(tokens()).logits, net(tokens()).logits)
    capped = zoo.build("gemma2", attention_dropout=0.5).train()
    with pytest.raises(ValueError, match="capped softmax has no dropout"):
        swap_attention(capped, "softmax")(tokens())


@pytest.mark.parametrize("name", BIASED)
def test_a_learned_bias_is_trained_saved_and_removed(name):
    net: Any = swap_attention(zoo.build("llama"), name, learnable=True, start=-1.0)
    bias = net.model.layers[0].self_attn.attnflow_bias
    assert bias.tolist() == [-1.0] * 4
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    net(tokens(), labels=tokens()).loss.backward()
    optimizer.step()
    assert (bias != -1).all()
    again = swap_attention(zoo.build("llama", seed=1), name, learnable=True)
    again.load_state_dict(net.state_dict())
    assert torch.equal(again(tokens()).logits, net(tokens()).logits)
    restore_attention(net)
    assert not [key for key in net.state_dict() if "attnflow" in key]
    assert net.config._attn_implementation == "sdpa"


def test_a_faint_sink_is_nearly_softmax():
    net, ids = zoo.build("llama").double(), tokens()
    with torch.no_grad():
        plain = net(ids).logits
        gap = []
        for start in (-10.0, -30.0):
            swap_attention(net, "softmax_1", learnable=True, start=start)
            gap.append((net(ids).logits - plain).abs().max())
        swap_attention(net, "softmax_1")
        assert (net(ids).logits - plain).abs().max() > 1e-2
        restore_attention(net)
        torch.testing.assert_close(net(ids).logits, plain, atol=0, rtol=0)
    assert gap[1] < 1e-9 < gap[0] < 1e-2


def test_swapping_reaches_models_inside_models():
    text = zoo.llama().config.to_dict()
    vision = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
    vision |= {"num_attention_heads": 4, "image_size": 16, "patch_size": 4}
    net = hf.LlavaForConditionalGeneration(hf.LlavaConfig(vision_config=vision, text_config=text))
    net.set_attn_implementation({"text_config": "eager"})
    names = {x: getattr(net.config, x)._attn_implementation for x in net.config.sub_configs}
    swap_attention(net, "softmax_1", learnable=True)
    assert net.config.text_config._attn_implementation == "attnflow_softmax_1"
    assert len([key for key in net.state_dict() if key.endswith("attnflow_bias")]) == 3
    restore_attention(net)
    assert names == {x: getattr(net.config, x)._attn_implementation for x in names}
    assert names["text_config"] == "eager"


def test_what_cannot_be_swapped_is_said():
    net = zoo.build("llama")
    net.pooler = torch.nn.MultiheadAttention(8, 2)
    with pytest.warns(UserWarning, match="keep their own attention: pooler"):
        swap_attention(net, "softmax_1")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: register_with_transformers("sofmax"), "did you mean"),
        (lambda: swap_attention(zoo.Encoder(), "relu"), "no model on the attention inter"),
        (lambda: swap_attention(zoo.built("llama"), "relu", learnable=True), "no bias to"),
        (lambda: swap_attention(zoo.built("llama"), "softmax_1", start=1.0), "learnable="),
        (lambda: restore_attention(zoo.built("llama")), "has not been swapped"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
