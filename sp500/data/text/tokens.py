"""From documents to windows of tokens, where a token is not just a byte of one long text.

`stream`: documents end to end, an end token after each, cut into windows that follow each other. `documents`: whole
ones, first-fit into windows, with the tokens between and after them masked; so no prompt is cut. Documents of one
window see those before them, as in usual packing. Of instructions only the answer and its end count.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from sp500.data.text import corpus, naive
from sp500.data.text.dataset import note_known, split_documents
from sp500.data.text.settings import TextConfig
from sp500.data.text.tokenizer import Tokenizer, Tokens, make
from sp500.data.windows import MASKED, Dataset, Windows
from sp500.errors import DataError
from sp500.formatting import some
from sp500.runs.results import DataCard

OPEN_WINDOWS = 64
"""Windows that first-fit looks at, newest last."""
MOST = 10_000_000
"""Bytes before the test that the naive methods know, and of the test that they are judged on: more takes xz minutes."""


class Part(NamedTuple):
    """Windows of a split, and the bytes that their counted targets represent."""

    windows: Windows
    bytes: int


def dataset(text: TextConfig, model_path: str = "") -> Dataset:
    """Return windows of tokens, each with the next token as its target.

    `model_path`: folder of the model whose tokenizer may be wanted. Raises DataError that names the document.
    """
    documents, known = _documents(text)
    training = [prompt + answer for prompt, answer in documents["train"]]
    tokenizer = make(text, training, model_path)
    pack = _pack if text.pack == "documents" else _stream
    parts = {name: pack(name, pairs, tokenizer, text) for name, pairs in documents.items()}
    notes = _note_losses([answer for _, answer in documents["test"]], tokenizer)
    if tokenizer.end is None and len(training) > 1:
        notes.append("the tokenizer has no end token: where a document ends is not learned, nor when to stop")
    card: DataCard = {
        "source": text.source,
        "sha256": _digest(documents, tokenizer),
        "windows": {name: len(part.windows) for name, part in parts.items()},
        "features": [f"{text.context} tokens of {tokenizer.size:,}"],
        "tickers": [],
        "repairs": [],
        "notes": [", ".join(f"{name} {part.bytes:,} bytes" for name, part in parts.items()), *known, *notes],
        "bytes": {name: part.bytes for name, part in parts.items()},
        "naive_bits": _naive_bits(documents),
    }
    train, valid, test = (parts[name].windows for name in ("train", "valid", "test"))
    return Dataset(train, valid, test, card=card, outputs=tokenizer.size, state=tokenizer.state())


def _documents(text: TextConfig) -> tuple[dict[str, list[tuple[bytes, bytes]]], list[str]]:
    """Return (prompt, answer) by split, and notes on those in two; a document without a prompt is an answer."""
    if not text.prompt:
        parts, known = split_documents(text)
        return {name: [(b"", document) for document in part] for name, part in parts.items()}, known
    corpus.refuse_unused_field(text)
    pairs, valid = corpus.read_pairs(text, text.source), []
    if text.valid_source:
        valid = corpus.read_pairs(text, text.valid_source)
    shares = np.array([text.valid_fraction * (not valid), text.test_fraction])
    counts = np.maximum(np.round(shares * len(pairs)).astype(int), [not valid, 1])
    if counts.sum() >= len(pairs):
        raise DataError(f"text.source {text.source}: {len(pairs)} instructions are too few to split")
    last = len(pairs) - counts[1]
    first = last - counts[0]
    documents = {"train": pairs[:first], "valid": valid or pairs[first:last], "test": pairs[last:]}
    return documents, note_known(text, {name: [b"\0".join(pair) for pair in part] for name, part in documents.items()})


def _stream(name: str, documents: Sequence[tuple[bytes, bytes]], tokenizer: Tokenizer, text: TextConfig) -> Part:
    encoded = [_append_end(tokenizer.encode(document), tokenizer) for _, document in documents]
    ids, sizes = (np.concatenate([getattr(tokens, key) for tokens in encoded]) for key in ("ids", "sizes"))
    count = (len(ids) - 1) // text.context
    if count < 1:
        raise DataError(
            f"text.source {text.source}: {name} has {len(ids)} tokens, a window {text.context + 1}; lower text.context"
        )
    used = count * text.context
    targets = ids[1 : 1 + used].reshape(count, text.context)
    windows = Windows(ids[:used], np.arange(count) * text.context, targets, text.context)
    return Part(windows, int(sizes[1 : 1 + used].sum()))


def _pack(name: str, documents: Sequence[tuple[bytes, bytes]], tokenizer: Tokenizer, text: TextConfig) -> Part:
    length, filled, total = text.context + 1, list[list[np.ndarray]](), 0
    room: list[tuple[int, int]] = []  # window and what is free in it, of the newest
    for number, (prompt, answer) in enumerate(documents, 1):
        for piece, sizes in _pieces(f"{name} document {number}", prompt, answer, tokenizer, text):
            total += int(sizes.sum())
            for position, (window, free) in enumerate(room):
                if piece.shape[1] <= free:
                    filled[window].append(piece)
                    room[position] = window, free - piece.shape[1]
                    break
            else:
                filled.append([piece])
                room = [*room, (len(filled) - 1, length - piece.shape[1])][-OPEN_WINDOWS:]
    lines = np.full((2, len(filled), length), MASKED, np.int64)
    lines[0] = 0
    for window, pieces in enumerate(filled):
        joined = np.concatenate(pieces, axis=1)
        lines[:, window, : joined.shape[1]] = joined
    ids, targets = lines
    starts = np.arange(len(filled)) * length
    windows = Windows(ids.astype(np.int32).reshape(-1), starts, targets[:, 1:].astype(np.int32), text.context)
    return Part(windows, total)


def _pieces(
    name: str, prompt: bytes, answer: bytes, tokenizer: Tokenizer, text: TextConfig
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return tokens and targets [2, token], and the bytes of the counted tokens: one pair, or more of a long document.

    The first token of a piece is not a target, since nothing before it is of its document.
    Raises DataError for instructions that are longer than a window.
    """
    question, reply = tokenizer.encode(prompt), _append_end(tokenizer.encode(answer), tokenizer)
    ids, sizes = (np.concatenate([getattr(tokens, key) for tokens in (question, reply)]) for key in ("ids", "sizes"))
    length = text.context + 1
    if prompt and len(ids) > length:
        raise DataError(
            f"text.source {text.source}: {name} has {len(ids)} tokens, a window {length}; raise text.context"
        )
    targets = ids.astype(np.int64)
    targets[: max(len(question.ids), 1)] = MASKED
    pieces = []
    for first in range(0, len(ids), length):
        piece, counted = np.stack([ids, targets])[:, first : first + length], sizes[first : first + length].copy()
        piece[1, 0] = MASKED
        counted[piece[1] == MASKED] = 0
        pieces.append((piece, counted))
    return pieces


def _note_losses(documents: Sequence[bytes], tokenizer: Tokenizer) -> list[str]:
    """Return a note that counts documents which, apart from spaces, are not the same after encoding and decoding."""
    texts = [document.decode(errors="replace") for document in documents]
    again = [tokenizer.decode(tokenizer.encode(text.encode()).ids.tolist()).decode(errors="replace") for text in texts]
    lost = sum("".join(one.split()) != "".join(other.split()) for one, other in zip(texts, again, strict=True))
    whole = f"{lost} of {some(len(texts), 'test document')}"
    return [f"the tokenizer loses characters of {whole}, so bits per byte are too low"] if lost else []


def _append_end(tokens: Tokens, tokenizer: Tokenizer) -> Tokens:
    """Append the end of the document, which represents no text."""
    if tokenizer.end is None:
        return tokens
    return Tokens(np.append(tokens.ids, np.int32(tokenizer.end)), np.append(tokens.sizes, np.int32(0)))


def _naive_bits(documents: Mapping[str, Sequence[tuple[bytes, bytes]]]) -> dict[str, float]:
    """Return bits per byte of the test's answers, by naive method, given all texts before them."""
    before = corpus.BETWEEN.join(prompt + answer for name in ("train", "valid") for prompt, answer in documents[name])
    answers = corpus.BETWEEN.join(answer for _, answer in documents["test"])
    return naive.bits_per_byte(before[-MOST:], answers[:MOST])


def _digest(documents: Mapping[str, Sequence[tuple[bytes, bytes]]], tokenizer: Tokenizer) -> str:
    digest = hashlib.sha256(repr(sorted(tokenizer.state().items())).encode())
    for pairs in documents.values():
        for pair in pairs:
            for text in pair:
                digest.update(hashlib.sha256(text).digest())
    return digest.hexdigest()
