"""What macOS would run, on Linux: the switch of the system's module is set to it."""

import multiprocessing
import os
import threading
import time
from functools import partial

import psutil
import pytest

from sp500.machine import process_tree, system
from sp500.machine.cores import busy_seconds, cpu_limit, usable_cores
from sp500.machine.memory import MemoryLimitError, limit_memory, pss_bytes, run_in_subprocess, total_bytes

MIB = 2**20


@pytest.fixture
def macos(monkeypatch):
    monkeypatch.setattr(system, "LINUX", False)


def grow(*, in_one_call: bool) -> None:
    """Hold 100 MiB more than the limit; in a thread while one call waits, or bit by bit."""
    system.LINUX = False
    limit_memory(pss_bytes() + 100 * MIB)
    held = []

    def hold() -> None:
        for _ in range(200):
            held.append(bytearray(b"x") * MIB)
            time.sleep(0.01)

    if in_one_call:
        threading.Thread(target=hold, daemon=True).start()
        time.sleep(60)
    hold()
    time.sleep(60)


def test_process_that_passes_its_watched_limit_ends_with_an_error_of_memory():
    with pytest.raises(MemoryLimitError, match="watched and not enforced"):
        run_in_subprocess(partial(grow, in_one_call=False))


def test_process_that_does_not_come_back_from_a_call_is_killed():
    with pytest.raises(MemoryError, match="killed the process"):
        run_in_subprocess(partial(grow, in_one_call=True))


def test_cores_and_memory_are_those_of_the_machine_without_a_limit_of_a_container(macos):
    assert usable_cores() == os.cpu_count()
    assert (cpu_limit(), busy_seconds()) == (None, None)
    assert total_bytes() == psutil.virtual_memory().total
    assert pss_bytes() == pytest.approx(psutil.Process().memory_info().rss, rel=0.05)


def test_orphans_stay_where_they_are_and_a_process_is_known_by_its_start(macos):
    process_tree.adopt_orphans()
    assert process_tree.birth(os.getpid()) == psutil.Process().create_time()
    assert process_tree.birth(2**22 + 1) is None


def test_processes_are_forked_on_linux_alone(macos, monkeypatch):
    assert system.start_method() == "spawn"
    monkeypatch.setattr(system, "LINUX", True)
    assert system.start_method() == "fork"
    assert {"fork", "spawn"} <= set(multiprocessing.get_all_start_methods())
