"""From a source of images to a dataset: split in order, pixels as they are.

The last images are the test, and the last of the rest the validation. A shuffle before the cut flatters: of the digits
bundled with scikit-learn, whose order follows their writers, 1-NN gets 98.9 % right in a shuffled test and 94.4 % in
order.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sp500.config import DataConfig, ImagesConfig
from sp500.data.images import arrays, folders, idx
from sp500.data.images.labelled import Labelled, Source, as_pixels
from sp500.data.windows import Dataset, Windows
from sp500.errors import DataError
from sp500.runs.results import DataCard


def read(source: str) -> Source:
    """Images of a source by its name or path. Raises DataError that names the file."""
    if source == "digits":
        return digits()
    path = Path(source).expanduser()
    if path.is_dir():
        return idx.read(path) if idx.is_idx(path) else folders.read(path)
    if not path.exists():
        raise DataError(f"images.source {source}: no such file or folder; expected digits, FILE.npz or a folder")
    if path.suffix != ".npz":
        raise DataError(
            f"images.source {source}: expected an .npz file, a folder of IDX files, or one with a folder per class. A "
            "pickle is not read, since it could run code: write its arrays with numpy.savez"
        )
    return arrays.read(path)


def digits() -> Source:
    """The 1,797 handwritten digits of 8 x 8 pixels that come with scikit-learn, in their order."""
    from sklearn.datasets import load_digits

    found = load_digits()
    pixels = as_pixels(found.images, "digits")
    return Source("digits", Labelled(pixels, found.target.astype(np.int64), tuple(map(str, range(10)))))


def split(source: Source, test_fraction: float, valid_from_train: float) -> dict[str, Labelled]:
    """The parts of a source; those that it does not bring are cut off the end. Raises DataError for an empty one."""
    train, valid, test = source.train, source.valid, source.test
    if test is None:
        train, test = _cut(train, test_fraction)
    if valid is None and valid_from_train:
        train, valid = _cut(train, valid_from_train)
    parts = {"train": train, "valid": valid, "test": test}
    found = {name: part for name, part in parts.items() if part is not None}
    if empty := [name for name, part in found.items() if not len(part)]:
        raise DataError(f"{source.name}: {len(source.train)} images leave none for {' and '.join(empty)}")
    return found


def _cut(whole: Labelled, fraction: float) -> tuple[Labelled, Labelled]:
    at = len(whole) - int(len(whole) * fraction)
    return whole[:at], whole[at:]


def dataset(images: ImagesConfig, data: DataConfig) -> Dataset:
    """Windows of one image each. Raises DataError."""
    source = read(images.source)
    parts = split(source, data.test_fraction, data.valid_from_train)
    height, width, channels = source.train.pixels.shape[1:]
    card: DataCard = {
        "source": Path(source.name).name,
        "sha256": source.sha256,
        "windows": {name: len(part) for name, part in parts.items()},
        "features": [f"{height} x {width} pixels, {channels} channel{'s' if channels > 1 else ''}"],
        "tickers": [],
        "repairs": [],
        "notes": [],
    }
    made = {name: Windows(part.pixels, np.arange(len(part)), part.labels, 1) for name, part in parts.items()}
    return Dataset(made["train"], made.get("valid"), made["test"], card=card, outputs=len(source.train.classes))
