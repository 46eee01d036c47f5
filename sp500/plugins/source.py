"""A user's Python file: imported once, and copied into the run.

A run trains what is in `runs/NAME/source/`, a copy of the user's file. A change of the original while it runs, or
before it is resumed, has no effect. The price: a task or a model is one file, or an installed package.
"""

from __future__ import annotations

import difflib
import hashlib
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sp500.errors import ConfigError, DataError, SP500Error
from sp500.machine.disk import write_atomic
from sp500.machine.memory import is_out_of_memory
from sp500.plugins.admission import FOLDER, SUMS
from sp500.plugins.reference import Reference

ONE_FILE = (
    "a file of your own is one file: what it imports has to be installed. For files next to it, name the module from "
    "their folder: {module}:{name} in place of FILE.py:NAME"
)
_modules: dict[str, types.ModuleType] = {}
_importing: list[Path] = []
"""Files that are being imported now."""


def check_not_importing() -> None:
    """Raise ConfigError while a file of the user's is imported: a study in it would import it again."""
    if _importing:
        raise ConfigError(
            f"{_importing[-1]} starts a run when it is imported, as for its own task or model: put that below "
            "if __name__ == '__main__':"
        )


def load(reference: Reference) -> Any:
    """Import the class or function. Raises ConfigError if that fails."""
    try:
        module = _import(reference)
    except Exception as error:  # of the user's file, which may raise anything: raised again with its line
        way_out = ONE_FILE.format(module=reference.path.stem, name=reference.name)
        hint = f" ({way_out})" if isinstance(error, ModuleNotFoundError) and not reference.module else ""
        raise ConfigError(describe(error, reference) + hint) from error
    try:
        return getattr(module, reference.name)
    except AttributeError:
        own = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
        near = difflib.get_close_matches(reference.name, own, n=1)
        hint = f"did you mean {near[0]}?" if near else f"it defines {', '.join(own) or 'no class or function'}"
        raise ConfigError(f"{reference.path.name} has no {reference.name} once it is imported; {hint}") from None


@contextmanager
def blame(*references: Reference | None) -> Iterator[None]:
    """Raise DataError with the line of these files for an exception of the user's code.

    Errors of this package, those of the memory, and all without a file of the user's pass.
    """
    try:
        yield
    except Exception as error:  # of the user's code, which may raise anything: raised again with its line
        if isinstance(error, SP500Error) or is_out_of_memory(error) or not any(references):
            raise
        raise DataError(describe(error, *references)) from error


def _import(reference: Reference) -> types.ModuleType:
    if reference.module:
        sys.path.append(str(Path.cwd()))
        try:
            __import__(reference.module)
        finally:
            sys.path.remove(str(Path.cwd()))
        return sys.modules[reference.module]
    digest = reference.sha256
    if digest not in _modules:
        module = types.ModuleType(f"sp500_source_{reference.path.stem}_{digest[:8]}")
        module.__file__ = str(reference.path)
        # Dataclasses look their module up while a class is made. Later it must not be there: pickle then takes what
        # the file defines along to Ray's workers, which do not know the module by its name.
        sys.modules[module.__name__] = module
        _importing.append(reference.path)
        try:
            code = compile(reference.source, str(reference.path), "exec", dont_inherit=True)
            exec(code, module.__dict__)  # noqa: S102 - the user's own
        finally:
            _importing.pop()
            del sys.modules[module.__name__]
        _modules[digest] = module
    return _modules[digest]


def describe(error: Exception, *references: Reference | None) -> str:
    """Return a description of an error, with the last line of these files in which it happened."""
    named = [reference for reference in references if reference]
    # A run's copy is not imported again if the file that was copied is.
    files = [str(reference.path) for reference in named]
    files += [str(_modules[reference.sha256].__file__) for reference in named if reference.sha256 in _modules]
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files]
    place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else files[0]
    return f"{place}: {type(error).__name__}: {error}"


def keep(reference: Reference, run: Path) -> Path:
    """Return the run's copy of a file, made if missing. Raises ConfigError for a file that differs from it."""
    copy = run / FOLDER / reference.path.name
    if copy.exists() and copy.read_bytes() != reference.source:
        raise ConfigError(
            f"{reference.path} differs from {copy}, which the run has; --resume continues with the run's own file: "
            "remove it, or choose another --name. Two files of one name in a run need different names"
        )
    if not copy.exists():
        copy.parent.mkdir(exist_ok=True)
        write_atomic(copy, reference.source)
        sums = sorted((hashlib.sha256(file.read_bytes()).hexdigest(), file.name) for file in copy.parent.glob("*.py"))
        write_atomic(copy.parent / SUMS, "".join(f"{digest}  {name}\n" for digest, name in sums))
    return copy


def make_portable(settings: Mapping[str, object]) -> dict[str, object]:
    """Return plain settings that name a run's copies relative to its folder, so that a run can be moved."""

    def relative(text: str) -> str:
        path = Path(text.rpartition(":")[0])
        return f"{FOLDER}/{path.name}:{text.rpartition(':')[2]}" if (path.parent / SUMS).exists() else text

    return _with_references(settings, relative)


def make_absolute(settings: Mapping[str, object], folder: Path, *, run: bool = True) -> dict[str, object]:
    """Return plain settings of a file in this folder with its relative paths made absolute.

    The settings of a run name its copies and no other file. Otherwise the sender of a run could name a file that is not
    checked. Raises ConfigError for those that do.
    """

    def absolute(text: str) -> str:
        place, _, name = text.rpartition(":")
        path = (folder / place).absolute()
        if run and place.endswith(".py") and Path(place) != Path(FOLDER, path.name):
            raise ConfigError(f"the settings in {folder} name {place}: a run has its Python only in {FOLDER}/")
        return f"{path}:{name}" if place.endswith(".py") and (run or path.exists()) else text

    return _with_references(settings, absolute)


def _with_references(settings: Mapping[str, object], change: Callable[[str], str]) -> dict[str, object]:
    """Return the settings with the texts of task, method and model.kind changed if they name a file."""
    changed = dict(settings)
    for key in ("task", "method"):
        text = settings.get(key)
        if isinstance(text, str) and ":" in text:
            changed[key] = change(text)
    model = settings.get("model")
    if isinstance(model, dict) and ":" in str(model.get("kind")):
        changed["model"] = {**model, "kind": change(model["kind"])}
    return changed
