"""Characters as tokens, so that every sequence can be compared with the text it came from."""

import gzip
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="the extra [torch] is not installed")
hf = pytest.importorskip("transformers", reason="transformers is not installed")

from tokenizers import Tokenizer, models, pre_tokenizers, processors  # noqa: E402

from attnflow.torch import texts  # noqa: E402
from attnflow.torch.loading import Loaded, load_model  # noqa: E402
from attnflow.torch.texts import (  # noqa: E402
    example_batch,
    find_text,
    image_batches,
    token_batches,
)
from tests.torch import zoo  # noqa: E402

LETTERS = "abcdefghijklmnopqrstuvwxyzé中文字 \n"
SPECIAL = ["<unk>", "<s>", "</s>"]


def characters(frame="<s> $A"):
    """One token a character, in a frame of special tokens."""
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *LETTERS])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    if frame is not None:
        ends = [("<s>", 1), ("</s>", 2)]
        tokenizer.post_processor = processors.TemplateProcessing(single=frame, special_tokens=ends)
    return hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


def loaded(name="llama", frame="<s> $A", task="causal"):
    return Loaded(zoo.built(name), characters(frame), name, None, task)


def decoded(batch):
    known = [*SPECIAL, *LETTERS]
    return ["".join(known[i] for i in row) for row in batch.input_ids.tolist()]


def words(count):
    """Words of one to nine letters, each with its own number in it."""
    letters = LETTERS[:26]
    return [
        "".join(letters[(7 * i + j) % 26] for j in range(1 + (5 * i) % 9)) for i in range(count)
    ]


@pytest.fixture
def long_text(tmp_path):
    file = tmp_path / "long.txt"
    file.write_text(" ".join(words(4000)))
    return file


def whole_text_cut(text, sequences, length):
    """The obvious way: the first word after each of evenly spaced places, and on from there."""
    rows = []
    for i in range(sequences):
        start = i * (len(text) // sequences)
        if start:
            while not text[start].isspace():
                start += 1
            while text[start].isspace():
                start += 1
        rows.append(text[start : start + length])
    return rows


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize(("sequences", "length"), [(8, 64), (1, 10), (50, 33)])
def test_evenly_spaced_pieces_of_a_text(long_text, tmp_path, sequences, length, zipped):
    file, text = long_text, long_text.read_text()
    if zipped:
        file = tmp_path / "long.txt.gz"
        file.write_bytes(gzip.compress(long_text.read_bytes()))
    batch = token_batches(loaded(), file, sequences=sequences, length=length)
    expected = ["<s>" + row for row in whole_text_cut(text, sequences, length - 1)]
    assert decoded(batch) == expected
    assert batch.input_ids.shape == (sequences, length)
    assert batch.described == f"{sequences} × {length} tokens from {file.name}"
    assert batch.notes == ()


@pytest.mark.parametrize(
    ("frame", "before", "after"),
    [
        (None, "", ""),
        ("<s> $A", "<s>", ""),
        ("<s> $A </s>", "<s>", "</s>"),
        ("$A </s>", "", "</s>"),
    ],
)
def test_each_sequence_is_framed_as_a_fresh_text(long_text, frame, before, after):
    batch = token_batches(loaded(frame=frame), long_text, sequences=3, length=20)
    room = 20 - (before != "") - (after != "")
    pieces = whole_text_cut(long_text.read_text(), 3, room)
    assert decoded(batch) == [before + piece + after for piece in pieces]


def test_letters_of_several_bytes_are_not_cut(tmp_path):
    file = tmp_path / "chinese.txt"
    file.write_text("\ufeff" + "é中文字" * 2000, encoding="utf-8")
    for sequences in range(1, 12):  # every way to land within a letter
        rows = decoded(token_batches(loaded(), file, sequences=sequences, length=40))
        assert len(rows) == sequences
        assert all(row[3:] in "é中文字" * 20 for row in rows)


def test_words_are_not_cut(tmp_path):
    """Words of seven letters and a space: eight bytes a token, as many as are read at first."""
    words = ["abcdefg", "hijklmn", "opqrstu"]
    vocabulary = {word: i for i, word in enumerate(["<unk>", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    wordwise = hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")
    known = Loaded(zoo.built("llama"), wordwise, "llama", None, "causal")
    file = tmp_path / "words.txt"
    file.write_text(" ".join(words * 300))
    for sequences in range(1, 9):
        ids = token_batches(known, file, sequences=sequences, length=20).input_ids
        assert ids.shape == (sequences, 20)
        assert (ids.diff() % 3 == 1).all()
        assert ids.min() == 1


def test_a_short_text_gives_fewer_or_shorter_sequences(tmp_path):
    file = tmp_path / "short.txt"
    file.write_text("ab cd ef " * 5)
    fewer = token_batches(loaded(), file, sequences=8, length=16)
    assert decoded(fewer) == ["<s>" + ("ab cd ef " * 5)[i : i + 15] for i in (0, 15, 30)]
    assert fewer.notes == (f"{file} is short: 3 × 16 tokens instead of 8 × 16",)
    shorter = token_batches(loaded(), file, sequences=8, length=64)
    assert decoded(shorter) == ["<s>" + "ab cd ef " * 5]
    assert shorter.described == "1 × 46 tokens from short.txt"


def test_length_is_cut_to_what_the_model_takes(long_text):
    batch = token_batches(loaded(), long_text, sequences=2, length=512)
    assert batch.input_ids.shape == (2, 64)
    assert batch.notes == ("llama takes no more than 64 tokens (asked for 512)",)
    known = loaded()
    known.tokenizer.model_max_length = 48
    assert token_batches(known, long_text, sequences=2).input_ids.shape == (2, 48)
    config = hf.RobertaConfig(**zoo.SMALL, **zoo.FORWARD, max_position_embeddings=42)
    roberta = Loaded(hf.RobertaForMaskedLM(config), characters(), "roberta", None, "masked")
    batch = token_batches(roberta, long_text, sequences=2)
    assert batch.input_ids.shape == (2, 40)  # two places are not for tokens
    assert roberta.model(**batch.as_inputs()).logits.shape == (2, 40, 64)


def test_only_what_is_used_is_read(tmp_path, monkeypatch):
    file = tmp_path / "large.txt"
    file.write_bytes(b"ab cd ef " * 1_000_000)
    read = []
    real = texts._piece
    monkeypatch.setattr(texts, "_piece", lambda *args: read.append(args[3]) or real(*args))
    rows = decoded(token_batches(loaded(), file, sequences=3, length=10))
    assert all(row[3:] in "ab cd ef " * 3 for row in rows)
    assert sum(read) == 3 * 8 * 9


def test_a_text_of_hardly_any_tokens(tmp_path):
    """The reading stops long before the end of a file that is no usual text."""
    file = tmp_path / "blank.txt"
    file.write_text("a" + " " * 10_000_000)
    known = loaded()
    known = Loaded(known.model, Dense(known.tokenizer), "llama", None, "causal")
    with pytest.raises(ValueError, match="is no usual text: 32256 bytes of it hold 0 tokens"):
        token_batches(known, file, sequences=2, length=64)


class Dense:
    """Leaves out all blanks."""

    model_max_length = 1000

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def __call__(self, text, **options):
        return self.tokenizer("".join(text.split()).removeprefix("a") or "", **options)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no text"),
        (b" \n \n", "holds no text"),
        (b"ab\0cd", "zero bytes"),
        ("abc".encode("utf-16"), "is no text in UTF-8"),
        (b"abc \xff\xfe abc", "is no text in UTF-8"),
        (gzip.compress(b"abc" * 100, mtime=0)[:-12], "cannot be read"),
        (gzip.compress(b"\0", mtime=0), "zero bytes"),
    ],
)
def test_files_that_are_no_texts(tmp_path, content, message):
    file = tmp_path / "file.txt"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=f"file.txt .*{message}"):
        token_batches(loaded(), file)


def test_places_that_hold_no_text(tmp_path):
    with pytest.raises(ValueError, match="is a folder: give a text file"):
        token_batches(loaded(), tmp_path)
    with pytest.raises(ValueError, match="there is no such text file"):
        token_batches(loaded(), tmp_path / "nowhere.txt")


def test_bad_requests(long_text):
    without = Loaded(zoo.built("llama"), None, "llama", None, "causal")
    with pytest.raises(ValueError, match="llama has no tokenizer, so no text can be read"):
        token_batches(without, long_text)
    with pytest.raises(ValueError, match="sequences must be a whole number of at least 1"):
        token_batches(loaded(), long_text, sequences=0)
    with pytest.raises(ValueError, match="length must be a whole number of at least 3"):
        token_batches(loaded(frame="<s> $A </s>"), long_text, length=2)
    foreign = loaded()
    foreign.tokenizer.add_tokens([f"w{i}" for i in range(100)])
    long_text.write_text("w99 " * 500)
    last = len(SPECIAL) + len(LETTERS) + 99
    with pytest.raises(ValueError, match=f"gives token {last} and the model knows 64"):
        token_batches(foreign, long_text)
    with pytest.raises(ValueError, match="vit takes pixel_values, not input_ids: use image_b"):
        example_batch(Loaded(zoo.built("vit"), None, "vit"), long_text)
    with pytest.raises(ValueError, match="llama takes input_ids, not pixel_values: use token_b"):
        image_batches(loaded())


def test_random_tokens():
    without = Loaded(zoo.built("llama"), None, "llama", None, "causal")
    batch = token_batches(without, sequences=4, length=32, seed=3)
    again = token_batches(without, sequences=4, length=32, seed=3)
    other = token_batches(without, sequences=4, length=32, seed=4)
    assert torch.equal(batch.input_ids, again.input_ids)
    assert not torch.equal(batch.input_ids, other.input_ids)
    assert batch.described == "4 × 32 random tokens"
    assert batch.notes == ("random tokens say little of attention",)
    assert batch.input_ids.unique().numel() > 40  # of 64, drawn 128 times
    framed = token_batches(loaded(), sequences=4, length=32)
    assert framed.notes[0].endswith("attention: give a text with --text FILE")
    assert (framed.input_ids[:, 0] == 1).all()
    assert framed.input_ids.max() < len(characters())


@pytest.mark.parametrize(("name", "task"), [("llama", "causal"), ("gpt2", "causal")])
def test_causal_models_get_their_labels(long_text, name, task):
    known = loaded(name, task=task)
    batch = token_batches(known, long_text, sequences=2, length=16)
    output = known.model(**batch.as_inputs())
    logits = output.logits[:, :-1].flatten(0, 1)
    loss = torch.nn.functional.cross_entropy(logits, batch.input_ids[:, 1:].flatten())
    torch.testing.assert_close(output.loss, loss)


def test_encoders_get_tokens_without_labels(long_text):
    known = loaded("bert", "<s> $A </s>", "masked")
    inputs = token_batches(known, long_text, sequences=2, length=16).as_inputs()
    assert inputs.keys() == {"input_ids", "attention_mask"}
    assert known.model(**inputs).logits.shape == (2, 16, 64)


def test_images():
    known = Loaded(zoo.built("vit"), None, "vit", None, "image")
    batch = example_batch(known, sequences=3)
    assert batch.pixel_values.shape == (3, 3, 16, 16)
    assert torch.equal(batch.pixel_values, image_batches(known, images=3).pixel_values)
    assert batch.described == "3 random images of 16 × 16"
    assert known.model(**batch.as_inputs()).logits.shape == (3, 2)
    nameless = Loaded(SimpleNamespace(main_input_name="pixel_values", config=None), None, "vit")
    with pytest.raises(ValueError, match="does not say the size of its images"):
        image_batches(nameless)


def test_finding_texts(tmp_path, monkeypatch):
    monkeypatch.delenv("ATTNFLOW_DATA", raising=False)
    with pytest.raises(ValueError, match="--data DIR or in the variable ATTNFLOW_DATA"):
        find_text("wikitext-2")
    with pytest.raises(ValueError, match="did you mean 'wikitext-2'"):
        find_text("wikitext2", tmp_path)
    with pytest.raises(ValueError, match=r"tinyshakespeare has none of .*fetched from https"):
        find_text("tinyshakespeare", tmp_path)
    for name, file in (("wikitext-2", "valid.txt"), ("wikitext-2", "test.txt.gz")):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / file).write_text("text")
        assert find_text(name, tmp_path) == tmp_path / name / file
    monkeypatch.setenv("ATTNFLOW_DATA", str(tmp_path))
    assert find_text("wikitext-2") == tmp_path / "wikitext-2" / "test.txt.gz"


def test_a_trained_model_reads_a_real_text():
    """Better than guessing among 512 tokens, by far, though it only knows stories for children."""
    data = Path(os.environ.get("ATTNFLOW_DATA", ""))
    if not (data / "stories260K" / "config.json").is_file():
        pytest.skip("ATTNFLOW_DATA names no folder with stories260K")
    stories = load_model(data / "stories260K")
    batch = token_batches(stories, find_text("tinyshakespeare"), sequences=4, length=128)
    assert batch.notes == ()
    assert (batch.input_ids[:, 0] == stories.tokenizer.bos_token_id).all()
    with torch.no_grad():
        assert stories.model(**batch.as_inputs()).loss.exp() < 150
