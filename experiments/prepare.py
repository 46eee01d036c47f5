"""Prices, validated: a data card (rows, dates, faults mended) and a summary of the feature table."""

from __future__ import annotations

import sys
from typing import ClassVar

from sp500.entry import Command, experiment
from sp500.runs.record import RunRecord, ended
from sp500.runs.store import Run


class Prepare(Command):
    """Check prices and show what a model would be trained on, without training."""

    experiment: ClassVar[str] = "prepare"


def main(config: Prepare, run: Run) -> RunRecord:
    """Go through the data line up to the windows."""
    from sp500.data import line
    from sp500.tasks import catalog

    resolved = catalog.resolve(config)
    card = catalog.task(resolved).prepare(resolved).card
    if resolved.task != "synthetic" and not resolved.data.npz_path:
        card = card | {"feature_summary": line.summary(config.data)}
    return ended(config, name=run.name, experiment=config.experiment, arm=config.arm, data=card)


if __name__ == "__main__":
    sys.exit(experiment(Prepare, main, sys.argv[1:], answer=lambda record: record.data))
