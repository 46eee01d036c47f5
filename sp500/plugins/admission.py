"""Decides which Python and which commands may run: what is installed, what its user gave here, and what is trusted.

A folder of runs from another person holds that person's Python, and its settings name what to import. Nothing in the
folder can say that it began here, since the sender wrote all of it. So this machine remembers what its user gave: a
file or a command by its hash, wherever a copy lies, and a module by the place of its file.
"""

from __future__ import annotations

import hashlib
import sys
from contextlib import suppress
from pathlib import Path

from sp500.errors import ConfigError
from sp500.plugins.reference import Reference

FOLDER, SUMS = "source", "SHA256SUMS"
KNOWN = Path("~/.cache/sp500/own-sources")
"""What was given on this machine, a line each: the hash of a file or a command, or the place of a module's file."""
RUN_FILES = ("config.yaml", "started.json", "record.json")
_given: set[str] = set()
"""What was given in this process, by the same keys: a home that cannot be written remembers nothing."""


def lies_in_run(settings: Path, runs: Path) -> bool:
    """Return whether a settings file belongs to a run, by a folder `runs` above it, its name, or its neighbours."""
    path, root = settings.absolute().resolve(), runs.expanduser().resolve()
    placed = path.is_relative_to(root) and len(path.relative_to(root).parts) > 1
    return placed or path.name == RUN_FILES[0] or any((path.parent / name).exists() for name in RUN_FILES[1:])


def give(own: Reference) -> None:
    """Count a task or a model as given by the user, who named it. A copy in a run is not given by being named."""
    if not _is_copy(own.path):
        _given.add(_key(own))


def is_known(own: Reference) -> bool:
    """Return whether a task or a model may run wherever it is named: it is installed, or was given here."""
    return own.installed or _key(own) in _given or _key(own) in _read_known()


def admit(run: Path, own: Reference, *, trusted: bool) -> None:
    """Remember a task or a model of the run in folder `run`. Raises ConfigError for one that may not run.

    All that a run's folder can name and that would be imported passes here first. A module in the folder of runs is
    never trusted, since the next run that comes there could replace it or a package around it.
    """
    if own.installed:
        return
    if not own.module:
        _check_sum(run, own.path, own.sha256)
    key, remembered = _key(own), _read_known()
    among_runs = bool(own.module) and own.path.resolve().is_relative_to(run.parent.resolve())
    if key not in _given and key not in remembered and (among_runs or not trusted):
        raise ConfigError(_refusal(own, among_runs=among_runs))
    if key not in remembered and not among_runs and (key in _given or not own.module):
        _remember(key)


def give_command(command: str) -> None:
    """Count a command as given by the user, who wrote it."""
    _given.add(_command_key(command))


def admit_command(run: Path, command: str, *, trusted: bool) -> None:
    """Remember the command of the run in folder `run`. Raises ConfigError, with its text, for one that may not run.

    A command that only --trust-source lets pass is shown on stderr before it runs.
    """
    key, remembered = _command_key(command), _read_known()
    if key in remembered:
        return
    if key not in _given:
        if not trusted:
            raise ConfigError(
                f"{run}: its command came with a folder of runs and was never given here. It would run as you: read "
                f"it, and add --trust-source, or give it yourself with --command. It is: {_show(command)}"
            )
        print(f"--trust-source: runs the command of {run}: {_show(command)}", file=sys.stderr, flush=True)
    _remember(key)


def _command_key(command: str) -> str:
    return hashlib.sha256(f"command {command}".encode()).hexdigest()


def _show(command: str) -> str:
    """Return a command without what a terminal would obey."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in command)


def _remember(key: str) -> None:
    known = KNOWN.expanduser()
    with suppress(OSError):  # a home that cannot be written remembers nothing
        known.parent.mkdir(parents=True, exist_ok=True)
        with known.open("a") as file:
            file.write(f"{key}\n")


def _read_known() -> list[str]:
    known = KNOWN.expanduser()
    return known.read_text().splitlines() if known.exists() else []


def _key(own: Reference) -> str:
    # The hash of a module's file would say nothing of the packages around it.
    return str(own.path.resolve()) if own.module else own.sha256


def _is_copy(path: Path) -> bool:
    """Return whether a file looks like a run's copy."""
    return path.parent.name == FOLDER and any((path.parent.parent / name).exists() for name in RUN_FILES)


def _check_sum(run: Path, path: Path, digest: str) -> None:
    """Raise ConfigError for a run's copy that was changed."""
    sums = path.parent / SUMS
    if not (path.parent == run / FOLDER or _is_copy(path)):
        return
    if not sums.exists() or f"{digest}  {path.name}\n" not in sums.read_text():
        raise ConfigError(f"{path} is not the file that its run was trained with ({sums}); put that back")


def _refusal(own: Reference, *, among_runs: bool) -> str:
    """Return the message of a refusal: what is refused, and what to do."""
    ways = [] if among_runs else ["add --trust-source (trust_source=True in Python)"]
    if own.module:
        ways = ["name it yourself with --task or --model.kind", "install it as a package", *ways]
        return (
            f"{own.path}: the run names module {own.module}, which is not installed and was never given here. It is "
            f"Python that would run as you: read it, and {', or '.join(ways)}"
        )
    return (
        f"{own.path} came with a folder of runs and was never given here. It is Python that would run as you: read it, "
        f"and {ways[0]}"
    )
