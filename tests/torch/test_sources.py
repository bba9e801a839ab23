"""What may be read and what is refused; the hub is played by a function."""

import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the extra [torch] is not installed")
hf = pytest.importorskip("transformers", reason="transformers is not installed")

import huggingface_hub  # noqa: E402
from huggingface_hub import errors  # noqa: E402

from attnflow.torch import sources  # noqa: E402
from attnflow.torch.loading import load_model  # noqa: E402
from tests.torch import zoo  # noqa: E402


@pytest.fixture
def folder(tmp_path):
    """The config of a model and its weights."""
    zoo.built("llama").save_pretrained(tmp_path / "llama")
    return tmp_path / "llama"


class Malicious:
    """Opening it writes a file."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return (Path.write_text, (self.mark, "run"))


def write_malicious(file, mark, how):
    content = {"model.norm.weight": Malicious(mark)}
    if how == "torch":
        torch.save(content, file)
    else:
        file.write_bytes(pickle.dumps(content))


@pytest.mark.parametrize("how", ["torch", "pickle"])
def test_the_pickle_of_these_tests_is_malicious(tmp_path, how):
    mark = tmp_path / "mark"
    write_malicious(tmp_path / "x.pt", mark, how)
    if how == "torch":
        torch.load(tmp_path / "x.pt", weights_only=False)
    else:
        pickle.loads((tmp_path / "x.pt").read_bytes())
    assert mark.exists()


@pytest.mark.parametrize("how", ["torch", "pickle"])
@pytest.mark.parametrize("name", ["pytorch_model.bin", "weights.pt", "model.pkl"])
def test_a_malicious_pickle_does_not_run(folder, tmp_path, name, how):
    (folder / "model.safetensors").unlink()
    write_malicious(folder / name, tmp_path / "mark", how)
    with pytest.raises(ValueError, match=f"{name} holds more than tensors.* can run code"):
        load_model(folder)
    with pytest.raises(ValueError, match=f"{name} is a pickle, which can run code .*config.json"):
        load_model(folder / name)
    assert not (tmp_path / "mark").exists()


def test_safetensors_come_before_a_pickle(folder, tmp_path):
    write_malicious(folder / "pytorch_model.bin", tmp_path / "mark", "torch")
    assert load_model(folder).model.config.model_type == "llama"
    assert not (tmp_path / "mark").exists()


def test_a_pickle_that_is_no_state_dict(folder):
    (folder / "model.safetensors").unlink()
    torch.save([torch.ones(2)], folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match="holds no state_dict"):
        load_model(folder)
    shutil.move(folder / "pytorch_model.bin", folder / "a.pt")
    torch.save({}, folder / "b.pt")
    with pytest.raises(ValueError, match=r"which are the weights of a.pt, b.pt\? Keep one"):
        load_model(folder)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "has no config.json: a model is a folder with"),
        (["model.safetensors"], "has no config.json"),
        (["adapter_config.json", "adapter_model.safetensors"], "this is an adapter: merge it"),
        (["a.gguf"], "give the .gguf file itself"),
        (["config.json"], "has a config.json and no weights"),
        (["config.json", "training_args.bin", "optimizer.pt"], "has a config.json and no weights"),
    ],
)
def test_incomplete_folders(tmp_path, files, message):
    for name in files:
        (tmp_path / name).write_text("{}")
    with pytest.raises(ValueError, match=message):
        load_model(tmp_path)


def test_files_that_are_no_models(tmp_path):
    (tmp_path / "model.safetensors").write_text("")
    with pytest.raises(ValueError, match="is no model: give a folder"):
        load_model(tmp_path / "model.safetensors")
    for missing in (tmp_path / "nowhere", str(tmp_path / "nowhere"), "./nowhere", "lost.gguf"):
        with pytest.raises(ValueError, match="there is no such folder or file"):
            load_model(missing)


def test_a_package_that_is_not_installed_is_named(tmp_path, monkeypatch):
    (tmp_path / "a.gguf").write_text("")
    real = sources.importlib.util.find_spec
    monkeypatch.setattr(
        sources.importlib.util, "find_spec", lambda name: None if name == "gguf" else real(name)
    )
    with pytest.raises(ValueError, match="a GGUF file needs the package gguf: pip install gguf"):
        load_model(tmp_path / "a.gguf")


def test_a_name_of_the_hub(folder, monkeypatch):
    asked = []
    monkeypatch.setattr(
        huggingface_hub,
        "snapshot_download",
        lambda name, allow_patterns: asked.append((name, allow_patterns)) or str(folder),
    )
    loaded = load_model("org/some-model")
    assert (loaded.name, loaded.source) == ("org/some-model", folder)
    load_model("org/some-model", trust="org/some-model")
    assert [name for name, _ in asked] == ["org/some-model"] * 2
    for patterns, code in zip((patterns for _, patterns in asked), (False, True), strict=True):
        wanted = huggingface_hub.utils.filter_repo_objects
        safe = ["config.json", "model.safetensors", "model-00001-of-00002.safetensors"]
        other = ["pytorch_model.bin", "a.pt", "a.gguf", "flax_model.msgpack"]
        fetched = list(wanted([*safe, *other, "own.py"], allow_patterns=patterns))
        assert fetched == safe + (["own.py"] if code else [])
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"org/some-model: .* hub has no safetensors of it"):
        load_model("org/some-model")


class Response:
    """As much of an answer of the hub as its errors look at."""

    def __init__(self):
        self.headers, self.request = {}, None


ANSWER: Any = Response()


def offline(name, **_):
    raise errors.LocalEntryNotFoundError("many\nlines")


def unknown(name, **_):
    raise errors.RepositoryNotFoundError("404", response=ANSWER)


def gated(name, **_):
    raise errors.GatedRepoError("403", response=ANSWER)


@pytest.mark.parametrize(
    ("hub", "message"),
    [
        (offline, "some-model: .* the hub cannot be reached, nor has it been fetched before$"),
        (unknown, "the hub has no such model, or it is private$"),
        (gated, "its licence must be accepted"),
    ],
)
def test_the_hub_says_no(monkeypatch, hub, message):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub)
    with pytest.raises(ValueError, match=message):
        load_model("org/some-model")


def test_offline_for_real(monkeypatch):
    """The switch of the hub's own library: nothing is sent."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match="the hub cannot be reached"):
        load_model("no-such-org/no-such-model")
