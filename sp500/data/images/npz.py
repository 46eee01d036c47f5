"""Images in an npz file: x_train and y_train, and x_test and y_test if the test is apart, as Keras names them."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from sp500.data.images.labelled import Source, label_images
from sp500.data.sources.arrays import DAMAGE
from sp500.errors import DataError

NAMES = ("x_train", "y_train", "x_test", "y_test")


def read(path: Path) -> Source:
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
        raise DataError(f"{path}: has no {' and no '.join(missing)}, only {', '.join(arrays) or 'nothing'}")
    parts = {
        name: label_images(arrays[f"x_{name}"], arrays[f"y_{name}"], f"{path}: x_{name} and y_{name}")
        for name in ("train", "test")
        if f"x_{name}" in arrays
    }
    return Source(str(path), parts["train"], test=parts.get("test"))
