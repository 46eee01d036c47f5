"""`sp500 importance RUN`: what a trained model's inputs are worth, feature by feature and day by day.

A verb of its own and no part of training: it needs a prediction of all windows for every feature, day and shuffle,
which may be more than the training, and it serves runs of earlier versions too.
"""

from __future__ import annotations

import json
from typing import Annotated

import tyro
from pydantic import Field

from sp500.commands.verb import RunsFlags, verb
from sp500.errors import ConfigError


class Inputs(RunsFlags):
    """Shuffle each feature and each day among the validation windows, and report what that adds to the loss."""

    run: Annotated[str, tyro.conf.Positional]
    """Name of a run of train or tune on prices."""
    repeats: int = Field(3, gt=0)
    """Shuffles of each input."""
    windows: int = Field(4_000, ge=0)
    """Validation windows to use, drawn by --seed; 0: all."""
    seed: int = Field(0, ge=0)
    """Seed of the shuffles."""
    trust_source: bool = False
    """Run the Python files in the run's folder (source/), even if no command on this machine has used them. Only for
    runs you trust."""


def _measure(flags: Inputs) -> tuple[str, int]:
    from sp500.report.models.details import rank_parts
    from sp500.runs.store import RunStore
    from sp500.serving.predictor import Predictor
    from sp500.tasks.importance import find_importance
    from sp500.tasks.prices import PriceTask

    run = RunStore(flags.runs_dir).run(flags.run)
    predictor = Predictor(run.path, trust_source=flags.trust_source)
    task = predictor.task
    if not isinstance(task, PriceTask):
        raise ConfigError(f"run {flags.run}: its task has no prices; importance is by feature and day of prices")
    model = predictor.read_chosen()
    importance = find_importance(
        task,
        task.prepare(predictor.config),
        lambda windows: predictor.predict(windows, model),
        repeats=flags.repeats,
        seed=flags.seed,
        most=flags.windows,
    )
    run.write_importance(importance)
    if flags.json_output:
        return json.dumps(importance, indent=1), 0
    return rank_parts(flags.run, importance).markdown(), 0


main = verb("importance", Inputs, _measure)
