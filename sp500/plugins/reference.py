"""Reference to a user's task or model: `FILE.py:NAME`, `package.module:NAME`, or the name of an entry point.

Nothing is imported here: a module is found as the import system would find it, and its file is read.
"""

from __future__ import annotations

import difflib
import hashlib
import site
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path

from sp500.errors import ConfigError

HOW = "FILE.py:NAME or package.module:NAME"


@dataclass(frozen=True)
class Reference:
    """A class or function of a Python file; `module` is its name if it is imported by that."""

    path: Path
    name: str
    module: str = ""
    registered: bool = False
    """Whether an installed package names it as an entry point."""

    @property
    def installed(self) -> bool:
        """True if it is of an installed package, which no folder of runs can be."""
        return self.registered or (bool(self.module) and _is_installed(self.path))

    @property
    def sha256(self) -> str:
        """Hash of the file. Raises ConfigError if it cannot be read."""
        return hashlib.sha256(self.source).hexdigest()

    @property
    def source(self) -> bytes:
        """The file. Raises ConfigError if it cannot be read."""
        try:
            status = self.path.stat()
            return _read(self.path, status.st_mtime_ns, status.st_size)
        except OSError as error:
            raise ConfigError(f"{self.path}: cannot be read ({error.strerror})") from None

    @property
    def identity(self) -> str:
        """Its name and the hash of its file: what decides numbers, wherever the file is."""
        return f"{self.name}@{self.sha256[:16]}"


def parse(text: str, kind: str, known: Iterable[str]) -> Reference:
    """Return the reference in a setting. `kind` is task or model, `known` the names that need none.

    Raises ConfigError that says what is wrong with it.
    """
    place, _, name = text.rpartition(":")
    if not place:
        return _entry_point(text, kind, known)
    if not name.isidentifier():
        raise ConfigError(f"{text!r}: {name!r} is not the name of a class or function; expected {HOW}")
    if place.endswith(".py"):
        return Reference(Path(place).expanduser().absolute(), name)
    if "/" in place or not all(part.isidentifier() for part in place.split(".")):
        raise ConfigError(f"{text!r}: {place!r} is neither a .py file nor the name of a module; expected {HOW}")
    return Reference(_file_of(place), name, place)


@lru_cache
def _read(path: Path, changed: int, size: int) -> bytes:
    """Read the file at this time of change and size. Cached: a search of thousands of trials reads it for each."""
    return path.read_bytes()


def _entry_point(text: str, kind: str, known: Iterable[str]) -> Reference:
    entry_points = {point.name: point for point in metadata.entry_points(group=f"sp500.{kind}s")}
    if text not in entry_points:
        names = [*known, *entry_points]
        near = difflib.get_close_matches(text, names, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"unknown {kind} {text!r}: expected {', '.join(names)}, or your own as {HOW}{hint}")
    point = entry_points[text]
    # Metadata may also lie in the current folder, or in another one of sys.path.
    registered = point.dist is not None and _is_installed(Path(str(point.dist.locate_file("x"))))
    return Reference(_file_of(point.module), point.attr, point.module, registered)


def _is_installed(path: Path) -> bool:
    places = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), site.getusersitepackages()}
    return any(path.is_relative_to(place) for place in places.union(site.getsitepackages()))


def _file_of(module: str) -> Path:
    """Return the file of a module as an import finds it, without running a package's __init__."""
    places: list[str] | None = [*sys.path, str(Path.cwd())]
    parts = module.split(".")
    for number, part in enumerate(parts):
        # By its last name: a package without __init__.py would look for its parent among the imported modules.
        spec = PathFinder.find_spec(part, places)
        if spec is None:
            name = ".".join(parts[: number + 1])
            raise ConfigError(f"no module named {name!r} is installed, or lies in {Path.cwd()}")
        places = list(spec.submodule_search_locations or [])
    if not spec or not spec.origin or not spec.origin.endswith(".py"):
        raise ConfigError(f"module {module!r} is not a Python file")
    return Path(spec.origin)
