"""Normaliser: scales features by statistics of the training dates only.

    zscore   (x - mean) / standard deviation
    minmax   to -1..1 between the smallest and the largest training value; later values may lie outside
    none     as they are

A feature that never changes in training keeps scale 1. Statistics are float64 over all tickers pooled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Norm = Literal["zscore", "minmax", "none"]
SHIFT = 2.0
"""A feature whose spread in a later part is more than so many times that in training is reported."""


@dataclass(frozen=True)
class Normalizer:
    """x -> (x - shift) / scale, per feature."""

    shift: np.ndarray
    scale: np.ndarray

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return a scaled copy of x [..., feature]."""
        return np.asarray((x - self.shift) / self.scale)

    @property
    def state(self) -> dict[str, list[float]]:
        """Plain data."""
        return {"shift": self.shift.tolist(), "scale": self.scale.tolist()}


def fit(train: np.ndarray, norm: Norm) -> Normalizer:
    """Fit a normaliser to training rows [row, feature]."""
    if norm == "none":
        return Normalizer(np.zeros(train.shape[-1]), np.ones(train.shape[-1]))
    if norm == "zscore":
        shift, scale = train.mean(axis=0), train.std(axis=0)
    else:
        low, high = train.min(axis=0), train.max(axis=0)
        shift, scale = (low + high) / 2, (high - low) / 2
    # Rounding leaves a constant feature a spread of about 1e-16 of its size.
    return Normalizer(shift, np.where(scale > 1e-12 * np.abs(shift), scale, 1.0))


def shift_notes(names: Sequence[str], train: np.ndarray, later: Mapping[str, np.ndarray]) -> list[str]:
    """Return a note for each feature whose spread in a later part is far from that in training.

    `train` and the values of `later` are rows [row, feature]. Typical are sources whose early opens equal the previous
    close, so that the feature `gap` begins to vary inside the history. Clipping scores to 3 or 5 deviations did not
    change what models made of it (docs/LOG.md), so values stay as they are.
    """
    spread = train.std(axis=0, dtype=np.float64)
    notes = []
    for part, rows in later.items():
        for name, before, after in zip(names, spread, rows.std(axis=0, dtype=np.float64), strict=True):
            if after > SHIFT * before:
                times = f"{after / before:.1f} times as wide as" if before > 0 else "not constant, as"
                notes.append(
                    f"Feature {name} is {times} in training in the {part} dates: a model sees values there that it "
                    "hardly met. Check the source, or start later with data.start."
                )
    return notes
