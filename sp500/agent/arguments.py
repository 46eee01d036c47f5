"""Words of an experiment's command line that an agent may write.

No shell reads them; still each word is held to letters, digits and a few signs, and each flag to those that are open
to agents. Closed are those that name a folder to write to or a file of settings, and those that use more than the job
requests from the queue. A flag is closed unless its field says `agents=True`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import PurePosixPath

from pydantic.fields import FieldInfo

from sp500.config import RunConfig, kinds
from sp500.config.frozen import AgentFiles, Agents, Alias, Frozen, read_mark
from sp500.execution import Experiment
from sp500.studies.settings import ScaleSettings, SearchSettings, TrainSettings, WalkForwardSettings
from sp500.tuning.presets import PRESETS
from sp500.tuning.suggest import METHODS

FLAG = re.compile(r"--([a-z][a-z0-9._-]*)(?:=(.*))?", re.DOTALL)
UNUSED = re.compile(r"[^A-Za-z0-9._:/+^-]")
"""Characters that no value needs; ^ occurs in names of indices, such as ^GSPC."""
LONGEST_WORD = 200

CLOSED = {
    "num-workers": "set it as workers",
    **dict.fromkeys(
        ("nodes", "workers-per-trial", "train.threads", "data.loaders"),
        "uses more than the job requests from the queue",
    ),
    "config": "reads a file of settings; set each by its flag",
    "io.run-name": "set it as --name",
    "trust-source": "runs Python that came with a folder of runs",
    "overwrite": "deletes a run",
    "rates": "the project's table of rates counts, cluster/rates.yaml",
    **dict.fromkeys(("runs-dir", "io.save-dir"), "the server says where runs go"),
    "model.path": "loads a model of another's, also from the hub",
    **dict.fromkeys(("out", "shards", "data.cache-dir", "io.archive"), "names a folder to write to"),
    "io.project": "the job's project counts",
    **dict.fromkeys(("watch", "port"), "opens a port, and never ends"),
    **dict.fromkeys(("runs", "project", "slides"), "the report is of all runs"),
}
"""Reasons that flags are closed, if a reader would ask."""
STUDIES: Mapping[str, type[RunConfig] | None] = {
    "prepare": Experiment,
    "train": TrainSettings,
    "tune": SearchSettings,
    "walk_forward": WalkForwardSettings,
    "scale": ScaleSettings,
    "compare": None,
}
"""Experiments that agents may run, and the settings whose marks say which flags are open."""


def _list_open(fields: Mapping[str, FieldInfo], section: str = "") -> Iterator[tuple[str, Agents]]:
    """Yield each flag that its field opens to agents, with the mark."""
    for name, field in fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Frozen):
            yield from _list_open(field.annotation.all_fields(), f"{name}.")
        elif mark := read_mark(field):
            if mark != "short":
                yield f"{section}{name}".replace("_", "-"), mark
            for short in (alias.flag for alias in field.metadata if isinstance(alias, Alias)):
                yield short.removeprefix("--"), mark


MARKS: Mapping[str, Mapping[str, Agents]] = {
    experiment: dict(_list_open(of.all_fields())) if of else {} for experiment, of in STUDIES.items()
}
FLAGS = frozenset({"dry-run", "print-config", "json"})
"""Flags of every script that print and do nothing."""
OPEN = {experiment: FLAGS | marks.keys() for experiment, marks in MARKS.items()}
"""Flags of each experiment that are open to agents."""
FILES = {flag: mark for marks in MARKS.values() for flag, mark in marks.items() if isinstance(mark, AgentFiles)}
FILES["space"] = replace(FILES["space"], words=frozenset(PRESETS))
NAMES: Mapping[str, frozenset[str]] = {
    "task": frozenset(kinds.tasks()),
    "model.kind": frozenset(kinds.models()),
    "method": frozenset({"auto", *METHODS}),
}
"""Flags that could also name Python of the user's, which would run as the user, and the names that agents may give."""


def fault(word: str, experiment: str) -> str:
    """Return why a word of the arguments is refused; empty if it is not."""
    name, value = split_word(word)
    if len(word) > LONGEST_WORD:
        return f"{word[:40]!r}... has {len(word)} characters; at most {LONGEST_WORD}"
    if name and not _is_open(name, experiment):
        return f"--{name} {_explain_refusal(name, experiment)}"
    if match := UNUSED.search(value):
        return f"{word!r} contains {match[0]!r}, which is not allowed; use letters, digits and . _ : / + - ^"
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
    """Return why a file that the words name is refused; empty if none is."""
    flag = ""
    for word in words:
        name, value = split_word(word)
        flag = name or flag
        files = FILES.get(flag)
        if value and value not in NAMES.get(flag, {value}):
            return f"--{flag} {value}: agents may use {', '.join(sorted(NAMES[flag]))}, and no Python of a user's"
        path = PurePosixPath(value)
        if not files or not value or value in files.words:
            continue
        if path.suffix.lower() not in files.endings or (files.folder and path.parts[0] != files.folder):
            where = f"in the folder {files.folder}/ of the project" if files.folder else "in the project"
            return f"--{flag} {value}: agents may name files {where} that end in {', '.join(sorted(files.endings))}"
    return ""


def split_word(word: str) -> tuple[str, str]:
    """Return the name of a flag and its value; one is empty if the word is only the other."""
    flag = FLAG.fullmatch(word)
    return (flag[1].replace("_", "-"), flag[2] or "") if flag else ("", word)


def _is_open(name: str, experiment: str) -> bool:
    """Return whether a flag is open, also as the `--section.no-key` that turns a switch off."""
    return name in OPEN[experiment] or re.sub(r"(^|\.)no-", r"\1", name) in OPEN[experiment]


def _explain_refusal(name: str, experiment: str) -> str:
    if name in CLOSED:
        return f"is closed to agents: {CLOSED[name]}"
    near = difflib.get_close_matches(name, sorted(OPEN[experiment]), n=1)
    return f"is not a flag of {experiment} that is available to agents" + (
        f"; did you mean --{near[0]}?" if near else ""
    )
