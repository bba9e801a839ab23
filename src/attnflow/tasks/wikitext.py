"""WikiText-2 in word pieces: chunks of one length, and two tasks that are told from CLS.

It is the word-tokenized version, where rare words are <unk>: they become [UNK]. Lines are encoded
without special tokens and joined.
"""

import functools
import importlib.util
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from attnflow._checks import at_least, choice
from attnflow.tasks import files

SPLITS = ("train", "valid", "test")
WORDS = "bert-base-uncased-vocab/vocab.txt"
VOCABULARY = 30_522
UNKNOWN, CLS, THE = 100, 101, 1996  # [UNK], [CLS], the


class Labelled(NamedTuple):
    """tokens (chunk, position), CLS first; targets (chunk)."""

    tokens: np.ndarray
    targets: np.ndarray


def chunks(split: str = "train", length: int = 64, data: str | Path | None = None) -> np.ndarray:
    """Word pieces (chunk, position): the text cut without overlap, the rest at its end dropped.

    Cost: some seconds for all of "train" (2.2 million pieces), then kept. Needs `tokenizers`.
    """
    choice("split", split, SPLITS)
    at_least("length", length, 2, "a chunk is a context and what follows")
    data = os.environ.get("ATTNFLOW_DATA") if data is None else data
    pieces = _pieces(split, None if data is None else str(data))
    count = len(pieces) // length
    return pieces[: count * length].reshape(count, length)


def next_piece(chunks: np.ndarray) -> Labelled:
    """CLS and all of a chunk but its last piece, which is the target.

    >>> next_piece(np.array([[7, 8, 9]]))
    Labelled(tokens=array([[101,   7,   8]]), targets=array([9]))
    """
    return Labelled(_after_cls(chunks[:, :-1]), chunks[:, -1])


def contains(chunks: np.ndarray, piece: int = THE) -> Labelled:
    """CLS and the whole chunk; the target is 1 if the piece ("the") is in it, else 0.

    >>> contains(np.array([[7, 8, 9], [7, 1996, 9]])).targets
    array([0, 1])
    """
    return Labelled(_after_cls(chunks), (chunks == piece).any(axis=1).astype(np.int64))


def some(task: Labelled, seed: int, step: int, size: int) -> Labelled:
    """A random batch without repeats, from (seed, step) alone."""
    for name, value, low in (("seed", seed, 0), ("step", step, 0), ("size", size, 1)):
        at_least(name, value, low)
    if size > len(task.targets):
        raise ValueError(f"a batch of {size} does not repeat: there are {len(task.targets)} chunks")
    rng = np.random.default_rng([seed, step])
    chosen = rng.choice(len(task.targets), size, replace=False, shuffle=False)
    return Labelled(task.tokens[chosen], task.targets[chosen])


def word_pieces(vocabulary: bytes) -> Any:
    """A tokenizer of the package tokenizers: uncased word pieces, of a list of words a line."""
    if importlib.util.find_spec("tokenizers") is None:
        raise ValueError("word pieces need the package tokenizers: pip install tokenizers")
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    words = vocabulary.decode("utf-8").splitlines()
    numbered = {word: number for number, word in enumerate(words)}
    model = models.WordPiece(numbered, unk_token="[UNK]")  # pyright: ignore
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)  # pyright: ignore
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()  # pyright: ignore
    tokenizer.add_special_tokens(["[UNK]"])  # else it would be cut at its brackets
    return tokenizer


@functools.lru_cache(maxsize=len(SPLITS))
def _pieces(split: str, data: str | None) -> np.ndarray:
    tokenizer = word_pieces(files.read(WORDS, data))
    text = files.read(f"wikitext-2/{split}.txt", data).decode("utf-8").replace("<unk>", "[UNK]")
    lines = [line.ids for line in tokenizer.encode_batch_fast(text.splitlines())]
    found = np.fromiter((piece for line in lines for piece in line), np.int64)
    found.flags.writeable = False  # it is shared by all who ask
    return found


def _after_cls(pieces: np.ndarray) -> np.ndarray:
    return np.column_stack([np.full(len(pieces), CLS), pieces])
