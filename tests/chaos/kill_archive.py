"""A run killed while it is copied to an object store, and each time resumed from there on an empty disk."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import doomed
import object_store
import pyarrow.fs
from slow_proxy import Proxy, between

ROOT = Path(__file__).parents[2]
PREFIX = "archive"
# 2.6 MiB a version: a second at this rate, so that most kills cut an upload off.
HIDDEN, RATE = 384, 2.5e6
LINKS = ("last", "best")
# Where a kill leaves a listing without its files, and weights without their manifest.
UPLOAD = "sp500.storage:Folder.upload"
PLACES = (("after", f"{UPLOAD}?archive.json", 1), ("before", f"{UPLOAD}?manifest.json", 1))
FLAGS = ("--train.early-stop-patience", "0", "--model.hidden", str(HIDDEN), "--train.checkpoint-steps", "20")


def command(runs: Path, kills: int, *more: str) -> list[str]:
    """A run so long that so many kills do not see its end."""
    script = [sys.executable, str(ROOT / "experiments" / "train.py"), "--runs-dir", str(runs), "--name", "a"]
    return [*script, *FLAGS, "--train.epochs", str(52 + 12 * kills), *more]


class Store:
    """What is in the object store, read past the proxy and without the code under test."""

    def __init__(self, address: str) -> None:
        self._files = object_store.files(address)

    def files(self) -> dict[str, bytes]:
        path = f"{object_store.BUCKET}/{PREFIX}/a"
        selector = pyarrow.fs.FileSelector(path, recursive=True, allow_not_found=True)
        names = [info.path for info in self._files.get_file_info(selector) if info.is_file]
        return {name.removeprefix(f"{path}/"): self._files.open_input_stream(name).read() for name in names}

    def judged(self) -> tuple[int, int, int]:
        """Versions that a reader trusts, those of them that are not whole, and those that were cut off."""
        held = self.files()
        names = {name.rpartition("/")[0] for name in held if "/epoch-" in name}
        trusted = {name for name in names if f"{name}/manifest.json" in held}
        partial = [name for name in trusted if not whole(held, name)]
        return len(trusted), len(partial), len(names - trusted)


def whole(held: dict[str, bytes], version: str) -> bool:
    files = json.loads(held[f"{version}/manifest.json"])["files"]
    hashes = {file: hashlib.sha256(held.get(f"{version}/{file}", b"")).hexdigest() for file in files}
    return bool(hashes == files)


def kill(argv: list[str], environment: dict[str, str], proxy: Proxy, chance: random.Random) -> None:
    """Start the run, and kill it at a random moment after it has begun to send."""
    before, wanted = proxy.sent, chance.uniform(0.02, 9.0) * 2**20
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(argv, env=environment, **quiet)
    deadline = time.monotonic() + 240
    while proxy.sent < before + wanted and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -9, "the run ended before it was killed"
    settle(proxy)


def settle(proxy: Proxy) -> None:
    """Wait for what a killed run had sent."""
    deadline = time.monotonic() + 240
    while proxy.connections:  # what it had sent may still make a version whole
        assert time.monotonic() < deadline
        time.sleep(0.01)


def measured(kills: int, seed: int, folder: Path) -> dict[str, object]:
    """Kill one run that often, each time on a disk that is empty but for the archive's copy, and let it end."""
    began = time.monotonic()
    subprocess.run(command(folder / "whole", kills), capture_output=True, check=True)
    counted = (
        "kills",
        "kills_at_lines",
        "versions_seen",
        "most_versions",
        "partial_versions",
        "cut_off",
        "resumed",
    )
    chance, found = random.Random(seed), dict.fromkeys(counted, 0)
    with object_store.serving(folder) as address, between(address, RATE) as proxy:
        store, environment = Store(address), {**os.environ, **object_store.environment(proxy.address)}
        archive = ("--io.archive", f"s3://{object_store.BUCKET}/{PREFIX}", "--resume")
        for number in range(len(PLACES) + kills):
            argv = command(folder / "cut", kills, *archive)
            if number < len(PLACES):
                found["kills_at_lines"] += doomed.killed(*PLACES[number], argv[1:], environment)
                settle(proxy)
            else:
                kill(argv, environment, proxy, chance)
                found["kills"] += 1
            trusted, partial, cut_off = store.judged()
            found["versions_seen"] += trusted
            found["most_versions"] = max(found["most_versions"], trusted)
            found["partial_versions"] += partial
            found["cut_off"] += bool(cut_off)
            shutil.rmtree(folder / "cut")
        direct = {**os.environ, **object_store.environment(address)}
        done = subprocess.run(
            command(folder / "cut", kills, *archive), capture_output=True, text=True, env=direct, check=True
        )
        found["resumed"] += "is fetched from there" in done.stderr
        found["partial_versions"] += store.judged()[1]
        found["other_files"] = compared(store.files(), folder / "cut" / "a")
    found["other_weights"] = differing(folder)
    return {**found, "seconds": round(time.monotonic() - began, 1)}


def differing(folder: Path) -> int:
    """How many of the last and the best weights are not those of the run that was left alone."""
    weights = [f"a/checkpoints/{link}/model.safetensors" for link in LINKS]
    pairs = [[folder / run / name for run in ("whole", "cut")] for name in weights]
    return sum(one.read_bytes() != other.read_bytes() for one, other in pairs)


def compared(held: dict[str, bytes], run: Path) -> int:
    """How many files the archive has otherwise than the ended run."""
    names = {path.relative_to(run).as_posix() for path in run.rglob("[!.]*") if path.is_file()}
    real = {name for name in names if not any(f"/{link}/" in name for link in LINKS)}
    mine = {name: (run / name).read_bytes() for name in real}
    held.pop("archive.json")
    return sum(held.get(name) != mine.get(name) for name in held.keys() | mine.keys())


def wrong(found: dict[str, object]) -> bool:
    """Whether a version was partial, a file or weight differs, or no run was killed where it matters and resumed."""
    spoiled = any(found[key] for key in ("partial_versions", "other_files", "other_weights"))
    killed = found["kills"] and found["kills_at_lines"] == len(PLACES) and found["cut_off"]
    return bool(spoiled or not (killed and found["versions_seen"] and found["resumed"]))
