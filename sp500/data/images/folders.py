"""Image files in a folder per class, under train/, valid/ and test/ or directly under the source."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from sp500.data.images.labelled import Labelled, Source
from sp500.errors import DataError

FORMATS = ("PNG", "JPEG", "BMP")
PARTS = {"train": "train", "valid": "valid", "val": "valid", "validation": "valid", "test": "test"}
"""Folders of parts, by the names that are usual."""
SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp"}
GREY = {"1", "L"}
DEEP = ("I", "F")
"""Modes of more than 8 bits begin with these."""
TURNS: Mapping[object, Image.Transpose] = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""The turn that makes a picture upright, by its file's orientation."""


def read(folder: Path) -> Source:
    """Read the parts of a folder; without subfolders for them one part, in the order of file names over all classes.

    Raises DataError that names the file.
    """
    places = {part: folder / name for name, part in PARTS.items() if (folder / name).is_dir()}
    if places and "train" not in places:
        raise DataError(f"{folder}: has {' and '.join(places)}/, and no train/")
    places = places or {"train": folder}
    for place in places.values():
        if loose := sorted(path for path in place.glob("[!.]*") if path.suffix.lower() in SUFFIXES):
            raise DataError(
                f"{loose[0]}: is in no folder of a class; sort the images of {place} into some, or move them"
            )
    classes = _folders(places["train"])
    if len(classes) < 2:
        raise DataError(f"{places['train']}: expected a folder per class, two or more, found {len(classes)}")
    if empty := [name for name in classes if not any((places["train"] / name).glob("[!.]*"))]:
        raise DataError(f"{places['train'] / empty[0]}: has no images to learn its class from; add some or delete it")
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
    if inner := [path for _, _, path in files if path.is_dir()]:
        raise DataError(
            f"{inner[0]}: is a folder; a folder of a class holds its images and no folders: move or delete it"
        )
    if not files:
        raise DataError(f"{place}: has no images in {classes[0]}/ and the other folders of classes; sort them")
    images = [decode(path, str(path)) for _, _, path in files]
    for image, (_, _, path) in zip(images, files, strict=True):
        if image.shape != images[0].shape:
            raise DataError(
                f"{path}: is {_words(*image.shape)}, the others are {_words(*images[0].shape)}; make all alike"
            )
    return Labelled(np.stack(images), np.array([number for _, number, _ in files], np.int64))


def _words(height: int, width: int, channels: int) -> str:
    return f"{width} x {height} pixels in {'colour' if channels == 3 else 'grey'}"


def decode(file: Path | io.BytesIO, name: str, expected: tuple[int, int, int] | None = None) -> np.ndarray:
    """Return pixels [height, width, channel] of one file, turned as it says: one channel of grey, or three of colour.

    Raises DataError that begins with `name`, for any size but `expected` before the pixels are unpacked.
    """
    try:
        with Image.open(file, formats=FORMATS) as image:
            if image.mode.startswith(DEEP):
                raise DataError(f"{name}: has more than 8 bits a pixel (mode {image.mode}); convert it to 8 bits")
            shape = image.height, image.width, 1 if image.mode in GREY else 3
            if expected and (sorted(shape[:2]), shape[2]) != (sorted(expected[:2]), expected[2]):
                raise DataError(f"{name}: is {_words(*shape)}, expected {_words(*expected)}")
            pixels = np.asarray(_turn(image.convert("L" if image.mode in GREY else "RGB"), image))
    except UnidentifiedImageError as error:
        raise DataError(f"{name}: is no image in {', '.join(FORMATS)}; convert it") from error
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{name}: cannot be read ({error})") from error
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    if expected and pixels.shape != expected:
        raise DataError(f"{name}: is {_words(*pixels.shape)}, expected {_words(*expected)}")
    return pixels


def _turn(picture: Image.Image, file: Image.Image) -> Image.Image:
    """Return the picture upright, by the camera's orientation in its file; unchanged if that note is damaged.

    `ImageOps.exif_transpose` writes the note again, which raises unexpected errors for damaged ones.
    """
    try:
        turn = TURNS.get(file.getexif().get(ExifTags.Base.Orientation, 1))
    except SyntaxError:
        turn = None
    return picture if turn is None else picture.transpose(turn)
