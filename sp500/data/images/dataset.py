"""From a source of images to a dataset: split in order, pixels as they are.

The last images are the test, and the last of the rest the validation. A shuffle before the cut flatters: of the digits
bundled with scikit-learn, whose order follows their writers, 1-NN gets 98.9% right in a shuffled test and 94.4% in
order.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from sp500.config import DataConfig
from sp500.data.images import arrays, folders
from sp500.data.images.labelled import Source, label_images
from sp500.data.images.settings import ImagesConfig
from sp500.data.windows import Dataset, Windows
from sp500.errors import DataError
from sp500.formatting import some
from sp500.runs.results import DataCard

CHUNK = 1024


def read(source: str) -> Source:
    """Read the images of a source by its name or path. Raises DataError that names the file."""
    if source == "digits":
        return digits()
    path = Path(source).expanduser()
    if path.is_dir():
        return arrays.read_idx(path) if arrays.is_idx(path) else folders.read(path)
    if not path.exists():
        raise DataError(f"images.source {source}: no such file or folder; expected digits, FILE.npz or a folder")
    if path.suffix != ".npz":
        raise DataError(
            f"images.source {source}: expected an .npz file, a folder of IDX files, or one with a folder per class. A "
            "pickle is not read, since it could run code: write its arrays with numpy.savez"
        )
    return arrays.read_npz(path)


def digits() -> Source:
    """Return the 1,797 handwritten digits of 8 x 8 pixels that come with scikit-learn, in their order."""
    from sklearn.datasets import load_digits

    bundle = load_digits()
    return Source("digits", label_images(bundle.images, bundle.target, "digits"))


def dataset(images: ImagesConfig, data: DataConfig) -> Dataset:
    """Return windows of one image each. Raises DataError, also for files that put one image in two parts."""
    source = read(images.source).split(data.test_fraction, data.valid_from_train)
    notes = _find_shared(source)
    if notes and source.files:
        raise DataError(f"{source.name}: {notes[0]}. Remove one of each; a test on known images would flatter")
    height, width, channels = source.train.pixels.shape[1:]
    card: DataCard = {
        "source": Path(source.name).name,
        "sha256": source.sha256,
        "windows": {name: len(part) for name, part in source.parts.items()},
        "features": [f"{height} x {width} pixels, {channels} channel{'s' if channels > 1 else ''}"],
        "tickers": [],
        "repairs": [],
        "notes": notes,
    }
    windows = {name: Windows(part.pixels, np.arange(len(part)), part.labels, 1) for name, part in source.parts.items()}
    counts = np.bincount(source.train.labels)
    if unseen := np.flatnonzero(counts == 0).tolist():
        found = f"{len(unseen)} of {len(counts)} classes, the first is {unseen[0]}, have no image in train"
        notes.append(f"{found}: outputs that are never seen. Number the labels from 0 without a hole")
    mean, deviation = channel_statistics(source.train.pixels)
    state = {"mean": mean.tolist(), "deviation": deviation.tolist()}
    return Dataset(windows["train"], windows.get("valid"), windows["test"], card=card, outputs=len(counts), state=state)


def _find_shared(source: Source) -> list[str]:
    """Return notes that count the images of a part that are in an earlier one, too."""
    earlier, notes = set[bytes](), list[str]()
    for name, part in source.parts.items():
        hashes = {hashlib.sha256(image.tobytes()).digest() for image in part.pixels}
        if count := len(hashes & earlier):
            notes.append(f"{some(count, 'image')} of {name} {'is' if count == 1 else 'are'} also in a part before it")
        earlier |= hashes
    return notes


def channel_statistics(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and deviation [channel] of pixels [image, height, width, channel]; a deviation of 0 counts as 1.

    By counts of the 256 values, since images as floats would take eight times their memory.
    """
    counts = np.zeros((images.shape[3], 256), np.int64)
    for first in range(0, len(images), CHUNK):
        for channel, pixels in enumerate(np.moveaxis(images[first : first + CHUNK], 3, 0)):
            counts[channel] += np.bincount(pixels.ravel(), minlength=256)
    values, total = np.arange(256), counts.sum(axis=1)
    mean = counts @ values / total
    deviation = np.sqrt(np.maximum(counts @ values**2 / total - mean**2, 0.0))
    return mean, np.where(deviation > 0, deviation, 1.0)
