"""Settings of a text and of its windows of tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import model_validator

from sp500.config.frozen import AgentFiles, Frozen, setting

TEXTS = AgentFiles(frozenset({".txt", ".md", ".jsonl"}), frozenset({"docs", "stdlib"}))


class TextConfig(Frozen):
    """Which text, and how it is cut into windows of tokens."""

    source: str = setting("docs", agents=TEXTS)
    """docs (of Python 3.11) | stdlib (source of this Python's library) | FILE | FOLDER | FILE.jsonl or FILE.ndjson."""
    valid_source: str = setting("", agents=TEXTS)
    """Text for the validation, in place of a part of source."""
    field: str = setting("text", agents=True)
    """Key of the text in each line of a .jsonl file."""
    prompt: str = setting("", agents=True)
    """Key of what is given, in each line of a .jsonl file of instructions; only the answer's tokens count."""
    answer: str = setting("", agents=True)
    """Key of the answer."""
    tokenizer: str = setting("", agents=AgentFiles(frozenset({".json"}), frozenset({"bytes", "bpe"})))
    """bytes | bpe (trained on the training part) | model (that of model.path) | FOLDER | tokenizer.json. Default:
    bytes; for hf its own, or bpe if its folder has none. All but bytes need sp500[llm]."""
    vocabulary: int = setting(2048, gt=256, agents=True)
    """Tokens of bpe."""
    pack: Literal["stream", "documents"] = setting("stream", agents=True)
    """stream: documents end to end, cut into windows | documents: several whole ones in a window, the rest masked.
    Instructions take documents."""
    context: int = setting(64, gt=0, agents=True)
    """Tokens of a window: bytes, unless a tokenizer is given."""
    max_bytes: int = setting(0, ge=0, agents=True)
    """Take the first so many bytes; 0: all."""
    valid_fraction: float = setting(0.1, gt=0, lt=0.5, agents=True)
    """Part of the text before the test, used for validation."""
    test_fraction: float = setting(0.1, gt=0, lt=0.5, agents=True)
    """Last part of the text, held out for the test."""

    @model_validator(mode="after")
    def _instructions_are_whole(self) -> TextConfig:
        if bool(self.prompt) != bool(self.answer):
            present, lacking = ("prompt", "answer") if self.prompt else ("answer", "prompt")
            raise ValueError(f"text.{present} is given without text.{lacking}: instructions have both")
        if self.prompt and self.pack != "documents":
            raise ValueError("text.pack stream would cut instructions; set text.pack: documents")
        if self.prompt and not self.source.lower().endswith((".jsonl", ".ndjson")):
            raise ValueError(f"text.source {self.source!r}: text.prompt and text.answer are keys of a .jsonl file")
        if self.vocabulary != type(self).model_fields["vocabulary"].default and self.tokenizer != "bpe":
            raise ValueError("text.vocabulary is used only by text.tokenizer bpe; remove it")
        return self

    @property
    def plain(self) -> bool:
        """True if a token is a byte and a window a run of them, as without any of the later settings."""
        return self.tokenizer in ("", "bytes") and self.pack == "stream"

    @property
    def identity(self) -> dict[str, object]:
        """The settings that decide the numbers: files by their names, and the later settings unless default."""
        settings = self.model_dump(mode="json")
        for key in ("valid_source", "prompt", "answer", "tokenizer", "vocabulary", "pack"):
            if settings[key] == type(self).model_fields[key].default:
                del settings[key]
        files = {key: Path(settings[key]).name for key in ("source", "valid_source", "tokenizer") if settings.get(key)}
        return {**settings, **files}
