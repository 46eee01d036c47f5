"""`sp500 jobs forecast`: what more workers would buy, from the user's own runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from sp500.commands import rate_table
from sp500.commands.verb import RunsFlags, verb
from sp500.errors import ConfigError
from sp500.runs.experiments import Question

if TYPE_CHECKING:
    from sp500.runs import results
    from sp500.runs.cost import RateTable


class Forecast(Question, RunsFlags):
    """Forecast seconds, speed-up and cost per number of workers, from runs that have ended."""

    rates: Path | None = None
    """Table of rates. Default: cluster/rates.yaml if it exists."""


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
    result = forecast.forecast(RunStore(flags.runs_dir).scan().records, flags, table)
    if not flags.runs_dir.is_dir():
        result["assumption"] = f"The folder {flags.runs_dir} does not exist. {result['assumption']}"
    return result


main = verb("jobs forecast", Forecast, _forecast)
