"""Normaliser: scales features by what the training dates showed, and nothing later.

    zscore   (x - mean) / standard deviation
    minmax   to -1..1 between the smallest and the largest training value; later values may lie outside
    none     as they are

A feature that never changes in training keeps scale 1. Statistics are float64 over all tickers pooled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

Norm = Literal["zscore", "minmax", "none"]


@dataclass(frozen=True)
class Normalizer:
    """x -> (x - shift) / scale, per feature."""

    shift: np.ndarray
    scale: np.ndarray

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Scaled copy of x [..., feature]."""
        return np.asarray((x - self.shift) / self.scale)


def fit(train: np.ndarray, norm: Norm) -> Normalizer:
    """Normaliser of training rows [row, feature]."""
    if norm == "none":
        return Normalizer(np.zeros(train.shape[-1]), np.ones(train.shape[-1]))
    if norm == "zscore":
        shift, scale = train.mean(axis=0), train.std(axis=0)
    else:
        low, high = train.min(axis=0), train.max(axis=0)
        shift, scale = (low + high) / 2, (high - low) / 2
    # Rounding leaves a constant feature a spread of about 1e-16 of its size.
    return Normalizer(shift, np.where(scale > 1e-12 * np.abs(shift), scale, 1.0))
