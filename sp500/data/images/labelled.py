"""Images of a source: pixels and classes, in order, and the parts that it was delivered in."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import numpy as np

from sp500.errors import DataError

MOST_CLASSES = 10_000
MOST_CHANNELS = 4


@dataclass(frozen=True)
class Labelled:
    """pixels [image, height, width, channel] of uint8; labels [image] of int64, from 0."""

    pixels: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, rows: slice) -> Labelled:
        return Labelled(self.pixels[rows], self.labels[rows])


@dataclass(frozen=True)
class Source:
    """Images for training, and for validation and test if the source has them as parts of their own."""

    name: str
    train: Labelled
    valid: Labelled | None = None
    test: Labelled | None = None
    files: bool = False
    """Whether each image is a file of its own, so that one in two parts is a mistake that can be repaired."""

    @property
    def parts(self) -> dict[str, Labelled]:
        """Those that are there."""
        parts = {"train": self.train, "valid": self.valid, "test": self.test}
        return {name: part for name, part in parts.items() if part is not None}

    @property
    def sha256(self) -> str:
        """Hash of all pixels and labels, the same for every file format of the same images."""
        digest = hashlib.sha256()
        for part in self.parts.values():
            digest.update(part.pixels.tobytes())
            digest.update(part.labels.tobytes())
        return digest.hexdigest()

    def split(self, test_fraction: float, valid_from_train: float) -> Source:
        """Return the source with validation and test; missing ones are cut off the end of the training images.

        Raises DataError for an empty part, one of another size, and one with a class that is not trained on.
        """
        source = self
        if source.test is None:
            train, test = _cut(source.train, test_fraction)
            source = replace(source, train=train, test=test)
        if source.valid is None and valid_from_train:
            train, valid = _cut(source.train, valid_from_train)
            source = replace(source, train=train, valid=valid)
        known = set(np.unique(source.train.labels).tolist())
        for name, part in source.parts.items():
            if not len(part):
                raise DataError(f"{self.name}: {len(self.train)} images leave none for {name}")
            if part.pixels.shape[1:] != source.train.pixels.shape[1:]:
                raise DataError(f"{self.name}: images of {name} and train differ in size")
            if new := sorted(set(np.unique(part.labels).tolist()) - known):
                raise DataError(
                    f"{self.name}: {name} has class {new[0]}, which train has not: are the images in the order of "
                    "their classes? Give train and test as parts of their own, or mix the order"
                )
        if len(known) < 2:
            raise DataError(f"{self.name}: train has one class; expected two or more")
        return source


def _cut(whole: Labelled, fraction: float) -> tuple[Labelled, Labelled]:
    at = len(whole) - int(len(whole) * fraction)
    return whole[:at], whole[at:]


def label_images(images: np.ndarray, labels: np.ndarray, where: str) -> Labelled:
    """Return images [image, height, width] or [image, height, width, channel] with their classes. Raises DataError."""
    if images.ndim not in (3, 4) or labels.ndim == 0 or not images.size:
        raise DataError(f"{where}: shape {images.shape}, expected [images, height, width] or [..., channels]")
    labels = labels.reshape(-1)
    if len(images) != len(labels):
        raise DataError(f"{where}: {len(images)} images and {len(labels)} labels")
    pixels = images[..., None] if images.ndim == 3 else images
    if pixels.shape[3] > MOST_CHANNELS:
        raise DataError(f"{where}: shape {images.shape} has {pixels.shape[3]} channels; expected the channels last")
    if labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() >= MOST_CLASSES:
        raise DataError(f"{where}: labels are classes, whole numbers from 0 to {MOST_CLASSES - 1}")
    if pixels.dtype != np.uint8:
        known = pixels.dtype.kind in "iuf" and bool(((pixels >= 0) & (pixels <= 255)).all())
        if not known or (pixels != pixels.astype(np.uint8)).any():
            raise DataError(f"{where}: holds {pixels.dtype} that is not a whole number from 0 to 255")
        pixels = pixels.astype(np.uint8)
    return Labelled(np.ascontiguousarray(pixels), labels.astype(np.int64))
