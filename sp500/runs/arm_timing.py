"""All arms of a search, one process each, timed against each other."""

from __future__ import annotations

import resource
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import psutil

from sp500.config import RunConfig
from sp500.errors import ConfigError, SP500Error
from sp500.runs import compare
from sp500.runs.record import RunRecord, make_record
from sp500.runs.results import SearchSummary
from sp500.runs.store import Run, RunStore

# What a child may take to end by itself after a signal.
GRACE_SECONDS = 10
SAMPLE_SECONDS = 0.25


@dataclass(frozen=True)
class Timing:
    """Seconds of an arm from its start to its exit, and CPU seconds of all its processes."""

    seconds: float
    cpu_seconds: float


def run_all(config: RunConfig, run: Run, script: Path, *, resume: bool) -> RunRecord:
    """Each arm of a search by `script` in a process of its own, timed from its start to its exit, as a user waits.

    Raises SP500Error when an arm fails.
    """
    store = RunStore(config.io.save_dir)
    names = {arm: f"{run.name}-{arm}" for arm in compare.ARMS}
    records: dict[str, RunRecord] = {}
    timed: dict[str, dict[str, float | None]] = {}
    for arm, name in names.items():
        # An arm that ended in an earlier attempt keeps the seconds of its own record.
        ended_before = store.record(name) is not None
        timing = _time_arm(run, script, arm, name, store, resume=resume)
        if not ended_before:
            timed[arm] = {"seconds": timing.seconds, "cpu_seconds": timing.cpu_seconds}
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


def _time_arm(run: Run, script: Path, arm: str, name: str, store: RunStore, *, resume: bool) -> Timing:
    # This run's Python may run. The arm is another process, which may not know of it.
    flags = ("--config", str(run.path / "config.yaml"), "--name", name, "--mode", arm, "--json", "--trust-source")
    command = [sys.executable, str(script), *flags, *(["--resume"] if resume else [])]
    print(f"{arm} ...", file=sys.stderr, flush=True)
    started = time.monotonic()
    # A group of its own: what interrupts this process is handed on once, and not also by the terminal.
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, process_group=0)  # noqa: S603 - our own argv
    try:
        with CpuSeconds(process.pid) as cpu:
            code = process.wait()
    except BaseException:
        _end(process)
        raise
    if code:
        # One that was refused at the door has no record of this attempt.
        record = store.record(name) if code != ConfigError.exit_code else None
        raise SP500Error(f"the {arm} arm ended with exit code {code}" + (f": {record.reason}" if record else ""))
    return Timing(time.monotonic() - started, cpu.seconds)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Let it write its record; what does not end in time is killed."""
    process.terminate()
    try:
        process.wait(timeout=GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class CpuSeconds:
    """CPU seconds of a child and all its descendants while the block runs, in which the child has to end.

    The kernel's sum is exact but leaves out processes that nobody waited for, such as Ray's workers; samples see these
    but not the last moment of each. Neither counts too much, so the larger of the two is taken.
    """

    def __init__(self, pid: int) -> None:
        self.seconds = 0.0
        self._pid = pid
        self._seen: dict[int, float] = {}
        self._before = _children_cpu_seconds()
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

    def _sample(self) -> None:
        while not self._done.wait(SAMPLE_SECONDS):
            try:
                child = psutil.Process(self._pid)
                for process in (child, *child.children(recursive=True)):
                    times = process.cpu_times()
                    self._seen[process.pid] = times.user + times.system
            except psutil.Error:  # one ended meanwhile
                continue


def _children_cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
