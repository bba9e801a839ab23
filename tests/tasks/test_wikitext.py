import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from attnflow.tasks import files, wikitext
from attnflow.tasks.wikitext import CLS, THE, UNKNOWN, chunks, contains, next_piece, some

WORDS = ["[PAD]", "[UNK]", "the", "cat", "sat", "##s", "s", "."]


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A tiny text and vocabulary with their checksums."""
    pytest.importorskip("tokenizers", reason="the package tokenizers is not installed")
    made = {
        wikitext.WORDS: "\n".join(WORDS) + "\n",
        "wikitext-2/valid.txt": " The cats sat .\n\n the <unk> zebra sat .\n cat\n",
    }
    for name, text in made.items():
        content = text.encode()
        known = files.Known(len(content), hashlib.sha256(content).hexdigest(), "here")
        monkeypatch.setitem(files.FILES, name, known)
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    return tmp_path


def test_chunks_of_a_small_text_by_hand(made):
    """the cat ##s sat . | the [UNK] [UNK] sat . | cat: the last is left over."""
    assert chunks("valid", 5, made).tolist() == [[2, 3, 5, 4, 7], [2, 1, 1, 4, 7]]
    assert chunks("valid", 3, made).shape == (3, 3)


def test_a_corrupt_text_is_named(made):
    path = made / "wikitext-2/valid.txt"
    path.write_bytes(b"changed")
    with pytest.raises(files.DataError, match=r"valid\.txt is corrupt"):
        chunks("valid", 5, made)


def test_tasks_by_hand():
    rows = np.array([[5, 6, THE], [7, 8, 9]])
    tokens, targets = next_piece(rows)
    assert tokens.tolist() == [[CLS, 5, 6], [CLS, 7, 8]]
    assert targets.tolist() == [THE, 9]
    tokens, targets = contains(rows)
    assert tokens.tolist() == [[CLS, 5, 6, THE], [CLS, 7, 8, 9]]
    assert targets.tolist() == [1, 0]


def test_batches_do_not_repeat_and_depend_on_seed_and_step_alone():
    task = next_piece(np.arange(60).reshape(20, 3))
    one = some(task, 1, 5, 20)
    assert sorted(one.targets.tolist()) == sorted(task.targets.tolist())
    np.testing.assert_array_equal(one.tokens[:, 2] + 1, one.targets)
    few = some(task, 1, 5, 4)
    assert few.tokens.shape == (4, 3)
    assert few.targets.tolist() == some(task, 1, 5, 4).targets.tolist()
    assert few.targets.tolist() != some(task, 1, 6, 4).targets.tolist()
    with pytest.raises(ValueError, match="there are 20 chunks"):
        some(task, 1, 5, 21)
    with pytest.raises(ValueError, match="size"):
        some(task, 1, 5, 0)


def test_the_real_text():
    folder = os.environ.get("ATTNFLOW_DATA", "")
    if not folder or not (Path(folder) / "wikitext-2").is_dir():
        pytest.skip("ATTNFLOW_DATA names no folder with wikitext-2")
    tokenizers = pytest.importorskip("tokenizers")
    words = files.read(wikitext.WORDS, folder).decode().splitlines()
    assert len(words) == wikitext.VOCABULARY
    assert [words[i] for i in (UNKNOWN, CLS, THE)] == ["[UNK]", "[CLS]", "the"]
    found = chunks("valid", 64, folder)
    assert found.shape == (3515, 64)
    assert 0.9 < contains(found).targets.mean() < 1
    published = Path(folder) / "bert-base-uncased-vocab" / "tokenizer.json"
    other = tokenizers.Tokenizer.from_file(str(published))
    other.no_truncation()
    other.no_padding()
    text = files.read("wikitext-2/valid.txt", folder).decode().replace("<unk>", "[UNK]")
    lines = text.splitlines()[:200]
    wanted = [p for line in lines for p in other.encode(line, add_special_tokens=False).ids]
    count = len(wanted) // 64
    assert found[:count].ravel().tolist() == wanted[: 64 * count]


def test_bad_input():
    with pytest.raises(ValueError, match="did you mean 'train'"):
        chunks("trian")
    with pytest.raises(ValueError, match="length"):
        chunks("valid", 1)
