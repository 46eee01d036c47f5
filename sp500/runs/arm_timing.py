"""All arms of a search, one process each, timed against each other."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import TracebackType

import psutil

from sp500.config import RunConfig
from sp500.errors import ConfigError, SP500Error, undo_on_error
from sp500.machine.cores import busy_seconds, usable_cores
from sp500.runs import compare
from sp500.runs.record import RunRecord, make_record
from sp500.runs.results import SearchSummary
from sp500.runs.store import Run, RunStore

# What a child may take to end by itself after a signal.
GRACE_SECONDS = 10
SAMPLE_SECONDS = 0.25


@dataclass(frozen=True)
class Timing:
    """Seconds of an arm from its start to its exit, CPU seconds of all its processes, and the share of this machine's
    cores that others took meanwhile; None if that is not known.
    """

    seconds: float
    cpu_seconds: float
    others_share: float | None


def run_all(config: RunConfig, run: Run, *, resume: bool, overwrite: bool) -> RunRecord:
    """Run each arm of a search in a process of its own, timed from its start to its exit, as a user waits.

    Raises SP500Error when an arm fails.
    """
    store = RunStore(config.io.save_dir)
    earlier = ["--resume"] if resume else ["--overwrite"] if overwrite else []
    names = {arm: f"{run.name}-{arm}" for arm in compare.ARMS}
    records: dict[str, RunRecord] = {}
    timed: dict[str, Mapping[str, float | None]] = {}
    for arm, name in names.items():
        # An arm that ended in an earlier attempt keeps the seconds of its own record.
        ended_before = resume and store.record(name) is not None
        timing = _time_arm(run, arm, name, store, earlier)
        if not ended_before:
            timed[arm] = asdict(timing)
        record = store.record(name)
        if record is None or record.search is None:
            raise SP500Error(f"the {arm} arm ended without a result: {record.reason if record else 'no record'}")
        records[arm] = record
    best = records["packed"]
    shown = compare.searches(records, timed)
    assert best.search is not None
    search: SearchSummary = {**best.search, **shown, "configs": best.search["configs"], "runs": names}
    record = make_record(config, name=run.name, experiment="tune", arm="all", search=search)
    facts = {"samples": best.samples, "data": best.data, "metrics": best.metrics, "best_epoch": best.best_epoch}
    return record.model_copy(update=facts)


def _time_arm(run: Run, arm: str, name: str, store: RunStore, earlier: Sequence[str]) -> Timing:
    # This run's Python may run. The arm is another process, which may not know of it.
    flags = ("--config", str(run.path / "config.yaml"), "--name", name, "--mode", arm, "--json", "--trust-source")
    command = [sys.executable, "-m", "sp500.cli", "tune", *flags, *earlier]
    print(f"{arm} ...", file=sys.stderr, flush=True)
    started = time.monotonic()
    # A group of its own: what interrupts this process is handed on once, and not also by the terminal.
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, process_group=0)  # noqa: S603 - our own argv
    with undo_on_error(lambda: _end(process)), CpuSeconds(process.pid) as cpu:
        code = process.wait()
    if code:
        # One that was refused at the door has no record of this attempt.
        record = store.record(name) if code != ConfigError.exit_code else None
        raise SP500Error(f"the {arm} arm ended with exit code {code}" + (f": {record.reason}" if record else ""))
    return Timing(time.monotonic() - started, cpu.seconds, cpu.others_share)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Let it write its record. A process that does not end in time is killed."""
    process.terminate()
    try:
        process.wait(timeout=GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class CpuSeconds:
    """CPU seconds of a child and all its descendants while the block runs, in which they have to end; and which share
    of this machine's cores was taken by processes other than these and this one. By the id of this process those of its
    children.

    The kernel's sum is exact but leaves out processes that nobody waited for, such as Ray's workers; samples see these
    but not the last moment of each. Neither counts too much, so the larger of the two is used.
    """

    def __init__(self, pid: int) -> None:
        self.seconds = 0.0
        self.others_share: float | None = None
        self._pid = pid
        self._seen: dict[int, float] = {}
        self._before = _children_cpu_seconds()
        self._own, self._machine = time.process_time(), busy_seconds()
        self._started = time.monotonic()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="cpu-seconds", daemon=True)

    def __enter__(self) -> CpuSeconds:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()
        self.seconds = max(_children_cpu_seconds() - self._before, sum(self._seen.values()))
        if self._machine is not None and (now := busy_seconds()) is not None:
            others = now - self._machine - self.seconds - (time.process_time() - self._own)
            could = (time.monotonic() - self._started) * usable_cores()
            self.others_share = min(max(others / could, 0.0), 1.0)

    def _sample(self) -> None:
        while not self._done.wait(SAMPLE_SECONDS):
            try:
                child = psutil.Process(self._pid)
                own = [] if self._pid == os.getpid() else [child]
                for process in (*own, *child.children(recursive=True)):
                    times = process.cpu_times()
                    self._seen[process.pid] = times.user + times.system
            except psutil.Error:  # one ended meanwhile
                continue


def _children_cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
