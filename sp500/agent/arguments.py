"""Which words of an experiment's command line an agent may write.

No shell reads them; still each word is held to letters, digits and a few signs, and each flag to those that are open
to agents. Closed are those that name a folder to write to or a file of settings, and those that take more than the job
tells the queue. A new flag is closed until it is listed here.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

from sp500.config import MODEL_KEYS, TASKS, RunConfig
from sp500.tuning.presets import PRESETS

FLAG = re.compile(r"--([a-z][a-z0-9._-]*)(?:=(.*))?", re.DOTALL)
UNUSED = re.compile(r"[^A-Za-z0-9._:/+^-]")
"""What no value needs; ^ occurs in names of indices, such as ^GSPC."""
LONGEST_WORD = 200

CLOSED = {
    "num-workers": "give it as workers",
    **dict.fromkeys(("nodes", "workers-per-trial", "train.threads"), "takes more than the job tells the queue"),
    "config": "reads a file of settings; give each setting by its flag",
    "io.run-name": "give it as --name",
    "trust-source": "runs Python that came with a folder of runs",
    "rates": "the project's table of rates counts, cluster/rates.yaml",
    **dict.fromkeys(("runs-dir", "io.save-dir"), "the server says where runs go"),
    "model.path": "loads a model of another's, also from the hub",
    **dict.fromkeys(("out", "shards", "data.cache-dir", "io.archive"), "names a folder to write to"),
}
SECTIONS = ("data", "synthetic", "images", "text", "model", "train", "eval")
SETTINGS = {
    f"{section}.{key}".replace("_", "-")
    for section in SECTIONS
    for key in RunConfig.model_fields[section].default.model_dump()
} - {*CLOSED, "model.options"}
FLAGS = {"dry-run", "print-config", "json"}
SHARED = SETTINGS | FLAGS | {"task", "name", "resume", "seed", "fallback"}
OPEN: Mapping[str, frozenset[str]] = {
    "prepare": frozenset(SHARED | {"multiplier"}),
    "train": frozenset(SHARED | {"seeds"}),
    "tune": frozenset(
        SHARED
        | {"mode", "space", "method", "trials", "tickers", "by-ticker", "windows", "pack", "halving"}
        | {"trial-timeout", "trial-memory"}
    ),
    "walk_forward": frozenset(SHARED | {"folds", "test-days", "best-of"}),
    "scale": frozenset(SHARED | {"memory-limit", "skip-bad-shards", "multipliers", "arms", "max-steps"}),
    "compare": frozenset(FLAGS),
}
"""Flags of each experiment that are open to agents."""
SPACES = "spaces"
FILES: Mapping[str, tuple[str, frozenset[str], frozenset[str]]] = {
    "data.source": ("", frozenset({".csv", ".parquet", ".pq"}), frozenset({"bundled", "yfinance"})),
    "data.npz-path": ("", frozenset({".npz"}), frozenset()),
    "images.source": ("", frozenset({".npz"}), frozenset({"digits"})),
    "text.source": ("", frozenset({".txt", ".md", ".jsonl"}), frozenset({"docs", "stdlib"})),
    "text.valid-source": ("", frozenset({".txt", ".md", ".jsonl"}), frozenset({"docs", "stdlib"})),
    "text.tokenizer": ("", frozenset({".json"}), frozenset({"bytes", "bpe"})),
    "space": (SPACES, frozenset({".yaml", ".yml"}), frozenset(PRESETS)),
}
"""Flags that name a file: the folder where it has to lie, the endings that it may have, and words that are no files.
An error of the experiment quotes what it could not read, so a file with secrets must not be read at all."""


NAMES: Mapping[str, frozenset[str]] = {"task": frozenset(TASKS), "model.kind": frozenset(MODEL_KEYS)}
"""Flags that could also name Python of the user's, which would run as the user, and the names that agents may give."""


def fault(word: str, experiment: str) -> str:
    """Why a word of the arguments is refused; empty where it is not."""
    name, value = split_word(word)
    if len(word) > LONGEST_WORD:
        return f"{word[:40]!r}... has {len(word)} characters; at most {LONGEST_WORD}"
    if name and not _is_open(name, experiment):
        return f"--{name} {_explain_refusal(name, experiment)}"
    if match := UNUSED.search(value):
        return f"{word!r} has {match[0]!r}, which no setting needs; letters, digits and . _ : / + - ^ are taken"
    if not name and (not value or value.startswith("-")):
        return f"{word!r} is neither a flag nor a value; each is a word of its own, such as --train.epochs, 3"
    return _path_fault(word, value)


def _path_fault(word: str, value: str) -> str:
    if re.match(r"/|[A-Za-z0-9+.-]+:/", value) or "//" in value or ".." in value.split("/"):
        return f"{word!r} leads out of the project; name a file inside it, from the project's folder"
    if re.search(r"(^|/)\.[^0-9/]", value):
        return f"{word!r} names a hidden file or folder; none of those is open to agents"
    return ""


def file_fault(words: Iterable[str]) -> str:
    """Why a file that the words name is refused; empty where none is."""
    flag = ""
    for word in words:
        name, value = split_word(word)
        flag = name or flag
        folder, endings, words_for_none = FILES.get(flag, ("", frozenset(), frozenset()))
        if value and value not in NAMES.get(flag, {value}):
            return f"--{flag} {value}: agents may give {', '.join(sorted(NAMES[flag]))}, and no Python of a user's"
        path = PurePosixPath(value)
        if not endings or not value or value in words_for_none:
            continue
        if path.suffix.lower() not in endings or (folder and path.parts[0] != folder):
            where = f"in the folder {folder}/ of the project" if folder else "in the project"
            return f"--{flag} {value}: agents may name files {where} that end in {', '.join(sorted(endings))}"
    return ""


def split_word(word: str) -> tuple[str, str]:
    """Name of a flag and its value; one of the two is empty where the word is only the other."""
    flag = FLAG.fullmatch(word)
    return (flag[1].replace("_", "-"), flag[2] or "") if flag else ("", word)


def _is_open(name: str, experiment: str) -> bool:
    """Whether a flag is open, also as the `--section.no-key` that turns a switch off."""
    return name in OPEN[experiment] or re.sub(r"(^|\.)no-", r"\1", name) in OPEN[experiment]


def _explain_refusal(name: str, experiment: str) -> str:
    if name in CLOSED:
        return f"is closed to agents: {CLOSED[name]}"
    near = difflib.get_close_matches(name, sorted(OPEN[experiment]), n=1)
    return f"is no flag of {experiment} that agents may use" + (f"; did you mean --{near[0]}?" if near else "")
