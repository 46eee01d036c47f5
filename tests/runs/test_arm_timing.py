"""CPU seconds of a process and everything that it starts, also of what nobody waits for."""

import subprocess
import sys

import pytest

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
