"""Refuse a command that could only fail once its turn has come: quoted as a whole, of a shell's words, or with a file
that is only on this machine.

A cluster finds out after its nodes were paid for. What counts is what is here: a path that does not exist on this
machine is assumed to be one of the cluster's.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from sp500.errors import ConfigError
from sp500.jobs.spec import JobSpec
from sp500.programs import template

OF_A_SHELL = frozenset({"&&", "||", ";", "|", "&", ">", ">>", "<", "<<", "2>", "2>&1", "&>"})
PYTHON = re.compile(r"python(3(\.\d+)?)?")
# Programs that run nothing without a file, apart from a text in the command itself.
INTERPRETER = re.compile(rf"{PYTHON.pattern}|(ba|da|k|z)?sh|R(script)?|julia|node|perl|ruby")
# Options of Python that have a value, and those after which there is no script.
WITH_VALUE, WITHOUT_SCRIPT = frozenset({"-X", "-W"}), ("-m", "-c")
# Where claims are mounted, and folders that every image has, with contents of its own.
CLAIMS, IMAGE_FOLDER = ("/data", "/runs"), "/app"
SYSTEM = ("/bin", "/dev", "/etc", "/lib", "/opt", "/proc", "/sbin", "/sys", "/usr", IMAGE_FOLDER)
# Ends of flags whose value is a path. After other flags a word is a path if it has a slash or a suffix.
INPUTS = ("source", "path", "shards", "tokenizer")
# Flags of folders that a command writes to.
OUTPUTS = ("runs-dir", "runs_dir", "save-dir", "save_dir", "--out")
# Of a program that runs unchanged: the flag of its command, and flags of its files.
PROGRAM, PROGRAM_FILES = "command", ("file", "space")


def check(
    spec: JobSpec, environment: Mapping[str, str] = os.environ, *, here: bool = False, uploaded: bool = False
) -> None:
    """Raise ConfigError for a command that cannot run as it is meant. Of a cluster only what is known here counts.

    `here`: it runs on this machine. `uploaded`: in a copy of this folder.
    """
    program, *words = spec.argv
    path = {**environment, **spec.env}.get("PATH")
    is_found = program in {"python", "python3", "sp500"} or shutil.which(program, path=path) is not None
    if " " in program and not is_found and (here or not words):
        raise ConfigError(
            f"the command is one word, {program!r}, and no program has that name. Leave the quotes out: -- {program}. "
            f"For a command of a shell: -- sh -c {shlex.quote(program)}"
        )
    executes = {"-exec", "-execdir"}.intersection(words)  # of find, which end with a ;
    operators = (word for word in words if word in OF_A_SHELL and not (executes and word == ";"))
    if operator := next(operators, None):
        raise ConfigError(
            f"the command has the word {operator!r}, and no shell reads it. For a command of a shell: -- sh -c '...'"
        )
    if here and not is_found:
        raise ConfigError(
            f"{program}: no program that can be started here. For a file of Python: -- python FILE.py; else: chmod +x"
        )
    script = _script(program, words)
    if script and (here or (uploaded and not Path(script).is_absolute())) and not os.path.exists(script):  # noqa: PTH110 - false for a name that is too long
        folder = Path(script).parent
        names = [str(folder / path.name) for path in folder.glob("*.py")]
        near = difflib.get_close_matches(str(Path(script)), names, n=1)
        hint = f"Did you mean {near[0]}?" if near else "Correct the path, or change to the folder that it is in"
        raise ConfigError(f"{script}: no such file in {Path.cwd()}. {hint}")


def _script(program: str, words: list[str]) -> str:
    """Return the file that Python would run; empty if there is none or another program runs."""
    if not PYTHON.fullmatch(Path(program).name):
        return ""
    rest = iter(words)
    for word in rest:
        if word.startswith(WITHOUT_SCRIPT) or word == "-":
            return ""
        if word in WITH_VALUE:
            next(rest, "")
        elif not word.startswith("-"):
            return word
    return ""


def find_local_paths(spec: JobSpec) -> Iterator[tuple[str, Path]]:
    """Yield words of the command and of its settings that name a local file or folder, each with its path."""
    commands = (_flags(template.parse(text).words) for flag, text in _options(spec) if flag.lstrip("-") == PROGRAM)
    for flag, value in [*_options(spec), *chain.from_iterable(commands)]:
        is_path = "/" in value or Path(value).suffix or flag.endswith(INPUTS)
        if flag.endswith(OUTPUTS) or "://" in value or not is_path:
            continue
        # FILE.py:NAME is an object in a file.
        if path := next(filter(None, map(_existing, (value, value.rpartition(":")[0]))), None):
            yield value, path


def find_program_files(spec: JobSpec) -> list[Path] | None:
    """Return the relative paths of the files of a program that runs unchanged; None if the job runs no such program.

    They are its script, its space, those that --file names, and the script that the job itself runs. Raises ConfigError
    for an invalid command, and for an interpreter without a file.
    """
    options = [(flag.lstrip("-"), value) for flag, value in _options(spec)]
    commands = [template.parse(value) for flag, value in options if flag == PROGRAM]
    if not commands:
        return None
    has_files = any(flag == "file" for flag, _ in options)
    scripts = [name for command in commands for name in _find_scripts(command, has_files)]
    named = [value for flag, value in options if flag in PROGRAM_FILES]
    names = [_script(spec.argv[0], list(spec.argv[1:])), *scripts, *named]
    paths = {Path(os.path.normpath(name)) for name in names if name}
    return sorted(path for path in paths if path.parts[:1] not in {("/",), ("~",)})


def _find_scripts(command: template.Template, has_files: bool) -> list[str]:
    """Return the script of a program's command, and the modules after -m that are here.

    Raises ConfigError for an interpreter with neither, unless files are named or its script is elsewhere.
    """
    program, *words = command.words
    names = [name.replace(".", "/") for flag, name in pairwise(words) if flag == "-m"]
    modules = [file for name in names for file in (f"{name}.py", f"{name}/__main__.py") if _existing(file)]
    scripts = [*modules, *filter(None, [str(command.script or _script(program, words))])]
    is_elsewhere = next((word for word in words if not word.startswith("-")), "").startswith("/")
    if INTERPRETER.fullmatch(Path(program).name) and not (scripts or has_files or is_elsewhere):
        raise ConfigError(
            f"command: {shlex.join(command.words)!r:.200} names no script of this folder; name its files: --file FILE"
        )
    return scripts


def _options(spec: JobSpec) -> list[tuple[str, str]]:
    """Return each value of the command and of the settings, with its flag or key."""
    return [*_flags(spec.argv), *_settings("", spec.settings)]


def _flags(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each value with its flag, which is empty for words before the first flag."""
    flag = ""
    for word in words:
        value = word
        if word.startswith("-"):
            flag, _, value = word.partition("=")
        if value:
            yield flag, value


def _existing(text: str) -> Path | None:
    """Return the path that a word means, without `.` and inner `..`; None if there is no such file."""
    if not text:
        return None
    path = Path(os.path.normpath(Path(text).expanduser()))
    try:
        return path if path.exists() else None
    except (OSError, ValueError):  # too long, of another user's folder, with a NUL
        return None


def _settings(key: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield each text in the settings with its key."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict):
        for name, part in value.items():
            yield from _settings(str(name), part)
    elif isinstance(value, list):
        for part in value:
            yield from _settings(key, part)


def is_below(path: Path, folders: tuple[str, ...]) -> bool:
    """Return whether a path lies in one of these folders."""
    return any(path.is_relative_to(folder) for folder in folders)
