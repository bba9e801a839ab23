"""Heads cut out, against heads masked, over all architectures of the zoo."""

import copy
import json
import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the extra [torch] is not installed")
hf = pytest.importorskip("transformers", reason="the extra [torch] is not installed")

from torch import nn  # noqa: E402

from attnflow.torch.masking import mask_heads  # noqa: E402
from attnflow.torch.modules import attention_modules  # noqa: E402
from attnflow.torch.pruning import load_pruned, prune_heads, save_pruned  # noqa: E402
from tests.torch import zoo  # noqa: E402

GROUPED = ("llama", "qwen3", "gemma2", "phi3", "gpt_oss")  # two key heads of two heads each
CUTS = {
    "whole group": {0: [2, 3]},
    "one of each group": {0: [1, 3], 1: [0, 2]},
    "all but one": {1: [0, 1, 3]},
}


def in_float64(name):
    """The mixture of experts of gpt_oss has no kernel in float64."""
    return name != "gpt_oss"


def model_and_inputs(name):
    model, batch = zoo.build(name), zoo.inputs(name, batch=2, length=7)
    if not in_float64(name):
        return model, batch
    batch = {k: v.double() if v.is_floating_point() else v for k, v in batch.items()}
    return model.double(), batch


@torch.no_grad()
def logits(model, batch):
    output = model(**batch)
    return output if isinstance(output, torch.Tensor) else output.logits


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("name", zoo.MODELS)
def test_pruned_output_is_the_masked_output(name, cut):
    model, batch = model_and_inputs(name)
    heads, full = CUTS[cut], logits(model, batch)
    with mask_heads(model, heads):
        masked = logits(model, batch)
    assert float((masked - full).abs().max()) > 1e-2
    torch.testing.assert_close(logits(model, batch), full, atol=0, rtol=0)
    before = attention_modules(model)
    report = prune_heads(model, heads)
    atol = 1e-12 if in_float64(name) else 1e-5
    torch.testing.assert_close(logits(model, batch), masked, atol=atol, rtol=0)
    after = attention_modules(model)
    assert sum(p.numel() for p in model.parameters()) == report.parameters_after
    if name == "encoder":  # MultiheadAttention has its sizes fixed
        assert report.removed == {}
        assert report.zeroed == {before[k].name: v for k, v in heads.items()}
        return
    assert report.removed == {before[k].name: v for k, v in heads.items()}
    assert report.zeroed == {}
    assert report.parameters_after < report.parameters_before
    for number, (old, new) in enumerate(zip(before, after, strict=True)):
        assert new.heads == old.heads - len(heads.get(number, []))
        assert new.width == old.width
        for part in new.projections.values():
            owner = part.owner
            sizes = [getattr(owner, x) for x in ("in_features", "out_features", "nx", "nf")
                     if hasattr(owner, x)]  # fmt: skip
            assert sorted(sizes) == sorted(owner.get_parameter("weight").shape)


@pytest.mark.parametrize("name", GROUPED)
def test_groups_stay_of_one_size(name):
    """Head 0 shares its keys with head 1, and the other pair stays whole: it can only be zeroed."""
    model, batch = model_and_inputs(name)
    with mask_heads(model, {0: [0], 1: [0, 1, 2]}):
        masked = logits(model, batch)
    report = prune_heads(model, {0: [0], 1: [0, 1, 2]})
    first, second = attention_modules(model)
    assert report.zeroed == {first.name: [0]}
    assert report.removed == {second.name: [0, 1, 2]}
    assert (first.heads, first.key_heads) == (4, 2)
    assert (second.heads, second.key_heads) == (1, 1)
    torch.testing.assert_close(logits(model, batch), masked, atol=1e-5, rtol=0)


def test_uneven_loss_is_partly_cut():
    """Groups of three lose one and two heads: one of each is cut, the other zeroed."""
    model = zoo.build("llama", num_attention_heads=6, hidden_size=48).double()
    batch = zoo.inputs("llama")
    with mask_heads(model, {0: [1, 3, 5]}):
        masked = logits(model, batch)
    report = prune_heads(model, {0: [1, 3, 5]})
    name = attention_modules(model)[0].name
    assert (report.removed, report.zeroed) == ({name: [1, 3]}, {name: [5]})
    torch.testing.assert_close(logits(model, batch), masked, atol=1e-12, rtol=0)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # by transformers
@pytest.mark.parametrize("multi_query", [False, True])
def test_weights_fused_by_head_or_with_one_key(multi_query):
    config = hf.GPTBigCodeConfig(
        n_embd=32, n_layer=1, n_head=4, n_positions=16, vocab_size=64, multi_query=multi_query,
        bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = hf.GPTBigCodeForCausalLM(config).eval()
    batch = zoo.inputs("gpt2")
    with mask_heads(model, {0: [0, 2]}):
        masked = logits(model, batch)
    assert prune_heads(model, {0: [0, 2]}).zeroed == {}
    torch.testing.assert_close(logits(model, batch), masked, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["olmo2", "t5"])
def test_heads_that_are_tied_together_are_zeroed(name):
    """OLMo-2 normalizes queries over all heads; T5 has a bias of positions for each head."""
    if name == "olmo2":
        sizes = {**zoo.SMALL, **zoo.FORWARD, "num_key_value_heads": 4, "pad_token_id": 0}
        model = hf.Olmo2ForCausalLM(hf.Olmo2Config(**sizes)).eval()
        batch = zoo.inputs("llama")
    else:
        config = hf.T5Config(
            d_model=32, d_kv=8, d_ff=48, num_layers=1, num_heads=4, vocab_size=64,
            decoder_start_token_id=0,
        )  # fmt: skip
        model = hf.T5ForConditionalGeneration(config).eval()
        batch = zoo.inputs("llama")
    with mask_heads(model, {0: [1, 2]}):
        masked = logits(model, batch)
    assert prune_heads(model, {0: [1, 2]}).removed == {}
    torch.testing.assert_close(logits(model, batch), masked, atol=1e-6, rtol=0)


def test_pruned_again_and_copied():
    model, batch = model_and_inputs("gpt2")
    with mask_heads(model, {0: [0, 2, 3]}):
        masked = logits(model, batch)
    prune_heads(model, {0: [0]})
    prune_heads(model, {0: [1, 2]})  # numbered anew
    for each in (model, copy.deepcopy(model)):
        torch.testing.assert_close(logits(each, batch), masked, atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", ["llama", "phi3", "gpt2"])
def test_another_attention_implementation_reaches_pruned_modules(name):
    """Their config is the model's but for the head counts: a copy would miss the change, and with
    it the causal mask."""
    model, batch = model_and_inputs(name)
    prune_heads(model, {0: [0, 2]})
    found = []
    for implementation in ("eager", "sdpa", "eager"):
        model.set_attn_implementation(implementation)  # pyright: ignore
        for each in attention_modules(model):
            assert each.module.config._attn_implementation == implementation  # pyright: ignore
        found.append(logits(model, batch))
    torch.testing.assert_close(found[0], found[1], atol=1e-5, rtol=0)
    torch.testing.assert_close(found[0], found[2], atol=0, rtol=0)


@pytest.mark.parametrize("name", zoo.LANGUAGE)
def test_generation_with_cache(name):
    model = zoo.build(name)
    prune_heads(model, {0: [2, 3], 1: [1, 3]})
    prompt = zoo.inputs(name, batch=1, length=5)["input_ids"]
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    with_cache, without = (
        model.generate(prompt, use_cache=cache, **options)  # pyright: ignore
        for cache in (True, False)
    )
    assert with_cache.tolist() == without.tolist()


@pytest.mark.parametrize("name", zoo.MODELS)
def test_gradients_of_the_pruned_model_are_those_of_the_masked_one(name):
    model, batch = model_and_inputs(name)
    pruned = copy.deepcopy(model)
    prune_heads(pruned, {0: [2, 3]})
    gradients = []
    for each, heads in ((model, {0: [2, 3]}), (pruned, {})):
        with mask_heads(each, heads):
            output = each(**batch)
        (output.square().mean() if name == "encoder" else output.loss).backward()
        gradients.append({n: p.grad for n, p in each.named_parameters() if p.grad is not None})
    masked, found = gradients
    assert found.keys() == masked.keys()
    for n, gradient in found.items():
        if gradient.shape == masked[n].shape and not (name == "encoder" and "out_proj" in n):
            torch.testing.assert_close(gradient, masked[n], atol=1e-5, rtol=1e-4, msg=n)
    for part in attention_modules(pruned)[0].projections.values():
        assert float(part.weight.grad.abs().max()) > 0  # pyright: ignore


def test_rescaling():
    """Uniform: H/(H − n). Least squares: exact where the heads that go are copies of others."""
    model, batch = model_and_inputs("gpt_neox")
    each = attention_modules(model)[0]
    assert each.output is not None
    for part in each.projections.values():  # heads 2, 3 do what 0, 1 do
        with torch.no_grad():
            weight = part.weight if part.axis == 0 else part.weight.T
            weight[part.index[2:].flatten()] = weight[part.index[:2].flatten()]
            if part.bias is not None:
                part.bias[part.index[2:].flatten()] = part.bias[part.index[:2].flatten()]
    full = logits(model, batch)
    before = each.output.matrices()[:2]
    for rescale in ("uniform", "least_squares"):
        pruned = copy.deepcopy(model)
        report = prune_heads(pruned, {0: [2, 3]}, rescale=rescale, batches=[batch])
        assert report.factors == {each.name: pytest.approx(2.0, abs=1e-12)}
        after = attention_modules(pruned)[0].output
        assert after is not None
        torch.testing.assert_close(after.matrices(), 2 * before)
        torch.testing.assert_close(logits(pruned, batch), full, atol=1e-10, rtol=0)


def test_the_fitted_factor_is_the_best_one():
    model, batch = model_and_inputs("bert")
    each = attention_modules(model)[0]
    assert each.output is not None
    seen = []
    hook = each.output.owner.register_forward_hook(lambda m, x, y: seen.append(y.detach() - m.bias))
    logits(model, batch)
    with mask_heads(model, {0: [1, 2]}):
        logits(model, batch)
    hook.remove()
    full, kept = (x.flatten() for x in seen)
    truth = torch.linalg.lstsq(kept[:, None], full[:, None]).solution.item()
    report = prune_heads(model, {0: [1, 2]}, rescale="least_squares", batches=[batch])
    assert report.factors == {each.name: pytest.approx(truth, rel=1e-10)}


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "phi3", "gpt_oss", "vit"])
def test_saved_and_loaded(name, tmp_path):
    model, batch = zoo.build(name), zoo.inputs(name, batch=2, length=7)
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16()
    batch = {k: v.bfloat16() if v.is_floating_point() else v for k, v in batch.items()}
    prune_heads(model, {0: [0, 1], 1: [3]})
    prune_heads(model, {0: [0]}, rescale="uniform")
    save_pruned(model, tmp_path)
    assert sorted(p.suffix for p in tmp_path.iterdir() if p.suffix != ".json") == [".safetensors"]
    loaded = load_pruned(tmp_path)
    assert [p.dtype for p in loaded.parameters()] == [p.dtype for p in model.parameters()]
    torch.testing.assert_close(logits(loaded, batch), logits(model, batch), atol=0, rtol=0)
    assert loaded.state_dict().keys() == model.state_dict().keys()
    save_pruned(loaded, tmp_path / "again")
    record, again = (json.loads((p / "pruned_heads.json").read_text())
                     for p in (tmp_path, tmp_path / "again"))  # fmt: skip
    assert record == again


def test_saved_and_loaded_without_a_config(tmp_path):
    model, batch = model_and_inputs("encoder")
    prune_heads(model, {0: [0, 1]})
    save_pruned(model, tmp_path)
    with pytest.raises(ValueError, match="Encoder is no model class of transformers"):
        load_pruned(tmp_path)
    loaded = load_pruned(tmp_path, build=zoo.Encoder)
    torch.testing.assert_close(logits(loaded, batch), logits(model, batch), atol=0, rtol=0)


def test_files_that_are_not_ours(tmp_path):
    with pytest.raises(ValueError, match="no model written by save_pruned"):
        load_pruned(tmp_path)
    model = zoo.build("llama")
    with pytest.raises(ValueError, match="was not pruned"):
        save_pruned(model, tmp_path)
    prune_heads(model, {0: [0, 1]})
    save_pruned(model, tmp_path)
    file = tmp_path / "pruned_heads.json"
    record = json.loads(file.read_text())
    file.write_text(json.dumps({**record, "heads": [{"model.layers.0.self_attn": [2, 3]}] * 2}))
    with pytest.raises(ValueError, match="there are 2, numbered from 0"):
        load_pruned(tmp_path)
    file.write_text(json.dumps({**record, "heads": []}))
    with pytest.raises(RuntimeError, match="size mismatch"):
        load_pruned(tmp_path)


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ({"model.layers.7.self_attn": [0]}, "did you mean 'model.layers.1.self_attn'"),
        ({2: [0]}, "layer: there are 2, numbered from 0"),
        ({-1: [0]}, "layer: there are 2"),
        ({0: [4]}, "there are 4, numbered from 0"),
        ({0: [-1]}, "there are 4"),
        ({0: [True]}, "there are 4"),
        ({0: [0, 1, 2, 3]}, "would lose all its 4 heads: remove the layer"),
    ],
)
def test_bad_heads(heads, message):
    model = zoo.built("llama")
    with pytest.raises(ValueError, match=message):
        prune_heads(model, heads)
    assert attention_modules(model)[0].heads == 4


def test_bad_input():
    with pytest.raises(ValueError, match="no attention was found"):
        prune_heads(nn.Linear(2, 2), {0: [0]})
    model = zoo.build("llama")
    with pytest.raises(ValueError, match="rescale 'unifrom' is not known"):
        prune_heads(model, {0: [0]}, rescale="unifrom")  # pyright: ignore
    with pytest.raises(ValueError, match="needs batches"):
        prune_heads(model, {0: [0]}, rescale="least_squares")
    with pytest.raises(ValueError, match="cannot see its heads"):
        prune_heads(zoo.build("encoder"), {0: [0]}, rescale="least_squares", batches=[1])
    attention = model.model.layers[0].self_attn  # pyright: ignore
    attention.o_proj = nn.Sequential(attention.o_proj)
    with pytest.raises(ValueError, match="output projection is not known"):
        prune_heads(model, {0: [0]})
    attention = model.model.layers[1].self_attn  # pyright: ignore
    attention.v_proj = nn.Sequential(attention.v_proj)
    with pytest.raises(ValueError, match="mask_heads can mask"):
        prune_heads(model, {1: [0]})


def test_a_trained_model():
    """Ten heads of a trained model, cut: the loss of the masked model, less memory."""
    data = os.environ.get("ATTNFLOW_DATA")
    if data is None or not (Path(data) / "stories260K").is_dir():
        pytest.skip("ATTNFLOW_DATA has no stories260K")
    model = hf.AutoModelForCausalLM.from_pretrained(Path(data) / "stories260K").eval()
    ids = torch.randint(3, 512, (2, 64), generator=torch.Generator().manual_seed(0))
    heads = {0: [0, 1, 6], 2: [1, 3, 5, 7], 4: [2, 3, 4]}
    with mask_heads(model, heads), torch.no_grad():
        masked = float(model(ids, labels=ids).loss)
    report = prune_heads(model, heads)
    assert len(report.zeroed) == 2  # layers 0 and 4, where one key head loses one of its two heads
    with torch.no_grad():
        assert float(model(ids, labels=ids).loss) == pytest.approx(masked, abs=1e-5)
