"""What a model is looked at with: pieces of a text as tokens, random tokens, random images.

Of a text only the pieces that are used are read, so that its size does not matter.
"""

import codecs
import contextlib
import dataclasses
import gzip
import os
import re
import zlib
from collections.abc import Callable, Iterator
from io import BufferedIOBase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnflow._checks import at_least, choice
from attnflow.torch.loading import Loaded

TEXTS = {
    "wikitext-2": ("test.txt.gz", "test.txt", "valid.txt.gz", "valid.txt"),
    "tinyshakespeare": ("input.txt.gz", "input.txt"),
}
WHERE = {
    "wikitext-2": "https://github.com/pytorch/examples/tree/main/word_language_model/data",
    "tinyshakespeare": "https://github.com/karpathy/char-rnn/tree/master/data",
}
BYTES_PER_TOKEN = (8, 64, 512)  # tried in turn: a usual text has 1 to 6
Encode = Callable[[str], list[int]]


@dataclasses.dataclass(frozen=True)
class Batch:
    """Inputs of a model, in words `described`. All sequences have one length: nothing is padded.

    Among them are labels, the tokens themselves, where a model makes a loss of them (causal and
    seq2seq).
    """

    described: str
    inputs: dict[str, Tensor]
    notes: tuple[str, ...] = ()

    @property
    def input_ids(self) -> Tensor:
        return self.inputs["input_ids"]

    @property
    def pixel_values(self) -> Tensor:
        return self.inputs["pixel_values"]

    def as_inputs(self) -> dict[str, Tensor]:
        """For `model(**batch.as_inputs())`."""
        return dict(self.inputs)


def example_batch(
    loaded: Loaded,
    text: str | Path | None = None,
    *,
    sequences: int = 8,
    length: int = 512,
    seed: int = 0,
) -> Batch:
    """Images for a model that takes images, tokens for all others."""
    if text is None and loaded.model.main_input_name == "pixel_values":
        return image_batches(loaded, images=sequences, seed=seed)
    return token_batches(loaded, text, sequences=sequences, length=length, seed=seed)


def token_batches(
    loaded: Loaded,
    text: str | Path | None = None,
    *,
    sequences: int = 8,
    length: int = 512,
    seed: int = 0,
) -> Batch:
    """Sequences of tokens from evenly spaced places of a text file (UTF-8, may be gzipped).

    Each is framed as the tokenizer frames a fresh text (BOS; [CLS] and [SEP]), within `length`. Of
    a text that is too short there are fewer sequences, or a shorter one. Without a text: random
    tokens. Cost: reads and tokenises what is used; of a gzipped file all is unpacked, not kept.
    """
    at_least("sequences", sequences, 1)
    at_least("length", length, 1)
    _takes(loaded, "input_ids", "token_batches")
    if text is not None and loaded.tokenizer is None:
        raise ValueError(f"{loaded.name} has no tokenizer, so no text can be read: leave it out")
    notes = []
    longest = _longest(loaded)
    if longest is not None and length > longest:
        notes.append(f"{loaded.name} takes no more than {longest} tokens (asked for {length})")
        length = longest
    before, after = _frame(loaded.tokenizer)
    framing = len(before) + len(after)
    at_least("length", length, framing + 1, "special tokens and at least one of the text")
    if text is None:
        rows = _random_rows(loaded, sequences, length - framing, seed)
        origin = "random tokens"
        way_out = "" if loaded.tokenizer is None else ": give a text with --text FILE"
        notes.append(f"random tokens say little of attention{way_out}")
    else:
        path = Path(text).expanduser()
        rows = _rows_of_file(path, _encoder(loaded.tokenizer), sequences, length - framing)
        origin = f"tokens from {path.name}"
    shape = f"{len(rows)} × {len(rows[0]) + framing}"
    if shape != f"{sequences} × {length}":
        notes.append(f"{text} is short: {shape} tokens instead of {sequences} × {length}")
    ids = torch.tensor([[*before, *row, *after] for row in rows])
    if int(ids.max()) >= _vocabulary(loaded):
        raise ValueError(
            f"{loaded.name}: the tokenizer gives token {int(ids.max())} and the model knows "
            f"{_vocabulary(loaded)}: the tokenizer belongs to another model"
        )
    ids = ids.to(loaded.model.device)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if loaded.task in ("causal", "seq2seq"):
        inputs["labels"] = ids
    return Batch(f"{shape} {origin}", inputs, tuple(notes))


def image_batches(loaded: Loaded, *, images: int = 8, seed: int = 0) -> Batch:
    """Normal random images of the size that the model takes."""
    at_least("images", images, 1)
    _takes(loaded, "pixel_values", "image_batches")
    config, model = loaded.model.config, loaded.model
    size = getattr(config, "image_size", None)
    if size is None:
        raise ValueError(f"{loaded.name}: its config does not say the size of its images")
    height, width = (size, size) if isinstance(size, int) else size
    channels = getattr(config, "num_channels", 3)
    draw = torch.Generator().manual_seed(seed)
    pixels = torch.randn(images, channels, height, width, generator=draw)
    return Batch(
        f"{images} random images of {height} × {width}",
        {"pixel_values": pixels.to(model.device, model.dtype)},
        ("random images say little of attention on real ones",),
    )


def find_text(name: str, data: str | Path | None = None) -> Path:
    """The file of a known text in the folder `data`, or in that of the variable ATTNFLOW_DATA."""
    choice("text", name, TEXTS)
    data = data or os.environ.get("ATTNFLOW_DATA")
    if data is None:
        raise ValueError(
            f"{name}: say where texts are, with --data DIR or in the variable ATTNFLOW_DATA"
        )
    folder = Path(data).expanduser() / name
    for file in TEXTS[name]:
        if (folder / file).is_file():
            return folder / file
    raise ValueError(
        f"{folder} has none of {', '.join(TEXTS[name])}: they can be fetched from {WHERE[name]}"
    )


def _takes(loaded: Loaded, wanted: str, caller: str) -> None:
    takes = loaded.model.main_input_name
    if takes != wanted:
        way_out = {"input_ids": "token_batches", "pixel_values": "image_batches"}.get(takes)
        hint = f"use {way_out}" if way_out else "only tokens and images are known here"
        raise ValueError(f"{caller}: {loaded.name} takes {takes}, not {wanted}: {hint}")


def _longest(loaded: Loaded) -> int | None:
    config = loaded.model.config.get_text_config()
    limits = [getattr(config, "max_position_embeddings", None)]
    limits.append(getattr(loaded.tokenizer, "model_max_length", None))
    for name, module in loaded.model.named_modules():
        first = getattr(module, "padding_idx", None)
        if name.endswith("position_embeddings") and first is not None:  # RoBERTa counts from it
            limits.append(module.num_embeddings - first - 1)
    known = [limit for limit in limits if isinstance(limit, int) and limit > 0]
    return min(known, default=None)


def _vocabulary(loaded: Loaded) -> int:
    return loaded.model.get_input_embeddings().weight.shape[0]


def _random_rows(loaded: Loaded, sequences: int, length: int, seed: int) -> list[list[int]]:
    known = _vocabulary(loaded)
    if loaded.tokenizer is not None:  # embeddings can be padded beyond the last token
        known = min(known, len(loaded.tokenizer))
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(known, (sequences, length), generator=draw).tolist()


def _frame(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The special tokens before and after every fresh text."""
    if tokenizer is None:
        return [], []
    framed, bare = tokenizer("a").input_ids, _encoder(tokenizer)("a")
    starts = range(len(framed) - len(bare) + 1)
    start = next((i for i in starts if bare and framed[i : i + len(bare)] == bare), len(framed))
    return framed[:start], framed[start + len(bare) :]


def _encoder(tokenizer: Any) -> Encode:
    def encode(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False, verbose=False).input_ids

    return encode


def _rows_of_file(path: Path, encode: Encode, sequences: int, length: int) -> list[list[int]]:
    """Up to so many rows of that length; one shorter row if the text has no more."""
    with _opened(path) as file:
        size = file.seek(0, os.SEEK_END)
        share = size // sequences
        rows = []
        for i in range(sequences):
            row = _first_tokens(path, file, i * share, share, encode, length)
            if len(row) < length:
                break
            rows.append(row[:length])
        if len(rows) == sequences:
            return rows
        every = encode(_piece(path, file, 0, size))
    if not every:
        raise ValueError(f"{path} holds no text")
    count = min(sequences, max(1, len(every) // length))
    starts = [i * len(every) // count for i in range(count)]
    return [every[start : start + length] for start in starts]


def _first_tokens(
    path: Path, file: BufferedIOBase, start: int, share: int, encode: Encode, length: int
) -> list[int]:
    """At least `length` tokens if the share of the file has them."""
    for each in BYTES_PER_TOKEN:
        count = min(share, each * length)
        row = encode(_piece(path, file, start, count))
        if len(row) >= length or count == share:
            return row
    raise ValueError(f"{path} is no usual text: {count} bytes of it hold {len(row)} tokens")


def _piece(path: Path, file: BufferedIOBase, start: int, count: int) -> str:
    """Whole words, where there are spaces."""
    file.seek(start)
    data = file.read(count)
    more = bool(file.read(1))
    if b"\0" in data:
        raise ValueError(f"{path} is no text in UTF-8: it holds zero bytes (binary, or UTF-16)")
    if start:
        data = data.lstrip(bytes(range(0x80, 0xC0)))  # the rest of a character that began before
    try:
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(data, final=not more)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text in UTF-8: {error.reason}") from error
    if start:
        text = re.sub(r"^\S*\s+", "", text)
    if more:
        text = re.sub(r"(?<=\s)\S*$", "", text)
    return text if text.strip() else ""


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BufferedIOBase]:
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give a text file")
    if not path.is_file():
        raise ValueError(f"{path}: there is no such text file")
    try:
        with path.open("rb") as file:
            zipped = file.read(2) == b"\x1f\x8b"
        with gzip.open(path) if zipped else path.open("rb") as file:
            yield file
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
