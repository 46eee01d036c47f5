"""Walk-forward: which folds, of whose config, and the run over them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sp500.errors import ConfigError
from sp500.runs.record import RunRecord
from sp500.runs.results import FoldRow
from sp500.runs.store import Run, RunStore
from sp500.studies.settings import WalkForwardSettings

if TYPE_CHECKING:
    from sp500.data.columns import Hooks
    from sp500.data.folds import Folds


def run_walk_forward(
    config: WalkForwardSettings, run: Run, on_row: Callable[[FoldRow], None] = lambda row: None
) -> RunRecord:
    """Train and judge the folds, and describe them together; `on_row` gets each fold's row as it ends."""
    from sp500.studies import walk_forward_folds
    from sp500.tasks import catalog

    resolved = catalog.resolve(config)
    hooks = catalog.price_task(resolved).hooks(resolved)
    return walk_forward_folds.record(config, run, cut_folds(config, hooks), on_row)


def preview(config: WalkForwardSettings) -> dict[str, object]:
    """Return what a dry run shows: the dates of every fold, by the built-in columns for a task of the user's own."""
    folds = cut_folds(config)
    return {"folds": [folds.dates(number + 1) for number in range(len(folds))]}


def cut_folds(config: WalkForwardSettings, hooks: Hooks | None = None) -> Folds:
    """Return prices, features and the dates of every fold."""
    from sp500.data import folds, pipeline

    record = find_run(config.best_of, config.io.save_dir) if config.best_of else None
    # A search chose by its validation dates and has looked at no later ones.
    splits = record.data.get("splits") if record and record.search else None
    until = splits["valid"][1] if splits and "valid" in splits else None
    prices, table = pipeline.read(config.data, hooks)
    return folds.cut(prices, table, config.data, folds=config.folds, test_days=config.test_days, chosen_until=until)


def find_run(name: str, folder: Path) -> RunRecord:
    """Find the run whose config is used. Raises ConfigError for one that has no trained model."""
    record = RunStore(folder).record(name)
    if record is None or record.status != "ok" or record.experiment not in {"train", "tune"}:
        raise ConfigError(f"--best-of {name}: {folder} holds no train or tune run of that name that ended well")
    return record
