"""This machine, as Ray and the runs meet it: cores, memory, shared memory, and room on the disks.

The limits of a container count if they are lower than the machine. They are read where Ray reads them, at the root
of the control groups, which is a container's own.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sp500.doctor.check import Check, Probe, ok, skipped, wrong
from sp500.formatting import GIB, size, some
from sp500.jobs.queue.settings import machine
from sp500.machine.cores import cpu_limit
from sp500.machine.memory import Memory, memory_here

SHARED = "/dev/shm"  # noqa: S108 - looked at, never written to
# Ray 2.60 gives its object store this share of the free memory (DEFAULT_OBJECT_STORE_MEMORY_PROPORTION), at most
# 200 GB and, unless /dev/shm is larger, 10 GB. What does not fit into /dev/shm lies in files of the temporary folder.
STORE_SHARE, STORE_MOST, STORE_CAP = 0.3, 200 * 10**9, 10**10
# Of the share of /dev/shm that is free, what the store may use.
SHARED_SHARE = 0.95
# Use of a disk, as a share, from which on Ray spills no objects to it (local_fs_capacity_threshold).
SPILL_LIMIT = 0.95
# Room that one run takes with checkpoints and shards: below it, the next one may not end.
ROOM = GIB
# Ray's own processes and one that trains.
LEAST_MEMORY = GIB


@dataclass(frozen=True)
class Space:
    """Bytes of a file system."""

    total: int
    free: int
    """Space that this user may still use."""

    @property
    def used_share(self) -> float:
        """The used share as Ray counts it: what is not free for this user is used."""
        return 1 - self.free / self.total if self.total else 1.0


def probes(runs: Path, state: Path, environment: Mapping[str, str]) -> list[Probe]:
    """Return the checks of this module; `runs` and `state` are folders that need not exist yet."""
    temporary, runs, state = (path.expanduser().absolute() for path in (temporary_folder(environment), runs, state))
    return [
        ("cores", lambda: [cores(int(machine().cpus), cpu_limit())]),
        ("memory", lambda: [memory(memory_here())]),
        (SHARED, lambda: [shared_memory(free_shared_bytes(), memory_here().free)]),
        ("temporary folder", lambda: [spill(temporary, space(temporary), refusal(temporary))]),
        ("runs folder", lambda: [folder("runs folder", runs, space(runs), refusal(runs), "--runs-dir")]),
        ("state folder", lambda: [folder("state folder", state, space(state), refusal(state), "--state-dir")]),
    ]


def cores(allowed: int, limit: float | None) -> Check:
    """Check the `allowed` cores of this process against its container's `limit` in CPUs."""
    if limit is None or limit >= allowed:
        return ok("cores", f"{allowed}")
    found = f"{allowed}, limited to {some(float(f'{limit:.3g}'), 'CPU')}"
    if limit < 1:  # it cuts the decimals off
        return wrong("cores", f"{found}, of which Ray counts 0", "give the container at least one CPU")
    return ok("cores", found)


def memory(available: Memory) -> Check:
    """Check whether Ray and one process that trains fit."""
    limited = ", the limit of this container" if available.limit else ""
    found = f"{size(available.free)} free of {size(available.total)}{limited}"
    if available.free < LEAST_MEMORY:
        advice = (
            "end what else runs here, or raise the container's limit" if available.limit else "end what else runs here"
        )
        return wrong("memory", f"{found}; Ray and a process that trains need {size(LEAST_MEMORY)}", advice)
    return ok("memory", found)


def store_bytes(shared: int, free: int) -> int:
    """Return the bytes that Ray plans for its object store with so much free in /dev/shm and in memory."""
    return min(int(STORE_SHARE * free), STORE_MOST, max(STORE_CAP, int(SHARED_SHARE * shared)))


def shared_memory(shared: int | None, free: int) -> Check:
    """Check whether Ray's object store fits into the `shared` free bytes of /dev/shm, with `free` bytes of memory."""
    if shared is None:
        return skipped(SHARED, "no such folder here; Ray keeps its objects in the temporary folder")
    store = store_bytes(shared, free)
    found = f"{size(shared)} free; Ray's object store needs {size(store)} ({STORE_SHARE:.0%} of the free memory)"
    if shared >= store:
        return ok(SHARED, found)
    # Ray asks for a tenth more than it uses.
    wanted = f"{int(1.1 * store / 2**20) + 1}m"
    return wrong(
        SHARED,
        f"{found}, and what does not fit goes to a disk, slowly",
        f"start the container with --shm-size={wanted}, or: mount -o remount,size={wanted} {SHARED}",
    )


def spill(path: Path, space: Space, refused: str) -> Check:
    """Check whether Ray can start in the temporary folder, and put what its object store cannot hold there."""
    name = "temporary folder"
    if not refused and space.used_share >= SPILL_LIMIT:
        found = f"{path}: the disk is {space.used_share:.1%} full, and from {SPILL_LIMIT:.0%} Ray puts no objects there"
        return wrong(name, found, "free some of it, or set RAY_TMPDIR to a folder on another disk")
    return folder(name, path, space, refused, "RAY_TMPDIR")


def folder(name: str, path: Path, space: Space, refused: str, setting: str) -> Check:
    """Check whether `path` can be written to and has room; `refused` says why not, `setting` names another folder."""
    if refused:
        return wrong(name, f"{path}: cannot be written to ({refused})", f"name another folder with {setting}")
    found = f"{path}: {size(space.free)} free of {size(space.total)}"
    if space.free < ROOM:
        return wrong(name, f"{found}, a full disk", f"free {size(ROOM)} or more, or name another folder with {setting}")
    return ok(name, found)


def temporary_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder for Ray's sessions, as Ray finds it."""
    return Path(environment.get("RAY_TMPDIR") or environment.get("TMPDIR") or "/tmp")  # noqa: S108


def existing(path: Path) -> Path:
    """Return the folder itself, or the nearest above it that exists; `path` is absolute."""
    return next(folder for folder in (path, *path.parents) if folder.exists())


def space(path: Path) -> Space:
    """Return the room at `path`, which need not exist yet."""
    usage = shutil.disk_usage(existing(path))
    return Space(usage.total, usage.free)


def refusal(path: Path) -> str:
    """Return why nothing can be written at `path`; empty if it can. Writes a file without a name, which vanishes."""
    there = existing(path)
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(bytes(4096))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error.strerror or str(error)
    return ""


def free_shared_bytes() -> int | None:
    """Return the free bytes of /dev/shm; None on a system without it."""
    return space(Path(SHARED)).free if Path(SHARED).exists() else None
