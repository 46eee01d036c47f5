"""Tokens of a text: bytes, those of a tokenizer trained here, or of one that comes with a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sp500.data.text.settings import TextConfig
from sp500.errors import ConfigError, extra

END = "<|end|>"
"""Token after a document, of a tokenizer that is trained here."""
ENDS = (END, "</s>", "<|endoftext|>", "<|end_of_text|>", "<eos>", "<|eot_id|>", "<|im_end|>")
"""That token in tokenizers made elsewhere."""
FILE = "tokenizer.json"
State = dict[str, str | int | None]
"""Plain data of a tokenizer: `tokenizer`, its name or its JSON, and `end`."""


@dataclass(frozen=True)
class Tokens:
    """Numbers [token], and the bytes of text that each represents [token]; they add up to the text's."""

    ids: np.ndarray
    sizes: np.ndarray


class Bytes:
    """Each byte is a token; the end of a document is one more."""

    size: int = 257
    """Tokens that it knows."""
    end: int | None = 256
    """Token after a document; None: it has none."""

    def encode(self, text: bytes) -> Tokens:
        """Return the tokens of a document, without any that represent no text."""
        ids = np.frombuffer(text, np.uint8).astype(np.int32)
        return Tokens(ids, np.ones_like(ids))

    def decode(self, ids: Sequence[int]) -> bytes:
        """Return the text of tokens, without `end`."""
        return bytes(number for number in ids if number < 256)

    def state(self) -> State:
        """Return the plain data from which `restore` makes it."""
        return {"tokenizer": "bytes"}

    def save(self, folder: Path) -> None:
        """Write nothing: transformers has no such format."""
        del folder


class Library:
    """A tokenizer of Hugging Face's library."""

    def __init__(self, text: str, end: int | None) -> None:
        with extra("llm"):
            import tokenizers

        self._tokenizer = tokenizers.Tokenizer.from_str(text)
        self._tokenizer.no_truncation()  # a file that was saved after training cuts each document
        self._tokenizer.no_padding()
        self.size, self.end = self._tokenizer.get_vocab_size(), end

    def encode(self, text: bytes) -> Tokens:
        """Return the tokens of the text; bytes that are not UTF-8 are replaced."""
        written = text.decode(errors="replace")
        encoding = self._tokenizer.encode(written, add_special_tokens=False)
        # In bytes up to each character: a token of a part of one has all of its bytes, the next part none.
        points = np.frombuffer(written.encode("utf-32-le"), np.uint32)
        widths = 1 + (points >= 0x80) + (points >= 0x800) + (points >= 0x10000)
        until = np.concatenate([[0], np.cumsum(widths)])
        ends = until[np.array([end for _, end in encoding.offsets], dtype=np.int64)]
        sizes = np.diff(np.maximum.accumulate(ends), prepend=0)
        if len(sizes):
            sizes[-1] += until[-1] - sizes.sum()  # spaces at the end that the tokenizer drops
        return Tokens(np.array(encoding.ids, np.int32), sizes.astype(np.int32))

    def decode(self, ids: Sequence[int]) -> bytes:
        """Return the text of tokens."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True)).encode()

    def state(self) -> State:
        """Return the library's own JSON."""
        return {"tokenizer": self._tokenizer.to_str(), "end": self.end}

    def save(self, folder: Path) -> None:
        """Write it as transformers' AutoTokenizer reads it."""
        with extra("llm"):
            from transformers import PreTrainedTokenizerFast

        end = None if self.end is None else self._tokenizer.id_to_token(self.end)
        PreTrainedTokenizerFast(tokenizer_object=self._tokenizer, eos_token=end).save_pretrained(folder)


Tokenizer = Bytes | Library
"""Text to tokens and back."""


def make(text: TextConfig, training: Sequence[bytes], model_path: str = "") -> Tokenizer:
    """Make the tokenizer that the settings name; `training` are the documents for one that is trained.

    Raises ConfigError for a file or folder without one.
    """
    own = bool(model_path) and any(Path(model_path).glob("tokenizer*"))
    name = text.tokenizer or ("model" if own else "bpe" if model_path else "bytes")
    if name == "bytes":
        return Bytes()
    if name == "bpe":
        return _train(training, text.vocabulary)
    if name == "model":
        return _of_folder(model_path, "model.path")
    if Path(name).expanduser().is_file():
        return _of_file(Path(name).expanduser())
    return _of_folder(name, "text.tokenizer")


def restore(state: Mapping[str, str | int | None]) -> Tokenizer:
    """Make the tokenizer that has this `state`."""
    name = str(state["tokenizer"])
    if name == "bytes":
        return Bytes()
    end = state["end"]
    return Library(name, None if end is None else int(end))


def _train(training: Sequence[bytes], size: int) -> Library:
    """Train byte-pair encoding (Sennrich et al. 2016) over bytes, so that no text is unknown."""
    with extra("llm"):
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=[END], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator((document.decode(errors="replace") for document in training), trainer)
    return Library(tokenizer.to_str(), tokenizer.token_to_id(END))


def _of_file(path: Path) -> Library:
    with extra("llm"):
        import tokenizers
    try:
        tokenizer = tokenizers.Tokenizer.from_str(path.read_text())
    except Exception as error:  # noqa: BLE001 - the library raises no other class; raised again with the file
        raise ConfigError(f"text.tokenizer {path}: is not a tokenizer.json ({error})") from None
    ends = [number for number, token in tokenizer.get_added_tokens_decoder().items() if token.content in ENDS]
    return Library(tokenizer.to_str(), ends[0] if ends else None)


def _of_folder(folder: str, field: str) -> Library:
    """Load the tokenizer of a model's folder, or of a name on the hub whose files are in the cache already."""
    with extra("llm"):
        from transformers import AutoTokenizer
    path = Path(folder).expanduser()
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            path if path.is_dir() else folder, local_files_only=True, trust_remote_code=False
        )
        backend = tokenizer.backend_tokenizer
    except (OSError, ValueError, ImportError, AttributeError) as error:
        raise ConfigError(
            f"{field} {folder}: has no tokenizer that can be used ({str(error).splitlines()[0]:.200}); expected"
            f" {FILE} in it. Set text.tokenizer to bytes, bpe, a folder or a {FILE}"
        ) from None
    return Library(backend.to_str(), tokenizer.eos_token_id)
