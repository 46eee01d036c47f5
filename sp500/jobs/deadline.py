"""The process that ends a command at its deadline: `python -m sp500.jobs.deadline SECONDS SINCE COMMAND...`.

It is part of a job's entrypoint, so the deadline also holds when the machine that submitted the job is switched off.
The seconds count from the start of process SINCE (`self`: of this one). Process 1 of a pod is its container, so the
start of the Ray head counts too. At the deadline the command's process group gets SIGTERM. After GRACE_SECONDS what is
left of it gets SIGKILL, also processes that left the group. The exit code is 4 then, and else the command's own.

The cost is one more Python process of about 15 MiB, which looks five times a second.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

import psutil

from sp500.errors import LimitExceeded
from sp500.jobs.local import processes
from sp500.machine import process_tree

# As long as Kubernetes gives a pod: enough for a last checkpoint.
GRACE_SECONDS = 30.0
LOOK_SECONDS = 0.2
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def wrap_command(argv: Sequence[str], seconds: int) -> tuple[str, ...]:
    """Return the argv with its deadline, for a container whose process 1 starts with the job."""
    return ("python", "-m", "sp500.jobs.deadline", str(seconds), "1", *argv)


def main(arguments: Sequence[str], grace: float = GRACE_SECONDS) -> int:
    """Run the command to its end or to its deadline; the exit code."""
    seconds, since, *command = arguments
    began = psutil.Process(os.getpid() if since == "self" else int(since)).create_time()
    seconds_left = began + float(seconds) - time.time()
    if seconds_left <= 0:
        return _report_late(f"the deadline of {seconds} s passed before the command started")
    ends = time.monotonic() + seconds_left
    process_tree.adopt_orphans()
    try:
        # If this process is killed so is its child, which would run on without a deadline.
        child = subprocess.Popen(list(command), process_group=0, preexec_fn=process_tree.die_with_parent)  # noqa: S603, PLW1509
    except OSError as error:
        print(f"{command[0]} cannot be started: {error.strerror}", file=sys.stderr, flush=True)
        return processes.NOT_FOUND if isinstance(error, FileNotFoundError) else processes.NOT_STARTED
    for number in FORWARDED:
        signal.signal(number, lambda got, _: process_tree.signal_group(child.pid, signal.Signals(got)))
    try:
        while (code := _exit_code(child)) is None:
            if time.monotonic() >= ends:
                _end(child.pid, grace)
                return _report_late(f"the deadline of {seconds} s passed; the command was ended")
            time.sleep(LOOK_SECONDS)
    finally:
        process_tree.end_descendants()
    return 128 - code if code < 0 else code


def _exit_code(child: subprocess.Popen[bytes]) -> int | None:
    """Return the command's exit code, or None while it runs. Ended orphans are reaped as well."""
    exit_codes, _ = process_tree.reap_children()
    if child.pid in exit_codes:
        child.returncode = exit_codes[child.pid]
    return child.returncode


def _end(leader: int, grace: float) -> None:
    """Send SIGTERM to the group, and wait up to `grace` seconds until nothing is left of it."""
    process_tree.signal_group(leader, signal.SIGTERM)
    until = time.monotonic() + grace
    while process_tree.reap_children()[1] and time.monotonic() < until:
        time.sleep(LOOK_SECONDS)


def _report_late(why: str) -> int:
    """Print the reason as the last line of the log, where the operator looks for it."""
    print(f"sp500: {why} (exit code {LimitExceeded.exit_code})", file=sys.stderr, flush=True)
    return LimitExceeded.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
