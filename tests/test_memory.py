"""Memory: what the kernel says of a process, and the largest of it while a block ran."""

from __future__ import annotations

import errno
import mmap
import multiprocessing
import os
import threading
import time

import psutil
import pytest

from sp500.errors import SP500Error
from sp500.machine.memory import PeakMemory, is_out_of_memory, limit_memory, pss_bytes, run_in_subprocess

MIB = 2**20


def filled(size: int) -> bytearray:
    return bytearray(b"x") * size


def test_shared_pages_count_in_part_so_pss_is_at_most_rss():
    assert 10 * MIB < pss_bytes() <= psutil.Process().memory_info().rss * 1.05


def test_memory_in_use_shows():
    before = pss_bytes()
    # Pages of their own: the heap may have kept as much from an earlier test.
    with mmap.mmap(-1, 100 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as pages:
        for first in range(0, len(pages), mmap.PAGESIZE):
            pages[first] = 1
        assert pss_bytes() - before == pytest.approx(len(pages), rel=0.1)


def test_another_process_is_read_by_its_number():
    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe()
    child = fork.Process(target=there.recv, daemon=True)
    child.start()
    try:
        # A fork shares nearly all of its pages with its parent, so it has at most about half of them.
        assert 0 < pss_bytes(child.pid) < psutil.Process(child.pid).memory_info().rss
    finally:
        here.send("end")
        child.join()


def give_memory_back() -> tuple[int, int, int]:
    """PSS before 100 MiB are filled, its peak, and PSS after they were given back."""
    before, deadline = pss_bytes(), time.monotonic() + 120
    with PeakMemory(interval_seconds=0.001) as peak:
        data = filled(100 * MIB)
        while peak.bytes < before + 90 * MIB and time.monotonic() < deadline:
            time.sleep(0.001)
        del data
    return before, peak.bytes, pss_bytes()


def test_peak_stays_after_the_memory_was_given_back():
    # In a small process: of one that has loaded everything, the kernel may reclaim as much in the meantime.
    before, peak, after = run_in_subprocess(give_memory_back)
    assert peak >= before + 90 * MIB
    assert after < before + 50 * MIB


def test_peak_of_the_shortest_block_is_known():
    with PeakMemory(interval_seconds=60) as peak:
        pass
    assert peak.bytes > 10 * MIB


def test_memory_still_held_at_the_end_is_seen_without_a_sample_in_between():
    before = pss_bytes()
    with PeakMemory(interval_seconds=60) as peak:
        data = filled(100 * MIB)
    assert peak.bytes >= before + 0.9 * len(data)


def test_sampling_ends_with_the_block_also_on_an_error():
    threads = threading.active_count()
    with pytest.raises(ZeroDivisionError), PeakMemory():
        raise ZeroDivisionError
    assert threading.active_count() == threads


def start_a_thread_without_room() -> bool:
    limit_memory(2**20)
    try:
        threading.Thread(target=time.sleep, args=(0,)).start()
    except RuntimeError as error:
        return is_out_of_memory(error)
    return False


def abort_with(limit: int | None) -> None:
    if limit:
        limit_memory(limit)
    os.abort()


def test_thread_that_cannot_start_is_memory_only_where_memory_is_limited():
    assert run_in_subprocess(start_a_thread_without_room)
    assert not is_out_of_memory(RuntimeError("can't start new thread"))


@pytest.mark.parametrize("error", [OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), RuntimeError("std::bad_alloc")])
def test_errors_of_kernel_and_allocators_are_known(error):
    assert is_out_of_memory(error)


def test_abort_of_a_process_is_memory_only_where_its_memory_is_limited():
    with pytest.raises(MemoryError, match="limit of memory"):
        run_in_subprocess(abort_with, 2**30)
    with pytest.raises(SP500Error, match="exit code -6"):
        run_in_subprocess(abort_with, None)
