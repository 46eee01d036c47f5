"""Fetch runs from the runs claim, and send them there, verified by SHA-256 on both sides.

Each run is atomic: it is written one level below the runs' folder, compared, and renamed. A run that cannot be fetched
is reported and does not delay the others. Nothing that the claim says is trusted: names, paths, sizes and link targets
are checked before they are used.
"""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO

from sp500.errors import ConfigError, DataError, ResourcesError, RunExists, SP500Error, undo_on_error
from sp500.jobs.cluster import checksums
from sp500.jobs.cluster.checksums import LINK, Listing
from sp500.jobs.cluster.kubectl import Kubectl
from sp500.jobs.cluster.upload import upload
from sp500.machine.disk import make_staging_folder

MOUNT = "/runs"
CLAIM = "sp500-runs"
LOCKS = (".lock", ".holder")
"""Files of a run that say who writes it."""
RECORD = "record.json"
"""Written last: its existence means that the run ended."""
FIND_RECORDS = ["find", MOUNT, "-mindepth", "2", "-maxdepth", "2", "-type", "f", "-name", RECORD, "-print0"]


@dataclass
class Fetched:
    """Results of fetching the runs on the claim."""

    new: dict[str, Listing] = field(default_factory=dict)
    same: list[str] = field(default_factory=list)
    """Already here with the same files."""
    failed: dict[str, SP500Error] = field(default_factory=dict)
    """Not fetched: RunExists for a local run of that name with other files."""


@dataclass(frozen=True)
class RunsClaim:
    """The claim as a pod mounts it, and the local folder that runs are fetched into."""

    kubectl: Kubectl
    pod: str
    folder: Path

    def fetch(
        self, names: Sequence[str], is_run_name: Callable[[str], bool], *, max_bytes: int, overwrite: bool
    ) -> Fetched:
        """Fetch ended runs (all, or those named), at most `max_bytes` together.

        A run has ended when it has its record, which is written last. A local run with other files is kept unless
        `overwrite`. Raises ResourcesError when the pod is lost.
        """
        records = self.kubectl.execute(self.pod, *FIND_RECORDS).split("\0")[:-1]
        folders = sorted(PurePosixPath(record).parent.name for record in records)
        ended = [name for name in folders if is_run_name(name)]
        self.folder.mkdir(parents=True, exist_ok=True)
        result = Fetched()
        missing = ConfigError(f"no ended run of that name on the claim; it has: {', '.join(ended) or 'none'}")
        result.failed = {name: missing for name in names if name not in ended}
        if not names:
            invalid = DataError("not a valid run name; rename the folder on the claim to fetch it")
            result.failed = {repr(name): invalid for name in folders if name not in ended}
        for name in [name for name in ended if name in names or not names]:
            try:
                listing = self._fetch_run(name, max_bytes, overwrite=overwrite)
            except (ConfigError, DataError, ResourcesError) as error:
                self.kubectl.execute(self.pod, "true")  # raises if the pod is lost: then no run can be fetched
                result.failed[name] = error
                continue
            if listing:
                result.new[name] = listing
                max_bytes -= listing.total_bytes
            else:
                result.same.append(name)
        return result

    def send(self, name: str) -> bool:
        """Put an ended local run onto the claim; False if it is there already, whatever its locks.

        Raises ConfigError for a run that has not ended, DataError for another run of that name there.
        """
        here = self.folder / name
        if not (here / RECORD).is_file():
            raise ConfigError(f"{here}: has no {RECORD}, so the run has not ended")
        contents = {path: value for path, value in checksums.of_folder(here).items() if path not in LOCKS}
        return upload(
            self.kubectl,
            self.pod,
            here,
            contents,
            f"{MOUNT}/{name}",
            overwrite=False,
            ignored=LOCKS,
            advice="the run of that name on the claim is another; rename one of the two folders",
        )

    def _fetch_run(self, name: str, max_bytes: int, *, overwrite: bool) -> Listing | None:
        """Fetch the run and return its files, or None if the same run is here already."""
        source, here = f"{MOUNT}/{name}", self.folder / name
        listing = checksums.list_claim(self.kubectl, self.pod, source)
        self._check(listing, max_bytes)
        contents = checksums.of_claim(self.kubectl, self.pod, source, listing)
        if here.exists():
            changes = checksums.difference(contents, checksums.of_folder(here))
            if not changes:
                return None
            if not overwrite:
                raise RunExists(
                    f"the run in {self.folder} is another ({changes}) and was kept; --overwrite replaces it"
                )
        # One level below the runs, so that a listing of the runs does not show it.
        with make_staging_folder(self.folder, ".incoming") as staged:
            incoming = staged / name
            with self.kubectl.reading(
                "exec", self.pod, "--", "tar", "-cf", "-", "--hard-dereference", "-C", MOUNT, "--", f"./{name}"
            ) as stream:
                _unpack(stream, staged, name, listing)
            if changes := checksums.difference(contents, checksums.of_folder(incoming)):
                raise DataError(f"arrived damaged and was discarded ({changes}); fetch it again")
            _replace(here, incoming, staged / "replaced")
        return listing

    def _check(self, listing: Listing, max_bytes: int) -> None:
        """Raise for contents that are refused, before anything is sent."""
        if listing.others:
            path = _printable(listing.others[0])
            raise DataError(f"contains {path}, which is neither a file, a folder nor a link; remove it from the claim")
        for path, value in listing.links.items():
            target = value.removeprefix(LINK)
            if "/" in target or target in {"", ".", ".."}:
                raise DataError(
                    f"contains the link {_printable(path)} -> {_printable(target)}; it leads elsewhere: remove it"
                )
        size, free = listing.total_bytes, shutil.disk_usage(self.folder).free
        if size > max_bytes:
            raise ResourcesError(
                f"{_size(size)}, more than the {_size(max_bytes)} left of --max-size; raise that, or fetch it elsewhere"
            )
        if size > free:
            raise ResourcesError(f"{_size(size)}, but only {_size(free)} are free in {self.folder}; make room there")


def _unpack(stream: IO[bytes], folder: Path, name: str, listing: Listing) -> None:
    """Write the files and links of an archive below `folder`.

    A truncated archive is not an error here: the comparison finds what is missing. Raises DataError for an entry that
    `listing` does not have, which bounds the number of files and bytes. tarfile's own filter (PEP 706) refuses those
    that lead out of the folder.
    """

    def admit(entry: tarfile.TarInfo, path: str) -> tarfile.TarInfo:
        """Return an entry that was listed. Raises DataError for another."""
        first, _, inner = entry.name.removeprefix("./").partition("/")
        is_listed = entry.isdir() or (
            listing.links.get(inner) == f"{LINK}{entry.linkname}"
            if entry.issym()
            else entry.isreg() and listing.sizes.get(inner) == entry.size
        )
        if first != name or not is_listed:
            raise DataError(
                f"{_printable(entry.name)} changed during the transfer; fetch the run again when nothing writes it"
            )
        return tarfile.data_filter(entry, path)

    with suppress(tarfile.TarError), tarfile.open(fileobj=stream, mode="r|") as archive:
        archive.extractall(folder, filter=admit)  # noqa: S202 - filtered
    while stream.read(1 << 20):  # to the end, so that kubectl can report its own error
        pass


def _replace(here: Path, incoming: Path, replaced: Path) -> None:
    if not here.exists():
        incoming.rename(here)
        return

    def restore() -> None:
        """Keep the temporary folder from taking the old run with it, also after a signal."""
        if not here.exists():
            replaced.rename(here)

    with undo_on_error(restore):
        here.rename(replaced)
        incoming.rename(here)


def _printable(text: str) -> str:
    return text if text.isprintable() else repr(text)


def _size(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB"
