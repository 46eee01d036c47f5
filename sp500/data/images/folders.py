"""Image files in a folder per class, under train/, valid/ and test/ or directly under the source."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from sp500.data.images.labelled import Labelled, Source
from sp500.errors import DataError

FORMATS = ("PNG", "JPEG", "BMP")
PARTS = {"train": "train", "valid": "valid", "val": "valid", "validation": "valid", "test": "test"}
"""Folders of parts, by the names that are usual."""
GREY = {"1", "L"}
DEEP = ("I", "F")
"""Modes of more than 8 bits begin with these."""


def read(folder: Path) -> Source:
    """The parts of a folder; without subfolders for them one part, in the order of file names over all classes.

    Raises DataError that names the file.
    """
    places = {part: folder / name for name, part in PARTS.items() if (folder / name).is_dir()}
    if places and "train" not in places:
        raise DataError(f"{folder}: has {' and '.join(places)}/, and no train/")
    places = places or {"train": folder}
    classes = _folders(places["train"])
    if len(classes) < 2:
        raise DataError(f"{places['train']}: expected a folder per class, two or more, found {len(classes)}")
    parts = {part: _part(place, classes) for part, place in places.items()}
    return Source(str(folder), parts["train"], parts.get("valid"), parts.get("test"), files=True)


def _folders(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir() if path.is_dir() and not path.name.startswith("."))


def _part(place: Path, classes: list[str]) -> Labelled:
    if others := [name for name in _folders(place) if name not in classes]:
        raise DataError(f"{place}: class {others[0]} is not in train/")
    files = sorted(
        ((path.name, number, path) for number, name in enumerate(classes) for path in (place / name).glob("[!.]*")),
        key=lambda file: file[:2],
    )
    if not files:
        raise DataError(f"{place}: has no images")
    images = [decode(path, str(path)) for _, _, path in files]
    for image, (_, _, path) in zip(images, files, strict=True):
        if image.shape != images[0].shape:
            raise DataError(f"{path}: is {_size(image)}, the images before it are {_size(images[0])}; make all alike")
    return Labelled(np.stack(images), np.array([number for _, number, _ in files], np.int64))


def _size(image: np.ndarray) -> str:
    return _words(image.shape[0], image.shape[1], image.shape[2])


def _words(height: int, width: int, channels: int) -> str:
    return f"{width} x {height} pixels in {'colour' if channels == 3 else 'grey'}"


def decode(file: Path | io.BytesIO, name: str, expected: tuple[int, int, int] | None = None) -> np.ndarray:
    """Pixels [height, width, channel] of one file: one channel of grey, or three of colour.

    Raises DataError that begins with `name`, for any shape but `expected` before the pixels are unpacked.
    """
    try:
        with Image.open(file) as image:
            if image.format not in FORMATS:
                raise DataError(f"{name}: is a {image.format} file; expected {', '.join(FORMATS)}")
            if image.mode.startswith(DEEP):
                raise DataError(f"{name}: has more than 8 bits a pixel (mode {image.mode}); convert it to 8 bits")
            shape = image.height, image.width, 1 if image.mode in GREY else 3
            if expected and shape != expected:
                raise DataError(f"{name}: is {_words(*shape)}, expected {_words(*expected)}")
            pixels = np.asarray(image.convert("L" if image.mode in GREY else "RGB"))
    except UnidentifiedImageError as error:
        raise DataError(f"{name}: is not an image; expected {', '.join(FORMATS)}") from error
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{name}: cannot be read ({error})") from error
    return pixels[..., None] if pixels.ndim == 2 else pixels
