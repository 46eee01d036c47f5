"""`sp500 mlflow sync`: mirror the runs in MLflow."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field, model_validator

from sp500.commands import rate_table
from sp500.commands.verb import RunsFlags, verb
from sp500.console.output import printable
from sp500.credentials import has_password, mask
from sp500.errors import ConfigError
from sp500.formatting import join, some

if TYPE_CHECKING:
    from sp500.tracking.address import Address
    from sp500.tracking.mirror import Synced

SECONDS = 10.0
"""Between two syncs of --follow."""


class Sync(RunsFlags):
    """Copy runs to MLflow, one MLflow run each. A sync that was cut off is completed by the next one."""

    uri: str = Field(default_factory=lambda: os.environ.get("MLFLOW_TRACKING_URI") or "mlruns")
    """Address of a server, or a folder. Default: $MLFLOW_TRACKING_URI, or mlruns."""
    experiment: str = Field("sp500", min_length=1)
    """Experiment of MLflow. Give each folder of runs one of its own."""
    follow: bool = False
    """Sync every 10 seconds until a signal."""
    weights: bool = False
    """Keep the weights of the best epoch among the artifacts."""
    rates: Path | None = None
    """Table of rates for the price of a run. Default: cluster/rates.yaml if it exists."""

    @model_validator(mode="after")
    def _ends_with_one_object(self) -> Sync:
        if self.follow and self.json_output:
            raise ValueError("--follow and --json: use one of them, since one object cannot be printed before the end")
        return self


def _sync(flags: Sync) -> tuple[str, int]:
    _refuse_password(flags.uri)
    from sp500.tracking import address, mirror

    if not flags.follow and not flags.runs_dir.is_dir():
        raise ConfigError(f"--runs-dir {flags.runs_dir}: no such folder")
    target, rates = address.resolve(flags.uri), rate_table.read(flags.rates)
    shown = ""
    while True:
        done = mirror.sync(flags.runs_dir, target, flags.experiment, rates=rates, weights=flags.weights)
        if not flags.follow:
            for line in _missing(done):
                print(printable(line), file=sys.stderr, flush=True)
            text = _plain(done, target, flags.experiment) if flags.json_output else _text(done, target)
            return text, int(bool(done.missing))
        if (text := "\n".join([_text(done, target), *_missing(done)])) != shown:
            shown = text
            print(printable(text), flush=True)
        time.sleep(SECONDS)


def _refuse_password(uri: str) -> None:
    """Refuse an address with a password. A validator's message would repeat it."""
    if has_password(uri) and uri != os.environ.get("MLFLOW_TRACKING_URI"):
        raise ConfigError(
            "--uri: the address holds a password. Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD instead"
        )


def _missing(done: Synced) -> list[str]:
    """Return a line for each reason, with the runs that are missing for it."""
    reasons: dict[str, list[str]] = {}
    for run, reason in done.missing.items():
        reasons.setdefault(reason, []).append(run)
    return [
        f"missing in MLflow: {join(runs)} ({some(len(runs), 'run')}): {reason}. The next sync continues there"
        for reason, runs in reasons.items()
    ]


def _text(done: Synced, target: Address) -> str:
    lines = [
        f"{change.run}: {change.state}"
        + (f", {change.parts} children" if change.parts else "")
        + f", {some(change.points, 'value')} written"
        for change in done.changes
        if change.state != "same"
    ]
    same = sum(change.state == "same" for change in done.changes)
    left_out = sum(change.left_out for change in done.changes)
    summary = f"{some(len(done.changes), 'run')} in {mask(target.uri)}, {same} of them unchanged"
    return "\n".join([*lines, summary + (f"; left out as not finite: {some(left_out, 'value')}" if left_out else "")])


def _plain(done: Synced, target: Address, experiment: str) -> str:
    runs = [asdict(change) for change in done.changes]
    plain = {"uri": mask(target.uri), "experiment": experiment, "runs": runs, "missing": done.missing}
    return json.dumps(plain, indent=1)


main = verb("mlflow sync", Sync, _sync)
