"""The two sides of a search, one process each, timed against each other."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from sp500.config import RunConfig
from sp500.errors import ConfigError, SP500Error
from sp500.runs import compare
from sp500.runs.record import RunRecord, ended
from sp500.runs.store import Run, RunStore

# What a child may take to end by itself after a signal.
GRACE_SECONDS = 10


def both(config: RunConfig, run: Run, script: Path, *, resume: bool) -> RunRecord:
    """Each side of a search by `script` in a process of its own, timed from its start to its exit, as a user waits.

    Raises SP500Error when a side fails.
    """
    store = RunStore(config.io.save_dir)
    names = {side: f"{run.name}-{side}" for side in ("sequential", "parallel")}
    seconds: dict[str, float | None] = {}
    for side, name in names.items():
        # A side that ended in an earlier attempt keeps the seconds of its own record.
        ended_before = store.record(name) is not None
        taken = _child(run, script, side, name, store, resume=resume)
        seconds[side] = None if ended_before else taken
    sides = {side: store.record(name) for side, name in names.items()}
    shown = compare.searches(sides["sequential"], sides["parallel"], seconds["sequential"], seconds["parallel"])
    for side, found in sides.items():
        if found is None or found.search is None:
            raise SP500Error(f"the {side} side ended without a result: {found.reason if found else 'no record'}")
    best = sides["parallel"]
    assert best is not None
    assert best.search is not None
    record = ended(
        config, name=run.name, experiment="tune", arm="both", search={**best.search, **shown, "sides": names}
    )
    facts = {"samples": best.samples, "data": best.data, "metrics": best.metrics, "best_epoch": best.best_epoch}
    return record.model_copy(update=facts)


def _child(run: Run, script: Path, side: str, name: str, store: RunStore, *, resume: bool) -> float:
    """Seconds from the start to the exit of one side."""
    kept = str(run.path / "config.yaml")
    command = [
        sys.executable,
        str(script),
        "--config",
        kept,
        "--name",
        name,
        "--mode",
        side,
        "--json",
        *(["--resume"] if resume else []),
    ]
    print(f"{side} ...", file=sys.stderr, flush=True)
    started = time.monotonic()
    # A group of its own: what interrupts this process is handed on once, and not also by the terminal.
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, process_group=0)  # noqa: S603 - our own argv
    try:
        code = process.wait()
    except BaseException:
        _end(process)
        raise
    if code:
        # One that was refused at the door has no record of this attempt.
        record = store.record(name) if code != ConfigError.exit_code else None
        raise SP500Error(f"the {side} side ended with exit code {code}" + (f": {record.reason}" if record else ""))
    return time.monotonic() - started


def _end(process: subprocess.Popen[bytes]) -> None:
    """Let it write its record; what does not end in time is killed."""
    process.terminate()
    try:
        process.wait(timeout=GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
