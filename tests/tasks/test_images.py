import gzip
import hashlib
import os
import struct
from pathlib import Path

import numpy as np
import pytest

from attnflow.tasks import files
from attnflow.tasks.images import from_idx, mnist, patches


def idx(array: np.ndarray) -> bytes:
    head = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.astype(np.uint8).tobytes()


def test_idx_is_read_back():
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    np.testing.assert_array_equal(from_idx(idx(array)), array)


@pytest.mark.parametrize("content", [b"", b"\0\0\x0d\x01", idx(np.zeros((2, 3)))[:-1], b"\0\0\x08"])
def test_what_is_no_idx_file(content):
    with pytest.raises(files.DataError, match="IDX"):
        from_idx(content)


def test_patches_by_hand():
    pixels = np.arange(16).reshape(1, 4, 4)
    raw = np.array([[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]])
    found = patches(pixels, size=2)
    np.testing.assert_allclose(found[0], (raw / 255 - 0.1307) / 0.3081, rtol=1e-5)
    assert found.dtype == np.float32


def test_sizes_of_digits():
    assert patches(np.zeros((3, 28, 28), np.uint8)).shape == (3, 49, 16)


@pytest.mark.parametrize(
    ("pixels", "size", "message"),
    [
        (np.zeros((2, 28, 28)), 5, "patches of 5"),
        (np.zeros((28, 28)), 4, "image, row, column"),
        (np.zeros((2, 28, 28)), 0, "size"),
    ],
)
def test_bad_patches(pixels, size, message):
    with pytest.raises(ValueError, match=message):
        patches(pixels, size)


def test_made_files_with_a_right_and_a_wrong_checksum(tmp_path, monkeypatch):
    pixels = np.random.default_rng(0).integers(256, size=(3, 28, 28))
    arrays = {"images-idx3": pixels, "labels-idx1": np.array([7, 2, 1])}
    for kind, array in arrays.items():
        name, content = f"mnist/t10k-{kind}-ubyte", idx(array)
        known = files.Known(len(content), hashlib.sha256(content).hexdigest(), "here")
        monkeypatch.setitem(files.FILES, name, known)
        path = tmp_path / f"{name}.gz"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(gzip.compress(content))
    found = mnist("test", tmp_path)
    np.testing.assert_array_equal(found.pixels, pixels)
    assert found.labels.tolist() == [7, 2, 1]
    path.write_bytes(gzip.compress(idx(np.array([7, 2, 0]))))
    with pytest.raises(files.DataError, match=r"t10k-labels-idx1-ubyte\.gz is corrupt"):
        mnist("test", tmp_path)


def test_the_real_digits():
    folder = os.environ.get("ATTNFLOW_DATA", "")
    if not folder or not (Path(folder) / "mnist").is_dir():
        pytest.skip("ATTNFLOW_DATA names no folder with mnist")
    found = mnist("test", folder)
    assert found.pixels.shape == (10_000, 28, 28)
    assert found.labels[:5].tolist() == [7, 2, 1, 0, 4]
    values = patches(found.pixels[:2000])
    assert float(values.mean()) == pytest.approx(0, abs=0.05)
    assert float(values.std()) == pytest.approx(1, abs=0.05)


def test_an_unknown_split():
    with pytest.raises(ValueError, match="split"):
        mnist("validation")
