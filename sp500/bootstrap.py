"""Resampling that keeps what follows what: the stationary bootstrap (Politis and Romano 1994)."""

from __future__ import annotations

import numpy as np


def stationary_bootstrap(length: int, resamples: int, block: float, generator: np.random.Generator) -> np.ndarray:
    """Row numbers [resample, length]: blocks of geometric length with mean `block`, wrapping around the end."""
    fresh = generator.random((resamples, length)) < 1 / block
    fresh[:, 0] = True
    jumps = generator.integers(length, size=(resamples, length))
    positions = np.arange(length)
    last_fresh = np.maximum.accumulate(np.where(fresh, positions, 0), axis=1)
    return (np.take_along_axis(jumps, last_fresh, axis=1) + positions - last_fresh) % length
