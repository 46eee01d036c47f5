"""Contents of a folder, on this machine and on a claim: the SHA-256 of each file, and the target of each link."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from sp500.errors import DataError
from sp500.jobs.cluster.kubectl import Kubectl
from sp500.machine.disk import file_digest

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
    """Return the contents of a local folder; links are not followed. Raises DataError for a device, pipe or socket."""
    contents = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            contents[name] = f"{LINK}{path.readlink()}"
        elif path.is_file():
            contents[name] = file_digest(path)
        elif not path.is_dir():
            raise DataError(f"{path} is neither a file, a folder nor a link, so it cannot be transferred; remove it")
    return contents


def list_claim(kubectl: Kubectl, pod: str, folder: str) -> Listing:
    """Return what lies below a folder on the claim that a pod holds. Raises ResourcesError when the pod is lost."""
    # Fields end with a zero byte, which no path can contain.
    find = ("find", folder, "-mindepth", "1", "-not", "-type", "d", "-printf", r"%y\0%s\0%P\0%l\0")
    fields, listing = kubectl.execute(pod, *find).split("\0")[:-1], Listing()
    for kind, size, path, target in zip(*(iter(fields),) * 4, strict=True):
        if kind == "f":
            listing.sizes[path] = int(size)
        elif kind == "l":
            listing.links[path] = f"{LINK}{target}"
        else:
            listing.others.append(path)
    return listing


def of_claim(kubectl: Kubectl, pod: str, folder: str, listing: Listing | None = None) -> Contents:
    """Return the contents of a folder on the claim that a pod holds. `listing`: that of the folder, if it is known."""
    links = (listing or list_claim(kubectl, pod, folder)).links
    # `<64 digits>  <path>` and a zero byte for each file.
    output = kubectl.execute(pod, "find", folder, "-type", "f", "-exec", "sha256sum", "--zero", "{}", "+")
    lines = (line for line in output.split("\0") if line)
    return {str(PurePosixPath(line[66:]).relative_to(folder)): line[:64] for line in lines} | links


def difference(expected: Contents, actual: Contents) -> str:
    """Describe how `actual` differs from `expected`, with the names of a few files; empty if it does not differ."""
    missing = sorted(expected.keys() - actual.keys())
    extra = sorted(actual.keys() - expected.keys())
    changed = sorted(path for path in expected.keys() & actual.keys() if expected[path] != actual[path])
    kinds = [("missing", missing), ("unexpected", extra), ("different", changed)]
    return "; ".join(f"{len(paths)} {kind}: {_first_few(paths)}" for kind, paths in kinds if paths)


def _first_few(paths: list[str]) -> str:
    # A name on a claim can hold control characters, which must not reach the terminal.
    names = [path if path.isprintable() else repr(path) for path in paths[:3]]
    return ", ".join(names) + (", ..." if len(paths) > 3 else "")
