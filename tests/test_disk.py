"""Writes: whole or not at all, also under kills and on a full disk."""

from __future__ import annotations

import errno
import multiprocessing
import os
import resource
import signal
import stat
import time
from pathlib import Path

import numpy as np
import pytest

from sp500.errors import DiskError
from sp500.machine.disk import append_durably, write_atomic


def write_forever(path: Path, seed: int) -> None:
    generator = np.random.default_rng(seed)
    while True:
        # One letter throughout, and its count in front.
        count = int(generator.integers(1, 200_000))
        write_atomic(path, f"{count:06d}" + "abcdefgh"[count % 8] * count)


def is_whole(data: bytes) -> bool:
    count = int(data[:6])
    return data[6:] == bytes([b"abcdefgh"[count % 8]]) * count


def test_reader_sees_no_partial_file_while_writers_are_killed(tmp_path):
    path, generator, versions = tmp_path / "record.json", np.random.default_rng(0), set()
    fork = multiprocessing.get_context("fork")
    write_atomic(path, "000001b")
    for seed in range(15):
        writer = fork.Process(target=write_forever, args=(path, seed), daemon=True)
        before = path.read_bytes()
        writer.start()
        try:
            while path.read_bytes() == before:  # until this writer is at work
                time.sleep(0.001)
            reads = int(generator.integers(5, 60))
            while reads > 0 or len(versions) < seed + 2:  # on a busy machine a writer may take its time
                data, reads = path.read_bytes(), reads - 1
                versions.add(data)
                assert is_whole(data)
        finally:
            os.kill(writer.pid or 0, signal.SIGKILL)
            writer.join()
        assert is_whole(path.read_bytes())
    assert len(versions) > 15


def test_write_that_fails_leaves_the_old_file_and_no_rest(tmp_path):
    path = tmp_path / "record.json"
    write_atomic(path, "old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(DiskError, match=r"record\.json: cannot be written \(File too large; [0-9.]+ MiB free\)"):
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
def test_file_holds_what_was_written(tmp_path, content):
    write_atomic(tmp_path / "file", content)
    assert (tmp_path / "file").read_bytes() == (content.encode() if isinstance(content, str) else content)


@pytest.mark.parametrize("write", [write_atomic, append_durably])
def test_full_disk_is_named_with_the_path_and_the_free_space_and_what_was_written_stays(make_disk, write):
    small_disk = make_disk("size=1m")
    (small_disk / "filler").write_bytes(b"x" * (2**20 - 3 * 4096))
    (small_disk / "trials.jsonl").write_text("first\n")
    path = small_disk / "trials.jsonl"
    with pytest.raises(DiskError) as raised:
        write(path, "x" * 20000)
    assert str(path) in str(raised.value)
    assert "No space left on device; 0.0 MiB free" in str(raised.value)
    assert raised.value.errno == errno.ENOSPC
    (small_disk / "filler").unlink()
    append_durably(path, "second")
    assert path.read_text() == "first\nsecond\n"
    assert [one.name for one in small_disk.iterdir()] == ["trials.jsonl"]


def test_file_that_another_prepared_under_the_old_temporary_name_is_not_written_through(tmp_path):
    target = tmp_path / "elsewhere"
    target.write_text("mine")
    (tmp_path / f".file.{os.getpid()}.tmp").symlink_to(target)
    write_atomic(tmp_path / "file", "new")
    assert target.read_text() == "mine"
    assert not (tmp_path / "file").is_symlink()


def test_line_is_not_appended_through_a_link(tmp_path):
    target = tmp_path / "elsewhere"
    target.write_text("mine\n")
    (tmp_path / "epochs.jsonl").symlink_to(target)
    with pytest.raises(DiskError, match=r"epochs\.jsonl: .*it is a link"):
        append_durably(tmp_path / "epochs.jsonl", "line")
    assert target.read_text() == "mine\n"


def test_temporary_files_of_killed_writers_are_removed_when_they_are_a_day_old(tmp_path):
    path = tmp_path / "main.json"
    write_atomic(path, "1")
    mine, others = f".main.json.{'0a' * 8}.tmp", f".other.json.{'0a' * 8}.tmp"
    for name in (mine, others, f".main.json.{'1b' * 8}.tmp"):
        (tmp_path / name).write_text("half")
    for name in (mine, others):
        os.utime(tmp_path / name, (time.time() - 25 * 3600,) * 2)
    write_atomic(path, "2")
    assert {each.name for each in tmp_path.iterdir()} == {"main.json", others, f".main.json.{'1b' * 8}.tmp"}


def test_temporary_file_is_made_anew_under_another_name_each_time(tmp_path, monkeypatch):
    """What os.open is asked for, recorded around the real call."""
    asked, real = [], os.open

    def recording(path, flags, *mode):
        asked.append((str(path), flags))
        return real(path, flags, *mode)

    monkeypatch.setattr(os, "open", recording)
    for _ in range(2):
        write_atomic(tmp_path / "file", "text")
    temporary = [(path, flags) for path, flags in asked if path.endswith(".tmp")]
    assert len({path for path, _ in temporary}) == 2
    assert all(flags & os.O_EXCL and flags & os.O_NOFOLLOW for _, flags in temporary)
