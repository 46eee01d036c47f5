"""Images in arrays: IDX files, the format of MNIST, and an npz file as Keras names its arrays.

IDX: train-images, train-labels, t10k-images and t10k-labels in a folder, .gz or plain. npz: x_train and y_train, and
x_test and y_test if it has a test.
"""

from __future__ import annotations

import gzip
import math
import zipfile
import zlib
from pathlib import Path

import numpy as np

from sp500.data.images.labelled import Labelled, Source, label_images
from sp500.data.sources.arrays import DAMAGE
from sp500.errors import DataError

PARTS = {"train": "train", "test": "t10k"}
UNSIGNED_BYTE = 8
BLOCK = 2**24
"""Bytes read at once: a damaged head may announce any number."""
NAMES = ("x_train", "y_train", "x_test", "y_test")


def is_idx(folder: Path) -> bool:
    """Return whether a folder has a training file of this format."""
    return bool(_file(folder, "train-images", 3))


def read_idx(folder: Path) -> Source:
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


def read_npz(path: Path) -> Source:
    """Read training and test images. Raises DataError that names the file and the array."""
    if not zipfile.is_zipfile(path):
        raise DataError(f"{path}: is not an npz file; write it with numpy.savez")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name.lower(): np.asarray(file[name]) for name in file if name.lower() in NAMES}
    except DAMAGE as error:
        raise DataError(f"{path}: is not an npz file of plain arrays ({error}). Write it with numpy.savez") from error
    expected = NAMES if {"x_test", "y_test"} & set(arrays) else NAMES[:2]
    if missing := [name for name in expected if name not in arrays]:
        raise DataError(f"{path}: lacks {' and '.join(missing)}, has {', '.join(arrays) or 'nothing'}")
    parts = {
        name: label_images(arrays[f"x_{name}"], arrays[f"y_{name}"], f"{path}: x_{name} and y_{name}")
        for name in ("train", "test")
        if f"x_{name}" in arrays
    }
    return Source(str(path), parts["train"], test=parts.get("test"))
