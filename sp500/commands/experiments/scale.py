"""Datasets of growing size, three ways under one memory budget: what did streaming buy, and what did the cluster?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from sp500.console.entry import Command, run_experiment
from sp500.console.progress import Progress
from sp500.runs.record import RunRecord
from sp500.runs.store import Run
from sp500.studies import scale
from sp500.studies.settings import ScaleSettings


class Scale(ScaleSettings, Command):
    """Train on the data (20 stocks) and noisy copies of it, once per arm and dataset size."""

    takes_world_size: ClassVar[bool] = True


def act(config: ScaleSettings, run: Run) -> RunRecord:
    """Run every arm at every size."""
    with Progress("arm", len(scale.each(config, run.name))) as progress:
        return scale.run_scale(
            config,
            run,
            lambda arm, row: progress.advance(
                " ".join(filter(None, (f"{arm.label}: {row['status']}", row["reason"]))), news=True
            ),
        )


def main(argv: Sequence[str], prog: str = "sp500 scale") -> int:
    """Run it and return the exit code."""
    return run_experiment(Scale, act, argv, plan=scale.preview, prog=prog)
