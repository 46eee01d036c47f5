"""One config re-trained over the years on the dates before, each year judged next to naive forecasts."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from copy import copy
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

from pydantic import ValidationError, create_model

from sp500.console.entry import Command, defaults, from_file, run_experiment
from sp500.console.progress import Progress
from sp500.errors import ConfigError, SP500Error
from sp500.machine.imports import preload
from sp500.progress import Meter, Unit
from sp500.runs.record import RunRecord
from sp500.runs.results import FoldRow
from sp500.runs.store import Run
from sp500.studies.settings import WalkForwardSettings
from sp500.studies.walk_forward import find_run, preview, run_walk_forward


class WalkForward(WalkForwardSettings, Command):
    """Re-train one config on every fold of the dates and judge it on the days after, next to naive forecasts."""

    takes_world_size: ClassVar[bool] = True


def act(config: WalkForwardSettings, run: Run) -> RunRecord:
    """Train and judge the folds."""
    preload("sp500.studies.walk_forward_folds", "sp500.report.terminal")
    from sp500.report import folds

    meter = Meter("fold", config.folds, since=time.time(), parallel=config.num_workers > 0)
    with Progress("fold", config.folds, meter=meter) as progress:

        def show(row: FoldRow) -> None:
            ended = Unit(datetime.now(UTC), row["seconds"], samples=row.get("samples", 0))
            progress.advance(folds.line(row, config.task_kind), unit=ended)

        return run_walk_forward(config, run, show)


def build_settings_class(argv: Sequence[str]) -> type[WalkForward]:
    """Return the settings class, with the config of --best-of as its defaults. Raises ConfigError."""
    flags = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    flags.add_argument("--best-of", "--best_of")
    flags.add_argument("--config", type=Path)
    flags.add_argument("--runs-dir", "--runs_dir", "--io.save-dir", "--io.save_dir", type=Path)
    options = flags.parse_known_args(argv)[0]
    runs = options.runs_dir
    file = from_file(WalkForward, options.config, runs=runs) if options.config else defaults(WalkForward)
    name = options.best_of or file.best_of
    if not name:
        return WalkForward
    try:
        folder = runs or file.io.save_dir
        config = find_run(name, folder).best_config(folder / name)
        if config.sections:
            way_out = f"use --config {folder / name}/config.yaml"
            raise ConfigError(f"--best-of {name}: has a section {next(iter(config.sections))} of its own; {way_out}")
        fields: dict[str, Any] = {}
        for key in ("task", "data", "model", "train", "eval"):
            field = copy(WalkForward.model_fields[key])
            field.default, field.default_factory = getattr(config, key), None
            fields[key] = (field.annotation, field)
        model = create_model("WalkForward", __base__=WalkForward, __doc__=WalkForward.__doc__, **fields)
        model()  # an error in these settings is reported as the run's, not as a flag's
    except ValidationError as error:
        raise ConfigError(f"--best-of {name}: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from None
    return model


def main(argv: Sequence[str], prog: str = "sp500 walk-forward") -> int:
    """Run the experiment with the chosen config, and return its exit code."""
    try:
        model = build_settings_class(argv)
    except SP500Error as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return error.exit_code
    return run_experiment(model, act, argv, plan=preview, prog=prog)
