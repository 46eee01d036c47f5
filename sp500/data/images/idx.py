"""IDX files, the format of MNIST: train-images, train-labels, t10k-images and t10k-labels in a folder, .gz or plain."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from sp500.data.images.labelled import Labelled, Source, label_images
from sp500.errors import DataError

PARTS = {"train": "train", "test": "t10k"}
UNSIGNED_BYTE = 8
BLOCK = 2**24
"""Bytes read at once: a damaged head may announce any number."""


def is_idx(folder: Path) -> bool:
    """Return whether a folder has a training file of this format."""
    return bool(_file(folder, "train-images", 3))


def read(folder: Path) -> Source:
    """Read training and test images. Raises DataError that names the file."""
    parts = {part: _part(folder, prefix) for part, prefix in PARTS.items() if _file(folder, f"{prefix}-images", 3)}
    return Source(str(folder), parts["train"], test=parts.get("test"))


def _part(folder: Path, prefix: str) -> Labelled:
    images, labels = _file(folder, f"{prefix}-images", 3), _file(folder, f"{prefix}-labels", 1)
    if images is None or labels is None:
        raise DataError(f"{folder}: has no {prefix}-labels-idx1-ubyte next to {prefix}-images-idx3-ubyte")
    return label_images(array(images, 3), array(labels, 1), f"{images} and {labels.name}")


def _file(folder: Path, name: str, dimensions: int) -> Path | None:
    """Return the file of that name, as LeCun's or torchvision's folders call it; None if there is none."""
    stems = (f"{name}-idx{dimensions}-ubyte", f"{name}.idx{dimensions}-ubyte")
    return next((path for stem in stems for path in (folder / stem, folder / f"{stem}.gz") if path.is_file()), None)


def array(path: Path, dimensions: int) -> np.ndarray:
    """Read the array of one file. Raises DataError that names a truncated or other file."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            magic = file.read(4)
            if magic != bytes((0, 0, UNSIGNED_BYTE, dimensions)):
                raise DataError(f"{path}: starts with {magic.hex()}, not as IDX bytes in {dimensions} dimensions")
            shape = [int(size) for size in np.frombuffer(file.read(4 * dimensions), ">u4")]
            count, data = math.prod(shape), bytearray()
            while len(data) <= count and (block := file.read(min(BLOCK, count + 1 - len(data)))):
                data += block
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    if len(shape) != dimensions or len(data) != count:
        length = f"more than {count}" if len(data) > count else len(data)
        raise DataError(f"{path}: its head announces {count} bytes, and it has {length}")
    return np.frombuffer(bytes(data), np.uint8).reshape(shape)
