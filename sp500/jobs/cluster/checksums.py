"""What a folder holds, on this machine and on a claim: the SHA-256 of each file, and the target of each link."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from sp500.errors import DataError

Contents = dict[str, str]
"""Path inside the folder (with `/`) -> the SHA-256 of a file in hexadecimal, or `-> TARGET` for a link."""

LINK = "-> "


@dataclass
class Listing:
    """Everything below a folder on a claim that is not a folder itself."""

    sizes: dict[str, int] = field(default_factory=dict)
    """Path of each file -> its bytes."""
    links: Contents = field(default_factory=dict)
    others: list[str] = field(default_factory=list)
    """Paths of what cannot be transferred: devices, pipes, sockets."""

    @property
    def total_bytes(self) -> int:
        """Bytes of all files together."""
        return sum(self.sizes.values())


def of_folder(folder: Path) -> Contents:
    """The contents of a local folder; links are not followed. Raises DataError for a device, pipe or socket."""
    contents = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            contents[name] = f"{LINK}{path.readlink()}"
        elif path.is_file():
            with path.open("rb") as file:
                contents[name] = hashlib.file_digest(file, "sha256").hexdigest()
        elif not path.is_dir():
            raise DataError(f"{path} is neither a file, a folder nor a link, so it cannot be transferred; remove it")
    return contents


def links_of(contents: Contents) -> Contents:
    """The links among `contents`."""
    return {path: value for path, value in contents.items() if value.startswith(LINK)}


def list_argv(folder: str) -> list[str]:
    """The command whose output `parse_listing` reads. Fields end with a zero byte, which no path can contain."""
    return ["find", folder, "-mindepth", "1", "-not", "-type", "d", "-printf", r"%y\0%s\0%P\0%l\0"]


def parse_listing(output: str) -> Listing:
    """What lies below a folder, from the output of `list_argv`."""
    fields, listing = output.split("\0")[:-1], Listing()
    for kind, size, path, target in zip(*(iter(fields),) * 4, strict=True):
        if kind == "f":
            listing.sizes[path] = int(size)
        elif kind == "l":
            listing.links[path] = f"{LINK}{target}"
        else:
            listing.others.append(path)
    return listing


def digest_argv(folder: str) -> list[str]:
    """The command whose output `parse_digests` reads."""
    return ["find", folder, "-type", "f", "-exec", "sha256sum", "--zero", "{}", "+"]


def parse_digests(output: str, folder: str) -> Contents:
    """Checksums below `folder` from that command's output: `<64 digits>  <path>` and a zero byte for each file."""
    lines = (line for line in output.split("\0") if line)
    return {str(PurePosixPath(line[66:]).relative_to(folder)): line[:64] for line in lines}


def difference(expected: Contents, actual: Contents) -> str:
    """How `found` differs from `wanted`, with the names of a few files; empty if it does not differ."""
    missing = sorted(expected.keys() - actual.keys())
    extra = sorted(actual.keys() - expected.keys())
    changed = sorted(path for path in expected.keys() & actual.keys() if expected[path] != actual[path])
    kinds = [("missing", missing), ("unexpected", extra), ("different", changed)]
    return "; ".join(f"{len(paths)} {kind}: {_first_few(paths)}" for kind, paths in kinds if paths)


def _first_few(paths: list[str]) -> str:
    # A name on a claim can hold control characters, which must not reach the terminal.
    names = [path if path.isprintable() else repr(path) for path in paths[:3]]
    return ", ".join(names) + (", ..." if len(paths) > 3 else "")
