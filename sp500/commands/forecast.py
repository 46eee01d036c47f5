"""`sp500 jobs forecast`: what more workers would buy, from the user's own runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from pydantic import Field, field_validator

from sp500.commands import folders, rate_table
from sp500.commands.verb import verb
from sp500.config import Frozen
from sp500.errors import ConfigError
from sp500.runs.experiments import Experiment

if TYPE_CHECKING:
    from sp500.runs import results
    from sp500.runs.cost import RateTable


class Forecast(Frozen):
    """Forecast seconds, speed-up and cost per number of workers, from runs that have ended."""

    experiment: Experiment = "scale"
    """Whose runs to go by. Of tune, the workers are the cores that its trials run on."""
    workers: tuple[int, ...] = Field((1, 2, 4, 8, 16), min_length=1)
    """Numbers of workers."""
    runs_dir: Path = Field(default_factory=folders.default_runs)
    """Folder of the runs. $SP500_RUNS_DIR sets another default."""
    rates: Path | None = None
    """Table of rates. Default: cluster/rates.yaml if it exists."""
    size: int | None = Field(None, gt=0)
    """Windows to train on, over all epochs. Default: as many as the newest run."""
    node_type: str = ""
    """Price a worker as a node of this type of the table. Default: as the runs' own machines."""
    spot: bool = False
    """Price workers as spot machines."""
    json_output: Annotated[bool, tyro.conf.arg(name="json")] = False
    """One JSON object on stdout, with a row per number of workers under `rows`."""

    @field_validator("workers")
    @classmethod
    def _are_some(cls, workers: tuple[int, ...]) -> tuple[int, ...]:
        if few := [str(count) for count in workers if count < 1]:
            raise ValueError(f"expected numbers of workers above 0, got {' and '.join(few)}")
        return workers


def _forecast(flags: Forecast) -> tuple[str, int]:
    table = rate_table.read(flags.rates)
    forecast = build_forecast(flags, table)
    if flags.json_output:
        return json.dumps(forecast, indent=1, allow_nan=False), 0
    from sp500.report import costs

    return costs.text(forecast, table), 0


def build_forecast(flags: Forecast, table: RateTable | None) -> results.Forecast:
    """Return the forecast as plain data.

    Raises ConfigError for a node type that the table lacks, or a damaged record.
    """
    from sp500.runs import forecast
    from sp500.runs.store import RunStore

    if flags.node_type and (table is None or flags.node_type not in table.types):
        known = f"the table has {', '.join(table.types)}" if table else "there is no table of rates: set --rates FILE"
        raise ConfigError(f"--node-type {flags.node_type}: {known}")
    question = forecast.Question(**flags.model_dump(include=set(forecast.Question.model_fields)))
    result = forecast.forecast(RunStore(flags.runs_dir).scan().records, question, table)
    if not flags.runs_dir.is_dir():
        result["assumption"] = f"The folder {flags.runs_dir} does not exist. {result['assumption']}"
    return result


main = verb("jobs forecast", Forecast, _forecast)
