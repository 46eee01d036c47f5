"""Image files in a folder per class, under train/, valid/ and test/ or directly under the source."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from sp500.data.images.labelled import Labelled, Source
from sp500.errors import DataError

FORMATS = ("PNG", "JPEG", "BMP")
PARTS = ("train", "valid", "test")


def read(folder: Path) -> Source:
    """The parts of a folder; without subfolders for them one part, in the order of file names over all classes.

    Raises DataError that names the file, also for an image that is in two parts: the test would be known.
    """
    parts = [name for name in PARTS if (folder / name).is_dir()]
    if parts and "train" not in parts:
        raise DataError(f"{folder}: has {' and '.join(parts)}/, and no train/")
    places = {name: folder / name for name in parts} or {"train": folder}
    classes = tuple(sorted(path.name for path in places["train"].iterdir() if path.is_dir()))
    if len(classes) < 2:
        raise DataError(f"{places['train']}: expected a folder per class, two or more, found {len(classes)}")
    found = {name: _part(place, classes) for name, place in places.items()}
    size = found["train"].pixels.shape[1:]
    for name, part in found.items():
        if part.pixels.shape[1:] != size:
            raise DataError(f"{places[name]}: images are {part.pixels.shape[1:]}, those of train/ {size}")
    _refuse_shared(found, folder)
    return Source(str(folder), found["train"], found.get("valid"), found.get("test"))


def _part(folder: Path, classes: tuple[str, ...]) -> Labelled:
    others = [path.name for path in folder.iterdir() if path.is_dir() and path.name not in classes]
    if others:
        raise DataError(f"{folder}: class {others[0]} is not in train/")
    files = sorted(
        ((path.name, number, path) for number, name in enumerate(classes) for path in (folder / name).glob("[!.]*")),
        key=lambda one: one[:2],
    )
    if not files:
        raise DataError(f"{folder}: has no images")
    images = [_image(path) for _, _, path in files]
    for image, (_, _, path) in zip(images, files, strict=True):
        if image.shape != images[0].shape:
            raise DataError(f"{path}: is {image.shape}, the images before it are {images[0].shape}; give all one size")
    return Labelled(np.stack(images), np.array([number for _, number, _ in files], np.int64), classes)


def _image(path: Path) -> np.ndarray:
    """Pixels [height, width, channel] of one file: one channel of grey, or three of colour."""
    try:
        with Image.open(path) as image:
            if image.format not in FORMATS:
                raise DataError(f"{path}: is a {image.format} file; expected {', '.join(FORMATS)}")
            pixels = np.asarray(image.convert("L" if image.mode in ("1", "L") else "RGB"))
    except UnidentifiedImageError as error:
        raise DataError(f"{path}: is not an image; expected {', '.join(FORMATS)}") from error
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    return pixels[..., None] if pixels.ndim == 2 else pixels


def _refuse_shared(parts: dict[str, Labelled], folder: Path) -> None:
    """Raise DataError where an image of one part is in another, too."""
    seen: dict[bytes, str] = {}
    for name, part in parts.items():
        for image in part.pixels:
            where = seen.setdefault(hashlib.sha256(image.tobytes()).digest(), name)
            if where != name:
                raise DataError(f"{folder}: an image of {name}/ is in {where}/, too; a test on it would flatter")
