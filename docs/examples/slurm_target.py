"""Slurm as a target: each start of a job is a Slurm job on one node, which mounts the folders of this machine."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from filelock import FileLock

from sp500.errors import LimitExceeded, Refused, Unreachable
from sp500.jobs.executor import Line, Request
from sp500.jobs.local import executor as local
from sp500.jobs.local import log_file
from sp500.jobs.local.job_folder import SETTINGS
from sp500.jobs.resources import of_spec
from sp500.jobs.spec import KUBERNETES_ONLY, JobSpec
from sp500.jobs.state import FINAL_CODES, JobState, Role, Status
from sp500.jobs.target import Options, Place, Target

STATES = dict.fromkeys(("PENDING", "CONFIGURING"), JobState.PENDING)
STATES |= {"COMPLETED": JobState.SUCCEEDED, "CANCELLED": JobState.STOPPED}
STATES |= dict.fromkeys(("FAILED", "TIMEOUT", "DEADLINE", "OUT_OF_MEMORY"), JobState.FAILED)
STATES |= dict.fromkeys(("NODE_FAIL", "BOOT_FAIL", "PREEMPTED"), JobState.LOST)  # in all others it holds its node
LATER = re.compile("contact|timed out|limit|temporarily|authentication|configuration file")  # errors that may pass


def ask(*words: str, env: Mapping[str, str] = os.environ) -> str:
    """Return what a program of Slurm prints, times in seconds since 1970. Raises Refused or Unreachable."""
    env = {**env, "SLURM_TIME_FORMAT": "%s"}
    try:
        return subprocess.run(words, env=env, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603
    except subprocess.CalledProcessError as error:
        raise (Unreachable if LATER.search(error.stderr) else Refused)(f"{words[0]}: {error.stderr.strip()}") from error
    except OSError as error:
        raise Unreachable(f"{words[0]}: {error.strerror}; submit where Slurm's programs are installed") from error


class SlurmExecutor:
    """Jobs of a Slurm cluster. A handle is the name of the job there, and of a folder here with its log."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def submit(self, handle: str, request: Request) -> None:
        """Start the job, unless Slurm knows it or it has begun before."""
        job = self._folder / handle
        job.mkdir(mode=0o700, parents=True, exist_ok=True)
        log, begun, settings = job / "log", job / "begun", job / "settings.yaml"
        with FileLock(job / "lock"):
            if begun.exists() or self._look(handle):
                return
            log.touch(mode=0o600)
            settings.write_text(request["settings"] or "")
            command = shlex.join(str(settings) if word == SETTINGS else word for word in request["argv"])
            # Slurm forgets ended jobs, and this process may be killed after sbatch: the job itself leaves the mark.
            script = f"touch {shlex.quote(str(begun))}; exec {command}"
            place = (f"--chdir={request['cwd']}", f"--output={str(log).replace('%', '%%')}", f"--job-name={handle}")
            ask("sbatch", *request["flags"], *place, f"--wrap={script}", env=request["environment"])

    def status(self, handle: str) -> Status:
        """Return what Slurm knows of it."""
        if not ((self._folder / handle).exists() and (seen := self._look(handle))):
            return Status(JobState.LOST, f"Slurm does not know job {handle}, or not any more", retryable=True)
        id, word, end, started, ended, node, why = seen
        state, own = STATES.get(word, JobState.RUNNING), os.waitstatus_to_exitcode(int(end))
        own = own if own >= 0 else 128 - own
        return Status(
            state,
            f"Slurm job {id}{node and f' on {node}'}: {word} {f'with exit code {own}' if word == 'FAILED' else why}",
            exit_code={"COMPLETED": 0, "FAILED": own, "TIMEOUT": LimitExceeded.exit_code}.get(word),
            started=float(started) if node and started.isdecimal() else None,
            ended=float(ended) if state.finished and ended.isdecimal() else None,
            retryable=state is JobState.LOST or (word == "FAILED" and own not in FINAL_CODES),
        )

    def logs(self, handle: str, *, role: Role | None, tail: int | None, follow: bool) -> Iterator[Line]:
        """Return the lines of its log, stdout and stderr together."""
        log, status = self._folder / handle / "log", (lambda: self.status(handle)) if follow else None
        return log_file.of_command(log, role=role, tail=tail, status=status, seconds=2)

    def stop(self, handle: str) -> None:
        """Have it sent SIGTERM, and SIGKILL after the cluster's KillWait."""
        ask("scancel", "--me", f"--name={handle}")

    def delete(self, handle: str) -> None:
        """Stop it and remove its folder."""
        self.stop(handle)
        shutil.rmtree(self._folder / handle, ignore_errors=True)

    def _look(self, handle: str) -> list[str]:
        """Number, state, status of exit, start, end, node and reason; empty where nobody knows it."""
        columns = "JobID:|,State:|,exit_code:|,StartTime:|,EndTime:|,NodeList:|,Reason:"
        row = ask("squeue", "--me", "--states=all", "--noheader", f"--name={handle}", f"--Format={columns}")
        if not row:
            columns = "JobID,State,ExitCode,Start,End,NodeList,Reason"
            with suppress(Refused):  # a cluster without accounting
                row = ask("sacct", "-XnP", "--starttime=now-90days", f"--name={handle}", f"--format={columns}")
                row = re.sub(r"(\d+):(\d+)", lambda code: str(int(code[1]) << 8 | int(code[2])), row)
        return re.sub(r" by \d+|None assigned|None$", "", row.partition("\n")[0]).split("|") if row else []


class SlurmOptions(Options):
    """Where Slurm puts a job; all else by the variables of sbatch, such as SBATCH_ACCOUNT."""

    partition: str | None = None
    """With --on slurm: partition. Default: the cluster's."""


class SlurmTarget(Target):
    """A Slurm cluster, through its programs."""

    name = "slurm"
    options = SlurmOptions
    seconds_between_looks = 5.0
    ends_late_jobs = True
    ignored = frozenset({*KUBERNETES_ONLY, "working_dir"})

    def locate(self, spec: JobSpec, options: SlurmOptions, folder: Path) -> Place:
        """Return the cluster that the programs of this machine reach."""
        return {"on": self.name}

    def check(self, specs: Sequence[JobSpec], options: SlurmOptions, folder: Path) -> None:
        """Ask whether it has nodes for these jobs."""
        for flags in {tuple(self.request(spec, "", options)["flags"]) for spec in specs}:
            ask("sbatch", "--test-only", *flags, "--wrap=true")

    def request(self, spec: JobSpec, id: str, options: SlurmOptions) -> Request:
        """Return the command with this folder and environment, and the flags of sbatch."""
        need = of_spec(spec)
        wanted: dict[str, object] = {"cpus-per-task": need.cpus, "gres": need.gpus and f"gpu:{need.gpus}"}
        wanted |= {"mem": need.memory and f"{-(-need.memory // 2**20):.0f}M", "partition": options.partition}
        wanted["time"] = spec.deadline and -(-spec.deadline // 60)  # minutes
        flags = ["--nodes=1", "--no-requeue", *(f"--{name}={value}" for name, value in wanted.items() if value)]
        return local.request(spec, cwd=Path.cwd(), environment=os.environ, python=sys.executable) | {"flags": flags}

    def executor(self, place: Place, folder: Path) -> SlurmExecutor:
        """Return the executor with the logs in the queue's folder."""
        return SlurmExecutor(folder / self.name)

    def billed_since(self, claimed: float, placed: float | None, started: float | None) -> float | None:
        """Return when it got its node."""
        return started


SLURM = SlurmTarget()
