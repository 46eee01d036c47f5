"""Prices, validated: a data card (rows, dates, repairs), a summary of the feature table, or shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pydantic import ConfigDict

from sp500.console.entry import Command, run_experiment
from sp500.credentials import Address
from sp500.runs.record import RunRecord, make_record
from sp500.runs.store import Run


class Prepare(Command):
    """Check prices and show what a model would be trained on, without training; with --out, write its shards."""

    model_config = ConfigDict(hide_input_in_errors=True, extra="allow")  # an address with a password is not repeated

    experiment: ClassVar[str] = "prepare"
    out: Address = ""
    """Folder or URI (s3://, gs://) to write the training windows' shards to, for scale.py --shards. One process
    writes them; with --num-workers N, N tasks of Ray at once, to the same bytes."""


def act(config: Prepare, run: Run) -> RunRecord:
    """Go through the data pipeline up to the windows."""
    from sp500.data import pipeline
    from sp500.tasks import catalog

    if config.out:
        from sp500.studies import scale_arms

        card = scale_arms.write(config.run_config(), config.out)
    else:
        resolved = catalog.resolve(config)
        task = catalog.task(resolved)
        if config.task_kind.from_prices and not config.data.npz_path:
            ready = catalog.price_task(resolved).read(resolved)
            card = catalog.prepare(task, resolved, ready.dataset(config.train.dtype)).card
            card["feature_summary"] = pipeline.summary(ready.table)
        else:
            card = catalog.prepare(task, resolved).card
    return make_record(config, name=run.name, experiment=config.experiment, arm=config.arm, data=card)


def main(argv: Sequence[str], prog: str = "sp500 prepare") -> int:
    """Run it and return the exit code."""
    return run_experiment(Prepare, act, argv, answer=lambda record: dict(record.data), prog=prog)
