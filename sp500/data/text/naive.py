"""Bits per byte of a text without a network: counts of short contexts, and general compressors, given the text before.

A famous small language model is beaten by bz2; its perplexity should be read next to these numbers.
"""

from __future__ import annotations

import bz2
import lzma
import math
from collections.abc import Callable

import numpy as np

PRIOR = 1.0
"""Weight, in counts, of the next shorter context."""


def bits_per_byte(before: bytes, text: bytes) -> dict[str, float]:
    """Return bits per byte of `text` given `before`, by method."""
    return {
        "order-1": contexts(before, text, 1),
        "order-2": contexts(before, text, 2),
        "order-5": mixture(before, text, 5),
        "bz2": measure_compressor(before, text, lambda data: bz2.compress(data, 9)),
        "xz": measure_compressor(before, text, _xz),
    }


def _xz(data: bytes) -> bytes:
    """Compress at xz's best. A window of the text's own size finds all that a larger one would, with less memory."""
    window = min(max(len(data), 4096), 2**26)
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": window}]
    return lzma.compress(data, filters=filters)


def measure_compressor(before: bytes, text: bytes, compress: Callable[[bytes], bytes]) -> float:
    """Return the bits per byte that `text` adds to the compressed size of `before`."""
    return 8 * (len(compress(before + text)) - len(compress(before))) / len(text)


def contexts(before: bytes, text: bytes, order: int) -> float:
    """Return bits per byte by counts of each byte after the `order` bytes before it, in `before`.

    A context's counts are mixed with the probabilities of the next shorter one, down to equal ones (a Dirichlet prior,
    MacKay and Peto 1995), so no byte is impossible.
    """
    known, data = np.frombuffer(before, np.uint8), np.frombuffer(before[-order:] + text, np.uint8)
    target = data[order:]
    probability = np.full(len(target), 1 / 256)
    for length in range(order + 1):
        counts = np.bincount(_keys(known, length), minlength=256 ** (length + 1)).reshape(-1, 256)
        totals = counts.sum(axis=1)
        context = _keys(data[order - length :], length) // 256
        matches = counts[context, target]
        probability = (matches + PRIOR * probability) / (totals[context] + PRIOR)
    return float(-np.log(probability).mean() / math.log(2))


def mixture(before: bytes, text: bytes, order: int) -> float:
    """Return bits per byte by counts of each byte after up to `order` bytes, in `before`.

    A context that was followed by t different bytes gives the next shorter one the weight of t counts (Witten and Bell
    1991, method C). Sorts `before` once for each length.
    """
    known = np.frombuffer(before, np.uint8)
    data = np.frombuffer((bytes(order) + before)[-order:] + text, np.uint8)
    probability = np.full(len(text), 1 / 256)
    for length in range(min(order + 1, len(known))):
        keys, counts = np.unique(_keys(known, length), return_counts=True)
        contexts, first, kinds = np.unique(keys // 256, return_index=True, return_counts=True)
        totals = np.add.reduceat(counts, first)
        wanted = _keys(data[order - length :], length)
        weight, total = (_look_up(contexts, values, wanted // 256) for values in (kinds, totals))
        mixed = (_look_up(keys, counts, wanted) + weight * probability) / np.maximum(total + weight, 1)
        probability = np.where(weight > 0, mixed, probability)
    return float(-np.log2(probability).mean())


def _look_up(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the value of each wanted key; 0 for a missing one."""
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[at] == wanted, values[at], 0)


def _keys(data: np.ndarray, length: int) -> np.ndarray:
    """Return a number for each byte with the `length` bytes before it [position], from the first that has as many."""
    count = len(data) - length
    keys = np.zeros(count, np.int64)
    for offset in range(length + 1):
        keys = keys * 256 + data[offset : offset + count]
    return keys
