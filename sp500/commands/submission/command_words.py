"""Refuse a command that could only fail once its turn has come: quoted as a whole, of a shell's words, or not here."""

from __future__ import annotations

import difflib
import os
import re
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

from sp500.errors import ConfigError
from sp500.jobs.spec import JobSpec

OF_A_SHELL = frozenset({"&&", "||", ";", "|", "&", ">", ">>", "<", "<<", "2>", "2>&1", "&>"})
PYTHON = re.compile(r"python(3(\.\d+)?)?")
# Options of Python that have a value, and those after which there is no script.
WITH_VALUE, WITHOUT_SCRIPT = frozenset({"-X", "-W"}), ("-m", "-c")


def check(spec: JobSpec, on: str, environment: Mapping[str, str]) -> None:
    """Raise ConfigError for a command that cannot run as it is meant. Of a cluster only what is known here counts."""
    program, *words = spec.argv
    here, path = on == "local", {**environment, **spec.env}.get("PATH")
    is_found = program in {"python", "python3"} or shutil.which(program, path=path) is not None
    if " " in program and not is_found and (here or not words):
        raise ConfigError(
            f"the command is one word, {program!r}, and no program has that name. Leave the quotes out: -- {program}. "
            f"For a command of a shell: -- sh -c {shlex.quote(program)}"
        )
    executes = {"-exec", "-execdir"}.intersection(words)  # of find, which end with a ;
    if found := next((word for word in words if word in OF_A_SHELL and not (executes and word == ";")), None):
        raise ConfigError(
            f"the command has the word {found!r}, and no shell reads it: {program} would get it as an argument. For a "
            "command of a shell: -- sh -c '...'; for one after another: a job each"
        )
    if here and not is_found:
        raise ConfigError(
            f"{program}: no program that can be started here. Expected one in PATH, or the path of a file with the "
            "right to execute (chmod +x). For a file of Python: -- python FILE.py"
        )
    uploaded = on == "ray" and spec.working_dir is None
    script = _script(program, words)
    if script and (here or (uploaded and not Path(script).is_absolute())) and not os.path.exists(script):  # noqa: PTH110 - false for a name that is too long
        folder = Path(script).parent
        names = [str(folder / path.name) for path in folder.glob("*.py")]
        near = difflib.get_close_matches(str(Path(script)), names, n=1)
        hint = f"Did you mean {near[0]}?" if near else "Correct the path, or change to the folder that it is in"
        raise ConfigError(f"{script}: no such file in {Path.cwd()}. {hint}")


def _script(program: str, words: list[str]) -> str:
    """The file that Python would run; empty where there is none, or another program runs."""
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
