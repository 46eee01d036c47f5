"""What a source of images gives: pixels and classes, in order, and the parts that it was delivered in."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from sp500.errors import DataError


@dataclass(frozen=True)
class Labelled:
    """pixels [image, height, width, channel] of uint8; labels [image] of int64; `classes` names each number."""

    pixels: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.pixels) != len(self.labels):
            raise DataError(f"{len(self.pixels)} images and {len(self.labels)} labels")

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, rows: slice) -> Labelled:
        return Labelled(self.pixels[rows], self.labels[rows], self.classes)


@dataclass(frozen=True)
class Source:
    """Images for training, and for validation and test where the source has them as parts of their own."""

    name: str
    train: Labelled
    valid: Labelled | None = None
    test: Labelled | None = None

    @property
    def sha256(self) -> str:
        """Hash of all pixels and labels, the same for every file format of the same images."""
        digest = hashlib.sha256()
        for part in (self.train, self.valid, self.test):
            if part is not None:
                digest.update(part.pixels.tobytes())
                digest.update(part.labels.tobytes())
        return digest.hexdigest()


def named(labels: np.ndarray) -> tuple[str, ...]:
    """Names of classes that are numbers from 0. Raises DataError for another numbering."""
    present = np.unique(labels)
    if len(present) < 2 or present[0] < 0 or present[-1] >= 10_000:
        raise DataError(f"labels {present[:5].tolist()}: expected two or more classes, numbered from 0")
    return tuple(str(number) for number in range(int(present[-1]) + 1))


def as_pixels(images: np.ndarray, where: str) -> np.ndarray:
    """[image, height, width, channel] of uint8 from images with or without a channel. Raises DataError."""
    pixels = images[..., None] if images.ndim == 3 else images
    if pixels.ndim != 4 or not pixels.size:
        raise DataError(f"{where}: shape {images.shape}, expected [images, height, width] or [..., channels]")
    if pixels.dtype != np.uint8:
        known = pixels.dtype.kind in "iuf" and bool(((pixels >= 0) & (pixels <= 255)).all())
        if not known or (pixels != pixels.astype(np.uint8)).any():
            raise DataError(f"{where}: holds {pixels.dtype} that is not a whole number from 0 to 255")
        pixels = pixels.astype(np.uint8)
    return np.ascontiguousarray(pixels)
