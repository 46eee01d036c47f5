"""Hyper-parameter search: one trial after another, side by side under Ray Tune, or both, timed against each other."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any, ClassVar, Literal

from pydantic import model_validator

from sp500.config import TrainConfig
from sp500.entry import Command, experiment
from sp500.errors import SP500Error
from sp500.progress import Progress
from sp500.runs import compare
from sp500.runs.record import RunRecord, ended
from sp500.runs.store import Run, RunStore

# What a child may take to end by itself after a signal.
GRACE_SECONDS = 10


class Tune(Command):
    """Find the best of many configs by validation loss, and judge that one on the test dates."""

    experiment: ClassVar[str] = "tune"
    mode: Literal["parallel", "sequential", "both"] = "parallel"
    """parallel: Ray Tune; sequential: this process; both: one child process each, timed from start to exit."""
    space: Literal["grid18"] = "grid18"
    """grid18: MLP, hidden 32/64/128 x lr 1e-3/3e-3/1e-2 x dropout 0/0.2."""
    pack: Literal["off"] = "off"
    """off: every trial trains alone."""
    train: TrainConfig = TrainConfig(early_stop_patience=0)

    @model_validator(mode="after")
    def _trials_train_alone(self) -> Tune:
        if self.num_workers:
            raise ValueError("num_workers: the trials of a search train alone, side by side; leave it at 0")
        if self.io.run_name and len(self.io.run_name) > 63 - len("-sequential"):
            raise ValueError("run name: at most 52 characters, since both modes add to it")
        return self

    @property
    def arm(self) -> str:
        """The mode."""
        return self.mode


def main(config: Tune, run: Run) -> RunRecord:
    """Search in one mode, or have one child process search in each."""
    if config.mode == "both":
        return both(config, run)
    from sp500.distributed import study
    from sp500.tasks import catalog
    from sp500.tuning import space

    base = catalog.resolve(config.run_config())
    trials = space.grid(base, space.SPACES[config.space]())
    with Progress("trial", len(trials)) as progress:
        return study.search(
            base,
            run,
            trials,
            space=config.space,
            parallel=config.mode == "parallel",
            on_result=lambda one: progress.advance(f"{one.overrides} {one.valid_loss or one.reason}"),
        )


def both(config: Tune, run: Run) -> RunRecord:
    """Each side as a child process; what it takes from its start to its exit is what a user waits."""
    store = RunStore(config.io.save_dir)
    names = {side: f"{run.name}-{side}" for side in ("sequential", "parallel")}
    seconds: dict[str, float | None] = {}
    for side, name in names.items():
        # A side that ended in an earlier attempt keeps the seconds of its own record.
        ended_before = store.record(name) is not None
        taken = child(config, run, side, name)
        seconds[side] = None if ended_before else taken
    sides = {side: store.record(name) for side, name in names.items()}
    shown = compare.searches(sides["sequential"], sides["parallel"], seconds["sequential"], seconds["parallel"])
    best = sides["parallel"]
    assert best is not None
    assert best.search is not None
    record = ended(
        config, name=run.name, experiment="tune", arm="both", search={**best.search, **shown, "sides": names}
    )
    facts = {"samples": best.samples, "data": best.data, "metrics": best.metrics, "best_epoch": best.best_epoch}
    return record.model_copy(update=facts)


def child(config: Tune, run: Run, side: str, name: str) -> float:
    """Seconds from the start to the exit of one side. Raises SP500Error when it fails."""
    kept = str(run.path / "config.yaml")
    command = [
        sys.executable,
        __file__,
        "--config",
        kept,
        "--name",
        name,
        "--mode",
        side,
        "--json",
        *(["--resume"] if config.resume else []),
    ]
    print(f"{side} ...", file=sys.stderr, flush=True)
    started = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)  # noqa: S603 - our own argv
    try:
        code = process.wait()
    finally:
        try:
            process.wait(timeout=GRACE_SECONDS)  # Ctrl-C reached the child as well
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait()
    if code:
        record = RunStore(config.io.save_dir).record(name)
        raise SP500Error(f"the {side} side ended with exit code {code}: {record.reason if record else 'killed'}")
    return time.monotonic() - started


def answer(record: RunRecord) -> dict[str, Any]:
    """The record, with the seven numbers of the comparison under `search` whichever side ran."""
    if record.arm == "both":
        return record.model_dump(mode="json")
    side = {record.arm: record}
    shown = compare.searches(side.get("sequential"), side.get("parallel"))
    return {**record.model_dump(mode="json"), "search": {**(record.search or {}), **shown}}


if __name__ == "__main__":
    sys.exit(experiment(Tune, main, sys.argv[1:], answer=answer))
