"""CPU seconds of a process and everything that it starts, also of what nobody waits for."""

import subprocess
import sys
import time

import pytest

from sp500.runs import arm_timing
from sp500.runs.arm_timing import CpuSeconds

WORK = "import time\nwhile time.process_time() < {}: pass"
# A parent that starts a child, works itself, and waits for the child or lets the kernel bury it.
PARENT = """
import signal, subprocess, sys, time
signal.signal(signal.SIGCHLD, signal.{})
child = subprocess.Popen([sys.executable, "-c", {!r}])
while time.process_time() < 0.7: pass
child.wait()
"""


@pytest.mark.parametrize("handler", ["SIG_DFL", "SIG_IGN"])
def test_cpu_seconds_count_children_that_are_waited_for_and_those_that_are_not(handler):
    process = subprocess.Popen([sys.executable, "-c", PARENT.format(handler, WORK.format(1.2))])
    with CpuSeconds(process.pid) as cpu:
        assert process.wait() == 0
    assert 1.2 < cpu.seconds < 2.9  # with the child, and no second time


def test_cores_that_others_take_are_told_from_those_of_the_child_and_of_this_process(monkeypatch):
    """The child works for a second, this process not at all, and two other seconds of the machine belong to others."""
    ticks = iter((100.0, 100.0 + 1.0 + 2.0))
    monkeypatch.setattr(arm_timing, "busy_seconds", lambda: next(ticks))
    monkeypatch.setattr(arm_timing, "usable_cores", lambda: 4)
    process = subprocess.Popen([sys.executable, "-c", WORK.format(1.0)])
    started = time.monotonic()
    with CpuSeconds(process.pid) as cpu:
        process.wait()
    took = time.monotonic() - started
    others = 3.0 - cpu.seconds
    assert cpu.others_share == pytest.approx(others / (4 * took), abs=0.05)


def test_busy_seconds_of_the_machine_grow_with_what_runs_on_it():
    before = arm_timing.busy_seconds()
    subprocess.run([sys.executable, "-c", WORK.format(0.3)], check=True)
    after = arm_timing.busy_seconds()
    assert before is None or after - before > 0.2
