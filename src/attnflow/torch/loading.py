"""Models of the Hugging Face kind, from a folder, a GGUF file or the hub; series of checkpoints.

Nothing that is read runs code: weights come from safetensors, from GGUF, or from PyTorch files of
which only the tensors are read. The Python code of a model runs only if `trust` names its origin.
"""

import contextlib
import dataclasses
import io
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from attnflow._checks import choice
from attnflow.torch.sources import (
    locate,
    needs_package,
    origins,
    pickled_weights,
    settings_of,
    tensors_of,
)

CLASSES = {
    "causal": "AutoModelForCausalLM",
    "masked": "AutoModelForMaskedLM",
    "seq2seq": "AutoModelForSeq2SeqLM",
    "image": "AutoModelForImageClassification",
    "base": "AutoModel",
}
ENDINGS = {
    "ForCausalLM": "causal",
    "LMHeadModel": "causal",
    "ForMaskedLM": "masked",
    "ForPreTraining": "masked",
    "ForImageClassification": "image",
}
DTYPES = ("float16", "bfloat16", "float32", "float64")
VOCABULARIES = ("tokenizer.json", "vocab.*", "*.model", "*.tiktoken", "tekken.json")
STEP = re.compile(r"(?:checkpoint|ckpt|global_step|step|iteration|iter|epoch)[-_]?(\d+)")


@dataclasses.dataclass(frozen=True)
class Loaded:
    """A model in evaluation mode, its tokenizer if it has one, and what a user should be told.

    source: the folder or file that was read (of a hub name: the local copy of one revision).
    task: "causal", "masked", "seq2seq", "image", or "base" for a model without its head.
    """

    model: Any
    tokenizer: Any = None
    name: str = "model"
    source: Path | None = None
    task: str = "base"
    notes: tuple[str, ...] = ()


class Checkpoint(NamedTuple):
    step: int
    path: Path


class Checkpoints(NamedTuple):
    """found: by step. skipped: why a folder with the name of a checkpoint is none."""

    found: list[Checkpoint]
    skipped: list[str]


def load_model(
    source: str | Path,
    *,
    trust: str | None = None,
    dtype: torch.dtype | str | None = None,
    task: str = "auto",
) -> Loaded:
    """The model of a folder (config.json and weights), of a .gguf file, or of a name on the hub.

    trust: whose Python code may run: the source as it is given here, or the other repository that
    its config points to. dtype: that of the file unless given. task: the head to load, as the
    config says unless given. Attention weights that the file lacks are an error: Hugging Face
    would draw them at random and only log it. Cost: the weights in memory, GGUF ones unpacked.
    """
    choice("task", task, ("auto", *CLASSES))
    if not isinstance(dtype, torch.dtype | None):
        choice("dtype", dtype, DTYPES)
    needs_package("transformers", "a Hugging Face model")
    name, place = locate(source, trust)
    pickles = [] if place.is_file() else pickled_weights(place)
    with _quiet():
        return _load(name, place, pickles, _Trust(str(source), trust), dtype, task)


def checkpoints(folder: str | Path) -> Checkpoints:
    """The folders `checkpoint-500`, `step_1000`, `iter10`, ... of a training run, by number.

    Each must hold what `load_model` reads, config.json and weights; nothing is loaded here.
    """
    folder = Path(folder).expanduser()
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder: give the one that holds the checkpoints")
    found, skipped = [], []
    for path in sorted(folder.iterdir()):
        match = STEP.fullmatch(path.name)
        if match is None or not path.is_dir():
            continue
        try:
            pickled_weights(path)
            found.append(Checkpoint(int(match[1]), path))
        except ValueError as error:
            skipped.append(str(error))
    if not found:
        why = f"; skipped: {'; '.join(skipped)}" if skipped else ""
        raise ValueError(
            f"{folder} holds no checkpoints: looked for folders such as checkpoint-500, step_1000 "
            f"or iter_10, each with config.json and weights{why}"
        )
    return Checkpoints(sorted(found), skipped)


def _load(
    name: str,
    place: Path,
    pickles: list[Path],
    trust: "_Trust",
    dtype: torch.dtype | str | None,
    task: str,
) -> Loaded:
    import transformers

    gguf = place.is_file()
    folder = place.parent if gguf else place
    code = not gguf and trust.of_model(folder)
    shared: dict[str, Any] = {"gguf_file": place.name} if gguf else {}
    with _clearly(f"{place}: the config cannot be read"):
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=code, **shared)
    notes = _without_hub_kernels(config)
    task, kind = _head(config, task, gguf, code)
    options = {
        "config": config,
        "dtype": dtype or "auto",
        "trust_remote_code": code,
        "output_loading_info": True,
        "ignore_mismatched_sizes": True,  # refused below, by name
    }
    if gguf and hasattr(transformers, "GgufConfig"):  # packed blocks are no matrices to look at
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    state = tensors_of(pickles)
    with _clearly(f"{place}: the weights cannot be read"):
        if pickles:
            with torch.device("meta"):
                empty = kind.from_config(config, trust_remote_code=code)
            options["config"] = empty.config
            model, found = type(empty).from_pretrained(None, state_dict=state, **options)
        else:
            options |= shared
            model, found = kind.from_pretrained(folder, use_safetensors=not gguf, **options)
    notes += _about_weights(place, found)
    tokenizer = None
    if model.main_input_name != "pixel_values":
        tokenizer, problems = _tokenizer(folder, config, trust, shared)
        notes += problems
    return Loaded(model.eval(), tokenizer, name, place, task, tuple(notes))


class _Trust(NamedTuple):
    source: str
    name: str | None

    def of(self, settings: dict[str, Any]) -> bool:
        return origins(settings, self.source) == {self.name}

    def of_model(self, folder: Path) -> bool:
        """Whether its own code may run; an error where nothing goes without it."""
        from transformers import CONFIG_MAPPING

        settings = settings_of(folder / "config.json")
        whose = sorted(origins(settings, self.source))
        if whose and not self.of(settings) and settings.get("model_type") not in CONFIG_MAPPING:
            raise ValueError(
                f"{self.source} needs Python code of {' and '.join(whose)}, which is not run "
                f"unless you have read it and trust it by name: --trust {whose[0]}"
            )
        return self.of(settings)


def _without_hub_kernels(config: Any) -> list[str]:
    """A config can name an attention kernel of the hub, which is code: not by its own wish."""
    parts = [config, *(getattr(config, name, None) for name in config.sub_configs)]
    asked = {str(getattr(part, "_attn_implementation", None)) for part in parts}
    kernels = sorted(name for name in asked if "/" in name)
    if not kernels:
        return []
    config._attn_implementation = None
    return [f"the config asks for the kernel {kernels[0]}: the default attention is used instead"]


def _head(config: Any, task: str, gguf: bool, code: bool) -> tuple[str, Any]:
    """The task, and the class that loads it."""
    import transformers

    def known(task: str) -> bool:
        kind = getattr(transformers, CLASSES[task])
        own = getattr(config, "auto_map", None) or {}
        return type(config) in kind._model_mapping or (code and CLASSES[task] in own)

    if task == "auto":
        architecture = (config.architectures or ["ForCausalLM" if gguf else ""])[0]
        ending = next((end for end in ENDINGS if architecture.endswith(end)), None)
        task = ENDINGS[ending] if ending else "base"
        if architecture.endswith("ForConditionalGeneration"):
            task = "seq2seq" if config.is_encoder_decoder else "causal"
        task = task if known(task) else "base"
    elif not known(task):
        raise ValueError(f"task {task!r}: a model of type {config.model_type} has no such head")
    return task, getattr(transformers, CLASSES[task])


def _about_weights(place: Path, found: dict[str, Any]) -> list[str]:
    """How the file and the model differ: an error if attention is concerned."""
    if found["mismatched_keys"]:
        name, got, wanted = sorted(found["mismatched_keys"])[0]
        raise ValueError(
            f"{place}: {len(found['mismatched_keys'])} weights do not fit the config: {name} is "
            f"{tuple(got)} and should be {tuple(wanted)}"
        )
    missing = found["missing_keys"]
    attention = [name for name in missing if re.search("attn|attention", name, re.IGNORECASE)]
    if attention:
        raise ValueError(f"{place}: weights of attention are not in the file: {_some(attention)}")
    notes = []
    if missing:
        notes.append(f"not in the file and so drawn at random: {_some(missing)}")
    if found["unexpected_keys"]:
        notes.append(f"in the file and not used: {_some(found['unexpected_keys'])}")
    return notes


def _some(names: Iterable[str], most: int = 4) -> str:
    """
    >>> _some(["h.0.attn.bias", "h.1.attn.bias", "ln.weight"])
    'h.*.attn.bias, ln.weight'
    """
    kinds = sorted({re.sub(r"\.\d+\.", ".*.", name) for name in names})
    return ", ".join(kinds[:most]) + (f" and {len(kinds) - most} more" if len(kinds) > most else "")


def _tokenizer(
    folder: Path, config: Any, trust: _Trust, shared: dict[str, Any]
) -> tuple[Any, list[str]]:
    """Without a vocabulary Hugging Face would make an empty tokenizer: the files are looked for."""
    import transformers

    if not shared and not any(path for name in VOCABULARIES for path in folder.glob(name)):
        return None, ["no tokenizer: random tokens are used"]
    file = folder / "tokenizer_config.json"
    try:
        code = not shared and file.is_file() and trust.of(settings_of(file))
        options = {"config": config, "trust_remote_code": code, **shared}
        return transformers.AutoTokenizer.from_pretrained(folder, **options), []
    except Exception as error:
        return None, [f"random tokens are used, the tokenizer cannot be: {_first_line(error)}"]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars, no chatter of Hugging Face; as before afterwards."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # a bar of the GGUF reader knows no switch
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


@contextlib.contextmanager
def _clearly(situation: str) -> Iterator[None]:
    """Damaged files raise errors of any kind: one sentence instead."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"{situation}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
