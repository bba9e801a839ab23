"""Where the files of a model lie, and which of them may be read.

A pickle can run code when it is opened: only safetensors, GGUF and plain tensors are read. A config
can name Python code: `origins` says whose.
"""

import importlib.util
import json
import re
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
BESIDE = re.compile(r"(optimizer|scheduler|scaler|training_args|rng_state).*")  # of a trainer
HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
HUB_FILES = ["model*.safetensors", "*.json", "*.txt", "*.model", "*.tiktoken", "*.jinja"]


def locate(source: str | Path, trust: str | None) -> tuple[str, Path]:
    """The name of a model, and the folder or GGUF file that holds it. Strings that are no path
    here are names on the hub: what is safe of it is fetched, its Python code only if trusted."""
    path = Path(source).expanduser()
    if path.is_dir():
        return path.resolve().name, path.resolve()
    if path.is_file() and path.suffix == ".gguf":
        needs_package("gguf", "a GGUF file")
        needs_package("accelerate", "a GGUF file")
        return path.stem, path.resolve()
    if path.is_file() and path.suffix in PICKLES:
        raise ValueError(
            f"{path} is a pickle, which can run code when it is opened, and says nothing of the "
            "architecture: give a folder with config.json and model.safetensors (to convert: "
            "torch.load(file, weights_only=True), then safetensors.torch.save_file)"
        )
    if path.is_file():
        raise ValueError(f"{path} is no model: give a folder with config.json, or a .gguf file")
    is_file_name = path.suffix in (".gguf", ".safetensors", *PICKLES)
    if isinstance(source, Path) or is_file_name or not HUB_NAME.fullmatch(source):
        raise ValueError(f"{source}: there is no such folder or file")
    return source, _fetched(source, code=trust == source)


def _fetched(name: str, code: bool) -> Path:
    """The local folder of one revision of a model of the hub."""
    import huggingface_hub
    from huggingface_hub import errors

    try:
        wanted = [*HUB_FILES, "*.py"] if code else HUB_FILES
        folder = Path(huggingface_hub.snapshot_download(name, allow_patterns=wanted))
    except errors.GatedRepoError as error:
        why, cause = "its licence must be accepted on the hub first, then `hf auth login`", error
    except errors.RepositoryNotFoundError as error:
        why, cause = "the hub has no such model, or it is private", error
    except (OSError, ValueError) as error:
        why, cause = "the hub cannot be reached, nor has it been fetched before", error
    else:
        if any(folder.glob("*.safetensors")):
            return folder
        why, cause = "the hub has no safetensors of it: pickles are not fetched", None
    raise ValueError(f"{name}: there is no such folder here, and {why}") from cause


def pickled_weights(folder: Path) -> list[Path]:
    """The PyTorch files of the weights, none if there are safetensors; an error if neither."""
    files = {path.name for path in folder.iterdir()}
    if "config.json" not in files:
        hint = "a model is a folder with config.json and model.safetensors"
        if "adapter_config.json" in files:
            hint = "this is an adapter: merge it with its model and save that"
        elif any(name.endswith(".gguf") for name in files):
            hint = "give the .gguf file itself"
        raise ValueError(f"{folder} has no config.json: {hint}")
    if any(name.endswith(".safetensors") for name in files):
        return []
    pickles = sorted(name for name in files if Path(name).suffix in PICKLES)
    pickles = [name for name in pickles if not BESIDE.fullmatch(name)]
    usual = [name for name in pickles if name.startswith("pytorch_model")]
    if not pickles:
        raise ValueError(f"{folder} has a config.json and no weights (model.safetensors)")
    if not usual and len(pickles) > 1:
        raise ValueError(f"{folder}: which are the weights of {', '.join(pickles)}? Keep one")
    return [folder / name for name in usual or pickles]


def tensors_of(files: list[Path]) -> dict[str, Tensor]:
    """Of PyTorch files, opened by the reader that makes tensors and plain containers only."""
    state: dict[str, Tensor] = {}
    for file in files:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of old pickle versions: if need be it refuses
                read = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:
            raise ValueError(
                f"{file} holds more than tensors, or is damaged. It is a pickle, which can run "
                "code when it is opened, so it is refused: save the state_dict as safetensors"
            ) from error
        for inner in ("state_dict", "model"):
            if isinstance(read, dict) and isinstance(read.get(inner), dict):
                read = read[inner]
        if not isinstance(read, dict) or not all(isinstance(x, Tensor) for x in read.values()):
            raise ValueError(f"{file} holds no state_dict: names with their tensors")
        state |= read
    return state


def settings_of(file: Path) -> dict[str, Any]:
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} is no JSON that can be read: {error}") from error
    if not isinstance(settings, dict):
        raise ValueError(f"{file} must hold a JSON object")
    return settings


def origins(settings: dict[str, Any], source: str) -> set[str]:
    """Whose Python code a config refers to.

    >>> sorted(origins({"auto_map": {"AutoConfig": "a.B", "AutoModel": "org/name--c.D"}}, "here"))
    ['here', 'org/name']
    """
    entries = settings.get("auto_map") or {}
    entries = entries.values() if isinstance(entries, dict) else entries
    flat = [x for entry in entries for x in (entry if isinstance(entry, list) else [entry]) if x]
    return {str(x).split("--")[0] if "--" in str(x) else source for x in flat}


def needs_package(module: str, what: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise ValueError(f"{what} needs the package {module}: pip install {module}")
