"""One config re-trained over the years, each time on the dates before, and every year judged beside naive forecasts."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import tyro
from pydantic import Field, ValidationError, create_model, model_validator

import sp500.studies.walk_forward
from sp500.config import DataConfig
from sp500.entry import Command, defaults, experiment, from_file
from sp500.errors import ConfigError, SP500Error
from sp500.progress import Progress
from sp500.runs.record import RunRecord
from sp500.runs.store import Run, RunStore

if TYPE_CHECKING:
    from sp500.data.folds import Folds


class WalkForward(Command):
    """Re-train one config on every fold of the dates and judge it on the days after, beside naive forecasts."""

    experiment: ClassVar[str] = "walk_forward"
    takes_world_size: ClassVar[bool] = True
    folds: int = Field(6, gt=0)
    """How often to train; each test follows that of the fold before, and training has all dates before the test."""
    test_days: int = Field(252, gt=0)
    """Sessions of each test."""
    best_of: Annotated[str | None, tyro.conf.arg(aliases=["--from"])] = None
    """Search or train run in the same folder whose (best) config is re-trained; --config and flags go over it."""
    num_workers: int = Field(0, ge=0)
    """Folds at once on Ray; 0: one after another in this process."""
    data: DataConfig = DataConfig(tickers=("stocks",))

    @model_validator(mode="after")
    def _has_dates(self) -> WalkForward:
        if self.task == "synthetic" or self.data.npz_path:
            raise ValueError("folds are cut by date: task synthetic and data.npz_path have none")
        return self


def main(config: WalkForward, run: Run) -> RunRecord:
    """Train and judge the folds, and describe them together."""
    from sp500.report import folds

    with Progress("fold", config.folds) as progress:
        return sp500.studies.walk_forward.record(
            config, run, cut(config), lambda row: progress.advance(folds.line(row))
        )


def plan(config: WalkForward) -> dict[str, Any]:
    """What a dry run tells: the dates of every fold."""
    folds = cut(config)
    return {"folds": [folds.named(number + 1) for number in range(len(folds))]}


def cut(config: WalkForward) -> Folds:
    """Prices, features and the dates of every fold."""
    from sp500.data import folds

    record = source(config.best_of, config.io.save_dir) if config.best_of else None
    # A search chose by its validation dates and has looked at no later ones.
    valid = record.data.get("splits", {}).get("valid") if record and record.search else None
    return folds.prepare(config.data, folds=config.folds, test_days=config.test_days, chosen_until=valid and valid[1])


def based(argv: Sequence[str]) -> type[WalkForward]:
    """The settings, with the config of --best-of as their defaults. Raises ConfigError."""
    flags = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    flags.add_argument("--best-of", "--best_of", "--from")
    flags.add_argument("--config", type=Path)
    flags.add_argument("--runs-dir", "--runs_dir", "--io.save-dir", "--io.save_dir", type=Path)
    given = flags.parse_known_args(argv)[0]
    file = from_file(WalkForward, given.config) if given.config else defaults(WalkForward)
    name = given.best_of or file.best_of
    if not name:
        return WalkForward
    try:
        found = source(name, given.runs_dir or file.io.save_dir).best_config()
        fields: dict[str, Any] = {}
        for key in ("task", "data", "model", "train", "eval"):
            field = copy(WalkForward.model_fields[key])
            field.default = getattr(found, key)
            fields[key] = (field.annotation, field)
        model = create_model("WalkForward", __base__=WalkForward, __doc__=WalkForward.__doc__, **fields)
        model()  # what is wrong with these settings is told as the run's fault, not as a flag's
    except ValidationError as error:
        raise ConfigError(f"--best-of {name}: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from None
    return model


def source(name: str, folder: Path) -> RunRecord:
    """The run whose config is taken. Raises ConfigError for one that has no trained model."""
    record = RunStore(folder).record(name)
    if record is None or record.status != "ok" or record.experiment not in {"train", "tune"}:
        raise ConfigError(f"--best-of {name}: {folder} holds no train or tune run of that name that ended well")
    return record


def run(argv: Sequence[str]) -> int:
    """The experiment under the chosen config, to its exit code."""
    try:
        model = based(argv)
    except SP500Error as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return error.exit_code
    return experiment(model, main, argv, plan=plan)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
