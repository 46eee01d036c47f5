"""Processes of one job on this machine: how its command begins, and how every descendant of it ends.

The command waits, as a process that exists already, until its number is on the disk: so no command runs unrecorded.
Descendants come back to their supervisor when their own parents end (Linux: a child subreaper), also
those that left for a session of their own; so the job has ended when the supervisor has no child left.

If that supervisor was killed, its processes are found by a variable of their environment, which children inherit,
and those that have overwritten it by their group and their parents.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from sp500.jobs.local.job_folder import Request
from sp500.machine.process_tree import birth, list_below

NOT_FOUND, NOT_STARTED = 127, 126
# What a process may have inherited as ignored, and a command expects to work.
RESET = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD)
# Variable in the environment of each process of a job: the job's folder.
MARK = "SP500_JOB"


@dataclass(frozen=True)
class Waiting:
    """A process that becomes the command on a signal through a pipe. It ends when the pipe's other end is closed."""

    pid: int
    word: int
    answer: int

    def begin(self) -> tuple[int, str] | None:
        """Start the command. Returns the exit code and the reason if that fails."""
        os.write(self.word, b"!")
        os.close(self.word)
        with os.fdopen(self.answer, "rb") as answer:
            message = answer.read().decode(errors="replace")
        if not message:
            return None
        code, _, reason = message.partition(" ")
        return int(code), reason


def prepare(request: Request, log: Path) -> Waiting:
    """Start a process in its own group that waits to run the command of `request`. Its output is appended to `log`.

    Its environment names the folder of `log` as its job's.

    Raises OSError if the machine has no room for another process.
    """
    wait, word = os.pipe()
    answer, say = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(word)
        _become(request, log, wait, say)
    os.setpgid(pid, pid)
    os.close(wait)
    os.close(say)
    return Waiting(pid, word, answer)


def _become(request: Request, log: Path, wait: int, say: int) -> None:
    """Wait in the child for the parent's word, then become the command. Does not return."""
    argv, cwd, environment = request["argv"], request["cwd"], request["environment"] | {MARK: str(log.parent)}
    code, reason = NOT_STARTED, f"cwd {cwd} cannot be entered"
    try:
        if not os.read(wait, 1):
            os._exit(code)
        for number in RESET:
            signal.signal(number, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(cwd)
        code, reason = NOT_FOUND, f"{argv[0]} cannot be started"
        os.execvpe(argv[0], argv, environment)  # noqa: S606 - a list of words
    except (OSError, ValueError) as error:  # ValueError: a zero byte
        exit_code = code if isinstance(error, FileNotFoundError) else NOT_STARTED
        with suppress(OSError):
            message = f"{exit_code} {reason}: {getattr(error, 'strerror', None) or error}"
            os.write(say, message.encode(errors="replace"))
    finally:
        os._exit(code)


def members(folder: Path, leader: int, session: int, born: float | None) -> list[psutil.Process]:
    """Return living processes of the job in `folder`: marked ones, the group of its command, and all descendants.

    `leader` began the group at `born` in a session. A number can belong to another process by now: then that one began
    at another time, or is of another session.
    """
    same_group = birth(leader) in {None, born}
    living: set[psutil.Process] = set()
    for pid in psutil.pids():
        with suppress(ProcessLookupError, PermissionError, psutil.Error):
            of_group = same_group and os.getpgid(pid) == leader and os.getsid(pid) == session
            if of_group or psutil.Process(pid).environ().get(MARK) == str(folder):
                member = psutil.Process(pid)
                living.update(
                    process for process in (member, *list_below(member)) if process.status() != psutil.STATUS_ZOMBIE
                )
    return list(living)
