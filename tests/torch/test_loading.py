"""Tiny random models, saved and read again; what is damaged, incomplete or not to be trusted."""

import json
import os
import shutil
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the extra [torch] is not installed")
hf = pytest.importorskip("transformers", reason="transformers is not installed")

from safetensors.torch import load_file, save_file  # noqa: E402

from attnflow.torch.loading import checkpoints, load_model  # noqa: E402
from attnflow.torch.texts import token_batches  # noqa: E402
from tests.torch import zoo  # noqa: E402
from tests.torch.gguf_files import write_gguf  # noqa: E402


def t5():
    sizes = {"d_model": 32, "d_ff": 48, "d_kv": 8, "num_layers": 2, "num_heads": 4}
    config = hf.T5Config(**sizes, vocab_size=64, decoder_start_token_id=0)
    return hf.T5ForConditionalGeneration(config).eval()


def base():
    return hf.BertModel(zoo.built("bert").config).eval()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Models by name, each saved once."""
    makers = {"t5": t5, "base": base}
    models, root = {}, tmp_path_factory.mktemp("models")
    for name in ("llama", "gpt2", "bert", "vit", "t5", "base"):
        models[name] = makers[name]() if name in makers else zoo.build(name)
        models[name].save_pretrained(root / name)
    return root, models


@pytest.fixture
def llama(saved, tmp_path):
    """A folder that a test may spoil."""
    return Path(shutil.copytree(saved[0] / "llama", tmp_path / "llama"))


def spoil(folder, change):
    """Change the weights of a saved model."""
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def reconfigure(folder, **more):
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **more}))


def same_weights(model, other):
    ours, theirs = model.state_dict(), other.state_dict()
    assert ours.keys() == theirs.keys()
    return all(torch.equal(ours[key], theirs[key]) for key in ours)


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("llama", "causal"),
        ("gpt2", "causal"),
        ("bert", "masked"),
        ("t5", "seq2seq"),
        ("vit", "image"),
        ("base", "base"),
    ],
)
def test_a_saved_model_comes_back(saved, name, task):
    root, models = saved
    loaded = load_model(root / name)
    assert type(loaded.model) is type(models[name])
    assert same_weights(loaded.model, models[name])
    assert (loaded.name, loaded.task, loaded.source) == (name, task, root / name)
    assert not loaded.model.training
    assert loaded.model.config._attn_implementation == "sdpa"
    assert loaded.tokenizer is None  # GPT-2, BERT, T5: where Hugging Face makes an empty one
    assert loaded.notes == (() if name == "vit" else ("no tokenizer: random tokens are used",))


def test_an_encoder_and_decoder_runs_on_its_batch(saved):
    loaded = load_model(saved[0] / "t5")
    batch = token_batches(loaded, sequences=2, length=9)
    with torch.no_grad():
        output = loaded.model(**batch.as_inputs())
    loss = torch.nn.functional.cross_entropy(output.logits.flatten(0, 1), batch.input_ids.flatten())
    torch.testing.assert_close(output.loss, loss)


def test_shards_and_a_relative_path(saved, tmp_path, monkeypatch):
    model = saved[1]["llama"]
    model.save_pretrained(tmp_path / "parts", max_shard_size="20KB")
    assert len(list((tmp_path / "parts").glob("model-*.safetensors"))) > 1
    monkeypatch.chdir(tmp_path)
    loaded = load_model("parts")
    assert same_weights(loaded.model, model)
    assert loaded.source == tmp_path / "parts"
    next((tmp_path / "parts").glob("model-00002-*")).unlink()
    with pytest.raises(ValueError, match="weights cannot be read"):
        load_model("parts")


def test_dtype_and_task(saved):
    root, _ = saved
    assert load_model(root / "llama", dtype="bfloat16").model.dtype == torch.bfloat16
    assert load_model(root / "llama", dtype=torch.float64).model.dtype == torch.float64
    headless = load_model(root / "llama", task="base")
    assert type(headless.model) is hf.LlamaModel
    assert "in the file and not used: lm_head.weight" in headless.notes
    with pytest.raises(ValueError, match="vit has no such head"):
        load_model(root / "vit", task="causal")
    with pytest.raises(ValueError, match="task 'casual' is not known: did you mean 'causal'"):
        load_model(root / "llama", task="casual")
    with pytest.raises(ValueError, match="dtype 'float31' is not known"):
        load_model(root / "llama", dtype="float31")


@pytest.mark.parametrize("file", ["pytorch_model.bin", "weights.pt", "last.ckpt"])
def test_plain_tensors_of_pytorch_files_are_read(saved, llama, file):
    (llama / "model.safetensors").unlink()
    state = saved[1]["llama"].state_dict()
    torch.save({"state_dict": state, "epoch": 3} if file == "last.ckpt" else state, llama / file)
    torch.save({"step": 1}, llama / "optimizer.pt")
    torch.save({"step": 1}, llama / "rng_state_0.pth")
    assert same_weights(load_model(llama).model, saved[1]["llama"])


def test_attention_that_is_not_in_the_file_is_refused(llama):
    spoil(llama, lambda weights: weights.pop("model.layers.1.self_attn.q_proj.weight"))
    with pytest.raises(ValueError, match=r"attention are not in the file: model.*q_proj"):
        load_model(llama)


def test_other_differences_are_told(llama):
    def change(weights):
        del (
            weights["model.layers.0.mlp.up_proj.weight"],
            weights["model.layers.1.mlp.up_proj.weight"],
        )
        weights["extra.weight"] = torch.ones(2)

    spoil(llama, change)
    notes = load_model(llama).notes
    assert "not in the file and so drawn at random: model.layers.*.mlp.up_proj.weight" in notes
    assert "in the file and not used: extra.weight" in notes


def test_weights_of_another_shape_are_named(llama):
    reconfigure(llama, intermediate_size=40)
    with pytest.raises(
        ValueError, match=r"6 weights do not fit .*\(32, 48\) and should be \(32, 4"
    ):
        load_model(llama)


@pytest.mark.parametrize("left", [0, 5, 100, 20_000])
def test_truncated_safetensors(llama, left):
    file = llama / "model.safetensors"
    file.write_bytes(file.read_bytes()[:left])
    with pytest.raises(ValueError, match="llama: the weights cannot be read: "):
        load_model(llama)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "config.json is no JSON"),
        ("[]", "must hold a JSON object"),
        ("{}", "the config cannot be read"),
        ('{"model_type": "nonesuch"}', "the config cannot be read"),
    ],
)
def test_bad_configs(llama, content, message):
    (llama / "config.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        load_model(llama)


CODE = """
import pathlib
import transformers
pathlib.Path({mark!r}).write_text("run")
class Config(transformers.LlamaConfig):
    model_type = "own-llama"
class Model(transformers.LlamaForCausalLM):
    config_class = Config
"""


def with_own_code(folder, mark, origin=""):
    (folder / "own.py").write_text(CODE.format(mark=str(mark)))
    own = {"AutoConfig": f"{origin}own.Config", "AutoModelForCausalLM": f"{origin}own.Model"}
    reconfigure(folder, model_type="own-llama", auto_map=own)


def test_own_code_runs_only_if_trusted_by_name(llama, tmp_path, monkeypatch):
    monkeypatch.setattr(hf.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(tmp_path / "cache"))
    mark = tmp_path / "mark"
    with_own_code(llama, mark)
    for trust in (None, "llama", "someone/else"):
        with pytest.raises(ValueError, match=f"not run unless .* --trust {llama}$"):
            load_model(llama, trust=trust)
    assert not mark.exists()
    loaded = load_model(llama, trust=str(llama))
    assert mark.exists()
    assert type(loaded.model).__name__ == "Model"
    assert loaded.task == "causal"


def test_code_of_another_repository_is_that_which_must_be_named(llama, tmp_path):
    with_own_code(llama, tmp_path / "mark", origin="some/one--")
    with pytest.raises(ValueError, match=r"--trust some/one$"):
        load_model(llama, trust=str(llama))


def test_code_beside_a_known_model_is_not_run(saved, llama, tmp_path):
    with_own_code(llama, tmp_path / "mark")
    reconfigure(llama, model_type="llama")
    assert same_weights(load_model(llama).model, saved[1]["llama"])
    assert not (tmp_path / "mark").exists()


def test_a_config_cannot_call_for_a_kernel_of_the_hub(llama):
    reconfigure(llama, attn_implementation="kernels-community/some")
    loaded = load_model(llama)
    assert loaded.model.config._attn_implementation == "sdpa"
    assert "the config asks for the kernel kernels-community/some" in loaded.notes[0]


def test_a_tokenizer_that_cannot_be_read_is_a_note(llama):
    (llama / "tokenizer.json").write_text("{")
    loaded = load_model(llama)
    assert loaded.tokenizer is None
    assert loaded.notes[0].startswith("random tokens are used, the tokenizer cannot be: ")


def test_loading_is_silent_and_leaves_the_log_as_it_was(llama, capfd):
    logging = hf.utils.logging
    before = logging.get_verbosity()
    logging.set_verbosity_info()
    logging.enable_progress_bar()
    spoil(llama, lambda weights: weights.pop("model.norm.weight"))  # told in a table, otherwise
    try:
        load_model(llama)
        assert logging.get_verbosity() == logging.INFO
        assert logging.is_progress_bar_enabled()
    finally:
        logging.set_verbosity(before)
    assert capfd.readouterr() == ("", "")


def test_gguf(saved, tmp_path, capfd):
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    file = tmp_path / "tiny.gguf"
    write_gguf(file, saved[1]["llama"])
    capfd.readouterr()
    loaded = load_model(str(file))
    assert capfd.readouterr() == ("", "")
    assert (loaded.name, loaded.task, loaded.source) == ("tiny", "causal", file)
    assert same_weights(loaded.model, saved[1]["llama"])
    assert loaded.tokenizer is None  # the file has no vocabulary
    data = file.read_bytes()
    for left in (2, 500, len(data) - 1000):
        file.write_bytes(data[:left])
        with pytest.raises(ValueError, match=r"tiny.gguf: the config cannot be read"):
            load_model(file)


def test_checkpoints_come_by_number(saved, tmp_path):
    for name in ("checkpoint-500", "checkpoint-1000", "checkpoint-90", "runs"):
        shutil.copytree(saved[0] / "llama", tmp_path / name)
    (tmp_path / "checkpoint-7").mkdir()
    shutil.copytree(saved[0] / "llama", tmp_path / "step_3")
    (tmp_path / "step_3" / "model.safetensors").unlink()
    (tmp_path / "iter_4").write_text("a file")
    found, skipped = checkpoints(tmp_path)
    assert [step for step, _ in found] == [90, 500, 1000]
    assert found[0].path == tmp_path / "checkpoint-90"
    assert same_weights(load_model(found[0].path).model, saved[1]["llama"])
    assert [Path(line.split()[0]).name for line in skipped] == ["checkpoint-7", "step_3"]


@pytest.mark.parametrize("name", ["step_1000", "step-1000", "iter_1000", "global_step1000"])
def test_names_of_checkpoints(saved, tmp_path, name):
    shutil.copytree(saved[0] / "llama", tmp_path / name)
    assert checkpoints(tmp_path).found == [(1000, tmp_path / name)]


def test_no_checkpoints(tmp_path):
    with pytest.raises(ValueError, match="is no folder"):
        checkpoints(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="looked for folders such as checkpoint-500"):
        checkpoints(tmp_path)
    (tmp_path / "checkpoint-1").mkdir()
    with pytest.raises(ValueError, match=r"skipped: .*checkpoint-1 has no config.json"):
        checkpoints(tmp_path)


def test_stories():
    folder = Path(os.environ.get("ATTNFLOW_DATA", "")) / "stories260K"
    if not (folder / "config.json").is_file():
        pytest.skip("ATTNFLOW_DATA names no folder with stories260K")
    loaded = load_model(folder)
    assert loaded.notes == ()
    assert len(loaded.tokenizer) == loaded.model.config.vocab_size == 512
    assert sum(parameter.numel() for parameter in loaded.model.parameters()) == 260_032


@pytest.mark.slow
def test_smollm2():
    file = Path(os.environ.get("ATTNFLOW_SMOLLM2", "nowhere.gguf"))
    if not file.is_file():
        pytest.skip("ATTNFLOW_SMOLLM2 names no .gguf file")
    loaded = load_model(file)
    assert loaded.notes == ()
    config = loaded.model.config
    assert (config.num_hidden_layers, config.num_attention_heads) == (30, 9)
    ids = torch.tensor([loaded.tokenizer("The capital of France is").input_ids])
    with torch.no_grad():
        best = loaded.model(ids).logits[0, -1].argmax()
    assert loaded.tokenizer.decode(best) == " Paris"
