"""The deadline inside a job's entrypoint: real commands, real signals, nobody outside who watches."""

import os
import signal
import subprocess
import sys

import pytest
from queue_fakes import until_gone

# Longer than any wait of these tests, so that a command that is not ended shows.
ENDLESS = "import time; time.sleep(600)"


def start(seconds, command, *, since=None, grace=None):
    """The wrapper around a Python program, counting from the start of process `since`, by default its own."""
    given = [str(seconds), str(since or "self"), sys.executable, "-c", command]
    if grace is None:
        argv = [sys.executable, "-m", "sp500.jobs.deadline", *given]
    else:
        argv = [
            sys.executable,
            "-c",
            f"import sys; from sp500.jobs import deadline; sys.exit(deadline.main({given!r}, {grace}))",
        ]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process):
    out, err = process.communicate(timeout=90)
    return process.returncode, out, err


@pytest.mark.parametrize(
    ("command", "code"), [("pass", 0), ("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 137)]
)
def test_command_that_ends_in_time_keeps_its_exit_code(command, code):
    assert ended(start(600, command)) == (code, "", "")


@pytest.mark.parametrize(("program", "code"), [("/nowhere/python", 127), ("/etc/hostname", 126)])
def test_program_that_cannot_be_started_has_the_code_of_a_shell(program, code):
    done = subprocess.run(
        [sys.executable, "-m", "sp500.jobs.deadline", "600", "self", program],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code
    assert program in done.stderr


def test_command_is_ended_at_its_deadline_with_exit_code_4_and_may_write_its_last_words():
    command = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('last checkpoint', flush=True), sys.exit(0)))\n"
        "print('began', flush=True)\n"
        "time.sleep(600)"
    )
    code, out, err = ended(start(3, command))
    assert code == 4
    assert out == "began\nlast checkpoint\n"
    assert "deadline of 3 s" in err.splitlines()[-1]


def test_processes_that_ignore_the_signal_are_killed_after_the_grace_with_all_their_children():
    command = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"own = subprocess.Popen([sys.executable, '-c', {ENDLESS!r}], start_new_session=True)\n"
        "print(own.pid, flush=True)\n"
        "time.sleep(600)"
    )
    code, out, _ = ended(start(3, command, grace=0.5))
    assert code == 4
    until_gone(int(out))


def test_time_before_the_command_counts_from_the_start_of_a_process():
    # This test's process is older than a hundredth of a second.
    code, out, err = ended(start(0.01, "print('never')", since=os.getpid()))
    assert (code, out) == (4, "")
    assert "before the command" in err


def test_signal_of_a_stop_reaches_the_command():
    command = f"import signal\nsignal.signal(15, lambda *_: exit(7))\nprint('up', flush=True)\n{ENDLESS}"
    process = start(600, command)
    assert process.stdout.readline() == "up\n"
    process.terminate()
    assert ended(process)[0] == 7


def test_command_does_not_outlive_a_wrapper_that_was_killed():
    process = start(600, f"import os; print(os.getpid(), flush=True)\n{ENDLESS}")
    pid = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    process.stdout.close()
    process.stderr.close()
    until_gone(pid)
