"""From documents to windows of bytes whose targets are the next bytes.

The last part of the text is the test, and the part before it the validation. Cuts lie between documents if there are
three or more, so none is on both sides; one or two are cut by position, with one context left out at each cut.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from sp500.data.text import corpus
from sp500.data.text.settings import TextConfig
from sp500.data.windows import Dataset, Windows
from sp500.errors import DataError
from sp500.formatting import some
from sp500.runs.results import DataCard

VOCABULARY = 256
"""Bytes."""
MOST_KNOWN = 0.1
"""Share of the bytes of a part that may be in documents of a part before it: of code, files that are all alike."""
FLATTERS = "a test on known text flatters"


def split(text: TextConfig) -> tuple[dict[str, bytes], list[str]]:
    """Return `train`, `valid` and `test`, and notes. Raises DataError for a part that is shorter than a context."""
    documents, known = split_documents(text)
    parts = {name: corpus.BETWEEN.join(part) for name, part in documents.items()}
    for name, part in parts.items():
        if len(part) <= text.context:
            raise DataError(
                f"text.source {text.source}: {name} has {len(part)} bytes, fewer than a window; lower text.context"
            )
    return parts, known


def split_documents(text: TextConfig) -> tuple[dict[str, list[bytes]], list[str]]:
    """Return documents of `train`, `valid` and `test`, or parts of the only one, and notes on those in two parts."""
    corpus.refuse_unused_field(text)
    documents, valid = corpus.read(text), list[bytes]()
    if text.valid_source:
        valid = corpus.read(text.model_copy(update={"source": text.valid_source, "max_bytes": 0}))
        text = text.model_copy(update={"valid_fraction": 0.0})
    of_its_own = {"valid": valid} if valid else {}
    if len(documents) > 2:
        parts = _by_document(documents, text) | of_its_own
        return parts, note_known(text, parts)
    note_known(text, {"train": documents[:1], "test": documents[1:], **of_its_own})
    return {name: [part] for name, part in _by_position(corpus.BETWEEN.join(documents), text).items()} | of_its_own, []


def note_known(text: TextConfig, parts: Mapping[str, Sequence[bytes]]) -> list[str]:
    """Return notes on documents of a part that are in an earlier one, too. Raises DataError if MOST_KNOWN of it are."""
    earlier, notes = set[bytes](), list[str]()
    for name, documents in parts.items():
        known = [document for document in documents if hashlib.sha256(document).digest() in earlier]
        if known:
            share = sum(map(len, known)) / sum(map(len, documents))
            is_or_are = "is" if len(known) == 1 else "are"
            there = f"{some(len(known), 'document')} of {name} ({share:.0%}) {is_or_are} also in a part before it"
            if share > MOST_KNOWN:
                raise DataError(f"text.source {text.source}: {there}. Remove one of each; {FLATTERS}")
            notes.append(there)
        earlier.update(hashlib.sha256(document).digest() for document in documents)
    return notes


def _by_document(documents: list[bytes], text: TextConfig) -> dict[str, list[bytes]]:
    lengths = np.cumsum([len(document) + len(corpus.BETWEEN) for document in documents])
    shares = (1 - text.test_fraction - text.valid_fraction, 1 - text.test_fraction)
    first, second = (int(np.searchsorted(lengths, share * lengths[-1])) for share in shares)
    least = int(text.valid_fraction > 0)
    first = min(max(first, 1), len(documents) - 1 - least)
    second = min(max(second, first + least), len(documents) - 1)
    return {"train": documents[:first], "valid": documents[first:second], "test": documents[second:]}


def _by_position(document: bytes, text: TextConfig) -> dict[str, bytes]:
    first = int(len(document) * (1 - text.test_fraction - text.valid_fraction))
    second = int(len(document) * (1 - text.test_fraction))
    gap = text.context
    return {"train": document[:first], "valid": document[first + gap : second], "test": document[second + gap :]}


def dataset(text: TextConfig) -> Dataset:
    """Return windows in sequence, without overlap; each byte has the next one as its target. Raises DataError."""
    parts, known = split(text)
    digest = hashlib.sha256()
    for part in parts.values():
        digest.update(hashlib.sha256(part).digest())
    windows = {name: _windows(part, text.context) for name, part in parts.items()}
    card: DataCard = {
        "source": text.source,
        "sha256": digest.hexdigest(),
        "windows": {name: len(part) for name, part in windows.items()},
        "features": [f"{text.context} bytes"],
        "tickers": [],
        "repairs": [],
        "notes": [", ".join(f"{name} {len(part):,} bytes" for name, part in parts.items()), *known],
    }
    return Dataset(windows["train"], windows["valid"], windows["test"], card=card, outputs=VOCABULARY)


def _windows(part: bytes, context: int) -> Windows:
    rows = np.frombuffer(part, np.uint8)
    count = (len(rows) - 1) // context
    # A view of the same bytes, one further on.
    targets = rows[1 : 1 + count * context].reshape(count, context)
    return Windows(rows[: count * context], np.arange(count) * context, targets, context)
