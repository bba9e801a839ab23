import gzip
import hashlib
import io
import os
import tarfile
import zipfile
from pathlib import Path

import pytest

from attnflow.tasks import files
from attnflow.tasks.files import DataError, Known, read

CONTENT = b"some numbers"
NAME = "kind/numbers.bin"
ORIGINAL = os.environ.get("ATTNFLOW_DATA", "")  # tests of made files do without it


@pytest.fixture(autouse=True)
def _one_known_file(monkeypatch, tmp_path):
    digest = hashlib.sha256(CONTENT).hexdigest()
    monkeypatch.setitem(files.FILES, NAME, Known(len(CONTENT), digest, "a good place"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.delenv("ATTNFLOW_DATA", raising=False)


def put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("place", ["kind/numbers.bin", "numbers.bin"])
@pytest.mark.parametrize("packed", [True, False])
def test_a_file_in_the_folder(tmp_path, place, packed):
    ending, content = (".gz", gzip.compress(CONTENT)) if packed else ("", CONTENT)
    put(tmp_path / (place + ending), content)
    assert read(NAME, tmp_path) == CONTENT


def test_the_variable_names_the_folder(tmp_path, monkeypatch):
    put(tmp_path / "there" / NAME, CONTENT)
    monkeypatch.setenv("ATTNFLOW_DATA", str(tmp_path / "there"))
    assert read(NAME) == CONTENT
    put(tmp_path / "given" / NAME, b"other")
    with pytest.raises(DataError, match="given"):  # what is given comes first
        read(NAME, tmp_path / "given")


def test_a_wheel_and_a_tarball(tmp_path):
    with zipfile.ZipFile(tmp_path / "some-1.0-py3-none-any.whl", "w") as package:
        package.writestr("some/other/numbers.bin", b"another file of this name")
        package.writestr("some/data/numbers.bin", CONTENT)
    assert read(NAME, tmp_path) == CONTENT
    folder = tmp_path / "npm"
    folder.mkdir()
    packed = gzip.compress(CONTENT)
    with tarfile.open(folder / "some-1.0.tgz", "w:gz") as package:
        member = tarfile.TarInfo("package/numbers.bin.gz")
        member.size = len(packed)
        package.addfile(member, io.BytesIO(packed))
    assert read(NAME, folder) == CONTENT


def test_a_damaged_package(tmp_path):
    put(tmp_path / "broken.whl", b"no zip")
    with pytest.raises(DataError, match=r"broken\.whl is no package"):
        read(NAME, tmp_path)


def test_the_hub_cache_has_other_files_of_that_name(tmp_path):
    put(tmp_path / "hub/models--a/snapshots/1/numbers.bin", b"other")
    with pytest.raises(DataError, match="missing"):
        read(NAME)
    put(tmp_path / "hub/models--b/snapshots/1/deep/numbers.bin", CONTENT)
    assert read(NAME) == CONTENT


def test_a_wrong_checksum_names_the_file(tmp_path):
    path = put(tmp_path / f"{NAME}.gz", gzip.compress(CONTENT[:-1] + b"X"))
    with pytest.raises(DataError) as caught:
        read(NAME, tmp_path)
    told = str(caught.value)
    for part in (str(path), files.FILES[NAME].sha256, "12 bytes", "a good place"):
        assert part in told


def test_a_torn_file_names_the_file(tmp_path):
    path = put(tmp_path / f"{NAME}.gz", gzip.compress(CONTENT)[:-6])
    with pytest.raises(DataError, match="cannot be unpacked") as caught:
        read(NAME, tmp_path)
    assert str(path) in str(caught.value)


def test_a_missing_file_says_how_to_get_it(tmp_path):
    with pytest.raises(DataError) as caught:
        read(NAME, tmp_path)
    told = str(caught.value)
    parts = ("numbers.bin is missing", str(tmp_path), "hub", "a good place", "--data DIR")
    for part in (*parts, "ATTNFLOW_DATA"):
        assert part in told
    with pytest.raises(DataError, match="none was given"):
        read(NAME)


def test_a_missing_folder(tmp_path):
    with pytest.raises(DataError, match="no such data folder"):
        read(NAME, tmp_path / "nowhere")


def test_an_unknown_name():
    with pytest.raises(ValueError, match=r"did you mean 'wikitext-2/train\.txt'"):
        read("wikitext2/train.txt")


def test_sizes_are_those_of_the_content(tmp_path):
    """The table is right in itself: images have 784 bytes each, after a head of 16."""
    assert files.FILES["mnist/train-images-idx3-ubyte"].bytes == 16 + 60_000 * 784
    assert files.FILES["mnist/t10k-labels-idx1-ubyte"].bytes == 8 + 10_000
    assert all(len(each.sha256) == 64 for each in files.FILES.values())


def data_folder(name: str) -> str:
    if not ORIGINAL or not (Path(ORIGINAL) / name).is_dir():
        pytest.skip(f"ATTNFLOW_DATA names no folder with {name}")
    return ORIGINAL


@pytest.mark.parametrize("name", ["mnist/t10k-images-idx3-ubyte", "wikitext-2/valid.txt"])
def test_the_real_files(name):
    content = read(name, data_folder(name.split("/")[0]))
    assert len(content) == files.FILES[name].bytes
