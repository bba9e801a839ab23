"""A sink replaced by a constant, against the map held whole."""

import math
import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the extra [torch] is not installed")
hf = pytest.importorskip("transformers", reason="the extra [torch] is not installed")

from torch import nn  # noqa: E402

from attnflow.torch.modules import attention_modules  # noqa: E402
from attnflow.torch.surgery import sink_logits, sink_surgery  # noqa: E402
from attnflow.torch.swap import swap_attention  # noqa: E402
from tests.oracles.interface_attention import dense_attention, mixed  # noqa: E402
from tests.torch import zoo  # noqa: E402

MODELS = ["llama", "gpt2", "gpt_neox", "qwen3", "phi3"]


def model_and_inputs(name, seed=0):
    return zoo.build(name).double(), {"input_ids": zoo.inputs(name, seed=seed)["input_ids"]}


@torch.no_grad()
def logits(model, batch):
    return model(**batch).logits


def first_key(model, batch):
    """By module, over later queries: mean score of key 0, and mean of its weight times value."""
    names = {id(each.module): each.name for each in attention_modules(model)}
    found = {}

    def change(module, scores, values):
        weights = scores.softmax(-1)[..., 1:, 0, None] * values[..., :1, :]
        found[names[id(module)]] = (scores[..., 1:, 0].mean((0, 2)), weights.mean((0, 2)))
        return mixed(scores, values)

    with dense_attention(model, change):
        logits(model, batch)
    return found


@pytest.mark.parametrize("name", [*MODELS, "gemma2", "gpt_oss"])
def test_logits_are_mean_scores_of_the_first_key(name):
    model, batch = zoo.build(name), {"input_ids": zoo.inputs(name, length=4)["input_ids"]}
    truth = first_key(model, batch)
    found = sink_logits(model, batch)
    assert found.keys() == truth.keys()
    for module, (score, _) in truth.items():
        torch.testing.assert_close(found[module].float(), score, atol=1e-4, rtol=1e-4)


def test_padding_and_windows_are_left_out():
    model, batch = zoo.build("llama"), zoo.inputs("llama")
    short = sink_logits(model, {"input_ids": batch["input_ids"][:, :7]})
    mask = torch.ones_like(batch["input_ids"])
    mask[:, 7:] = 0
    padded = sink_logits(model, {"input_ids": batch["input_ids"], "attention_mask": mask})
    for module in short:
        torch.testing.assert_close(padded[module], short[module], atol=1e-5, rtol=1e-5)
    gemma = zoo.build("gemma2")  # the first layer sees four tokens back
    found = sink_logits(gemma, {"input_ids": batch["input_ids"]})
    near = sink_logits(gemma, {"input_ids": batch["input_ids"][:, :4]})
    first = next(iter(found))
    torch.testing.assert_close(found[first], near[first], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_surgery_is_a_constant_sink_and_a_constant_output(name):
    model, batch = model_and_inputs(name)
    test = {"input_ids": zoo.inputs(name, seed=1)["input_ids"]}
    before = logits(model, test)
    constants = first_key(model, batch)
    names = {id(each.module): each.name for each in attention_modules(model)}

    def change(module, scores, values):
        sink, added = constants[names[id(module)]]
        sink = sink.reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = scores.clone()
        scores[..., 0] = -math.inf
        return mixed(torch.cat([scores, sink], -1), values) + added[:, None]

    with dense_attention(model, change):
        truth = logits(model, test)
    with sink_surgery(model, batch) as found:
        torch.testing.assert_close(logits(model, test), truth, atol=1e-9, rtol=0)
        for module, (score, _) in constants.items():
            torch.testing.assert_close(found[module], score, atol=1e-9, rtol=0)
    assert float((truth - before).abs().max()) > 1e-2
    assert torch.equal(logits(model, test), before)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert not any("attnflow_bias" in n for n, _ in model.named_parameters())


def test_first_tokens_do_not_matter_any_more():
    """Nor does what is to the left of them."""
    model, batch = model_and_inputs("llama")
    ids = batch["input_ids"]
    other = ids.clone()
    other[:, 0] = (ids[:, 0] + 7) % 60 + 1
    padded = torch.cat([torch.zeros_like(ids[:, :2]), ids], dim=1)
    mask = (torch.arange(padded.shape[1]) >= 2).long().expand_as(padded)
    with sink_surgery(model, batch):
        plain = logits(model, batch)
        torch.testing.assert_close(logits(model, {"input_ids": other})[:, 1:], plain[:, 1:])
        shifted = logits(model, {"input_ids": padded, "attention_mask": mask})[:, 2:]
        torch.testing.assert_close(shifted[:, 1:], plain[:, 1:], atol=1e-5, rtol=0)


def test_generation_with_cache():
    model, batch = zoo.build("llama"), zoo.inputs("llama", batch=1)
    prompt = batch["input_ids"]
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    with sink_surgery(model, {"input_ids": prompt}):
        with_cache, without = (
            model.generate(prompt, use_cache=cache, **options)  # pyright: ignore
            for cache in (True, False)
        )
    assert with_cache.tolist() == without.tolist()


def test_everything_is_back_after_an_error():
    model, batch = model_and_inputs("llama")
    before = logits(model, batch)
    with pytest.raises(KeyError), sink_surgery(model, batch):
        raise KeyError
    assert torch.equal(logits(model, batch), before)
    assert model.config._attn_implementation == "sdpa"  # pyright: ignore


def test_a_trained_model():
    """On stories that it writes itself; it has no sink, so that little is lost."""
    data = os.environ.get("ATTNFLOW_DATA")
    if data is None or not (Path(data) / "stories260K").is_dir():
        pytest.skip("ATTNFLOW_DATA has no stories260K")
    model = hf.AutoModelForCausalLM.from_pretrained(Path(data) / "stories260K").eval()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        ids = model.generate(
            torch.full((4, 1), 1), do_sample=True, max_new_tokens=63, min_new_tokens=63, top_k=0
        )
    with torch.no_grad():
        before = float(model(ids, labels=ids).loss)
        with sink_surgery(model, {"input_ids": ids}):
            after = float(model(ids, labels=ids).loss)
    assert before < after < before + 0.2


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("opt", "counts positions by the mask"),
        ("gpt_oss", "learned sinks of its own"),
        ("vit", "one sequence of tokens"),
        ("encoder", "one sequence of tokens"),
    ],
)
def test_models_that_it_is_not_for(name, message):
    with pytest.raises(ValueError, match=message), sink_surgery(zoo.build(name), zoo.inputs(name)):
        pass


def test_a_swapped_model_is_not_swapped_back():
    model = swap_attention(zoo.build("llama"), "sigmoid")
    with pytest.raises(ValueError, match="restore_attention first"):
        sink_surgery(model, zoo.inputs("llama")).__enter__()
    assert model.config._attn_implementation == "attnflow_sigmoid"  # pyright: ignore


def test_bad_input():
    with pytest.raises(ValueError, match="no attention was found"):
        sink_logits(nn.Linear(2, 2), {})
    batch = zoo.inputs("llama", length=1)
    with pytest.raises(ValueError, match="two tokens"):
        sink_logits(zoo.build("llama"), batch)
    batch = zoo.inputs("llama")
    mask = torch.ones_like(batch["input_ids"])
    mask[0, 0] = 0
    with pytest.raises(ValueError, match="padded in front"):
        sink_logits(zoo.build("llama"), {**batch, "attention_mask": mask})
