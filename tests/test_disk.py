"""Writes: whole or not at all, also under kills and on a full disk."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import stat
from pathlib import Path

import numpy as np
import pytest

from sp500.disk import write_atomic


def write_forever(path: Path, seed: int) -> None:
    generator = np.random.default_rng(seed)
    while True:
        # One letter throughout, and its count in front.
        count = int(generator.integers(1, 200_000))
        write_atomic(path, f"{count:06d}" + "abcdefgh"[count % 8] * count)


def is_whole(data: bytes) -> bool:
    count = int(data[:6])
    return data[6:] == bytes([b"abcdefgh"[count % 8]]) * count


def test_reader_sees_no_partial_file_while_writers_are_killed(tmp_path: Path) -> None:
    path, generator, versions = tmp_path / "record.json", np.random.default_rng(0), set()
    fork = multiprocessing.get_context("fork")
    write_atomic(path, "000001b")
    for seed in range(15):
        writer = fork.Process(target=write_forever, args=(path, seed), daemon=True)
        before = path.read_bytes()
        writer.start()
        try:
            while path.read_bytes() == before:  # until this writer is at work
                pass
            for _ in range(int(generator.integers(5, 60))):
                data = path.read_bytes()
                versions.add(data)
                assert is_whole(data)
        finally:
            os.kill(writer.pid or 0, signal.SIGKILL)
            writer.join()
        assert is_whole(path.read_bytes())
    assert len(versions) > 15


def test_write_that_fails_leaves_the_old_file_and_no_rest(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_atomic(path, "old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            write_atomic(path, "new" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_file_for_its_owner_alone_is_so_from_the_first(tmp_path):
    write_atomic(tmp_path / "token", "secret", mode=0o600)
    write_atomic(tmp_path / "token", "another", mode=0o600)
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600


@pytest.mark.parametrize("content", ["text", b"bytes\x00", "", "ä"])
def test_file_holds_what_was_written(tmp_path: Path, content: str | bytes) -> None:
    write_atomic(tmp_path / "file", content)
    assert (tmp_path / "file").read_bytes() == (content.encode() if isinstance(content, str) else content)
