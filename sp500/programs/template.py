"""The command of a program: words with places for values.

It is split into words once, as a shell would, and values are put into the words afterwards. So a value with spaces,
quotes or a semicolon stays within its word, and no shell reads it.
"""

from __future__ import annotations

import difflib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sp500.errors import ConfigError

FOLDER = "folder"
"""Name of the place for the folder of a trial or a run."""
PLACE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
SUFFIXES = {".py", ".sh", ".R", ".jl", ".js", ".pl", ".rb"}
"""Of files that another program, such as Python, runs."""


@dataclass(frozen=True)
class Template:
    """The words of a command, each with its places."""

    words: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its places, each once, without that of the folder."""
        places = (match[1] for word in self.words for match in PLACE.finditer(word) if match[1] is not None)
        return tuple(dict.fromkeys(name for name in places if name != FOLDER))

    @property
    def script(self) -> Path | None:
        """The file that it runs, if that lies here: the first word, else one with the suffix of a script."""
        program, *words = self.words
        scripts = [program, *(word for word in words if Path(word).suffix in SUFFIXES)]
        return next((Path(word) for word in scripts if _is_file(word)), None)

    def check(self, known: Sequence[str]) -> None:
        """Raise ConfigError for a place without a value and for a value without a place; `known`: names of values."""
        for name in self.names:
            if name not in known:
                near = difflib.get_close_matches(name, [*known, FOLDER], n=1, cutoff=0.4)
                names = f"known names: {', '.join([*known, FOLDER])}; a brace of the program's own is {{{{"
                hint = f"did you mean {{{near[0]}}}?" if near else names
                raise ConfigError(f"command: unknown name {{{name}}}; {hint}")
        if unused := [name for name in known if name not in self.names]:
            near = difflib.get_close_matches(unused[0], self.names, n=1, cutoff=0.4)
            hint = f" (did you mean {{{near[0]}}}?)" if near else ""
            raise ConfigError(
                f"command: has no place for {unused[0]}{hint}, so its values would change nothing; write "
                f"--{unused[0]} {{{unused[0]}}}, or leave it out of the space"
            )

    def fill(self, values: Mapping[str, Any], folder: Path) -> list[str]:
        """Return the words with these values. Raises ConfigError for a text that would be read as a flag."""
        every = {**values, FOLDER: str(folder)}
        words = []
        for word in self.words:
            first = PLACE.match(word)
            value = every[first[1]] if first and first[1] is not None else None
            if isinstance(value, str) and value.startswith("-"):
                raise ConfigError(
                    f"command: the value {value!r} of {first and first[1]} begins with a dash, so the program would "
                    f"take it for a flag; write --NAME={{{first and first[1]}}} as one word"
                )
            words.append(PLACE.sub(lambda match: _replace(match, every), word))
        return words


def parse(command: str) -> Template:
    """Return the words of a command. Raises ConfigError for one that is empty, or has a quote or a brace alone."""
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise ConfigError(f"command {command!r:.200}: {error}; quote words as in a shell") from None
    if not words:
        raise ConfigError("command: is empty; write a program with its arguments, such as 'python train.py --lr {lr}'")
    for word in words:
        if any(match[0] in "{}" for match in PLACE.finditer(word)):
            raise ConfigError(f"command: {word!r} has a brace without its pair; a brace of the program's own is {{{{")
    return Template(words)


def text(value: Any) -> str:
    """Return a value as a word of a command: text as it is, all else as in JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def _replace(match: re.Match[str], values: Mapping[str, Any]) -> str:
    return match[0][0] if match[1] is None else text(values[match[1]])


def _is_file(word: str) -> bool:
    try:
        return Path(word).is_file()
    except (OSError, ValueError):  # too long, with a NUL
        return False
