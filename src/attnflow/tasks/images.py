"""MNIST: digits, and their patches as tokens."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from attnflow._checks import at_least, choice
from attnflow.tasks import files

MEAN, DEVIATION = 0.1307, 0.3081  # of the training pixels, as shares of the brightest
SPLITS = {"train": "train", "test": "t10k"}


class Images(NamedTuple):
    """pixels (image, row, column), uint8; labels (image), digits."""

    pixels: np.ndarray
    labels: np.ndarray


def mnist(split: str = "train", data: str | Path | None = None) -> Images:
    """60,000 images to train on or 10,000 to test, 28 × 28. data: see `attnflow.tasks.files`."""
    choice("split", split, SPLITS)
    pixels = from_idx(files.read(f"mnist/{SPLITS[split]}-images-idx3-ubyte", data))
    labels = from_idx(files.read(f"mnist/{SPLITS[split]}-labels-idx1-ubyte", data))
    return Images(pixels, labels.astype(np.int64))


def from_idx(content: bytes) -> np.ndarray:
    """An array of bytes in the IDX format: two zeros, the type 8, the number of axes, their sizes
    (four bytes each, the greatest first), the numbers.

    >>> from_idx(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9])).tolist()
    [7, 8, 9]
    """
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise files.DataError("this is no IDX file of bytes: it must begin with 0, 0, 8")
    axes = content[3]
    shape = np.frombuffer(content[4 : 4 + 4 * axes], ">u4").astype(int)
    rest = content[4 + 4 * axes :]
    if len(shape) != axes or len(rest) != shape.prod():
        raise files.DataError(
            f"an IDX file of shape {tuple(shape.tolist())} must hold {shape.prod()} bytes of "
            f"numbers (got {len(rest)})"
        )
    return np.frombuffer(rest, np.uint8).reshape(shape)


def patches(pixels: np.ndarray, size: int = 4) -> np.ndarray:
    """(image, patch, number) in float32, normalized by `MEAN` and `DEVIATION`; patches row by row,
    and within them pixels row by row. 28 × 28 pixels in patches of 4: 49 of 16 numbers."""
    at_least("size", size, 1)
    if pixels.ndim != 3:
        raise ValueError(f"pixels must be (image, row, column) (got shape {pixels.shape})")
    count, rows, columns = pixels.shape
    if rows % size or columns % size:
        raise ValueError(f"{rows} × {columns} pixels cannot be cut into patches of {size}")
    cut = pixels.reshape(count, rows // size, size, columns // size, size)
    flat = cut.transpose(0, 1, 3, 2, 4).reshape(count, -1, size * size)
    return (flat.astype(np.float32) / 255 - MEAN) / DEVIATION
