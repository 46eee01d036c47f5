"""Images in an npz file: x_train and y_train, and x_test and y_test where the test is apart, as Keras names them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sp500.data.arrays import DAMAGE
from sp500.data.images.labelled import Labelled, Source, as_pixels, named
from sp500.errors import DataError


def read(path: Path) -> Source:
    """Training and test images. Raises DataError that names the file and the array."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name.lower(): np.asarray(file[name]) for name in file}
    except DAMAGE as error:
        raise DataError(f"{path}: is not an npz file of plain arrays ({error}). Write it with numpy.savez") from error
    if missing := {"x_train", "y_train"} - set(arrays):
        raise DataError(f"{path}: has no {' and no '.join(sorted(missing))}, only {', '.join(arrays) or 'nothing'}")
    train = _part(path, arrays, "train")
    test = _part(path, arrays, "test") if {"x_test", "y_test"} <= set(arrays) else None
    if test is not None and test.pixels.shape[1:] != train.pixels.shape[1:]:
        raise DataError(f"{path}: x_train and x_test differ in the size of images")
    classes = max((part.classes for part in (train, test) if part is not None), key=len)
    return Source(str(path), _with(train, classes), test=_with(test, classes) if test is not None else None)


def _part(path: Path, arrays: dict[str, np.ndarray], part: str) -> Labelled:
    images, labels = arrays[f"x_{part}"], arrays[f"y_{part}"].reshape(-1)
    if len(images) != len(labels):
        raise DataError(f"{path}: x_{part} has {len(images)} rows and y_{part} {len(labels)}")
    if labels.dtype.kind not in "iu":
        raise DataError(f"{path}: y_{part} holds {labels.dtype}, expected whole numbers, the classes")
    labels = labels.astype(np.int64)
    return Labelled(as_pixels(images, f"{path}: x_{part}"), labels, named(labels))


def _with(part: Labelled, classes: tuple[str, ...]) -> Labelled:
    return Labelled(part.pixels, part.labels, classes)
