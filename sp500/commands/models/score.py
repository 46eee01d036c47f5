"""`sp500 models score`: was the model any good in use?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sp500.commands.models.model_flags import ModelFlags, run_verb
from sp500.errors import ConfigError
from sp500.formatting import percent
from sp500.serving.registry import DEFAULT, Registry


class Score(ModelFlags):
    """Score served forecasts against the prices that followed, next to the naive forecasts."""

    model: str = DEFAULT
    """The model."""
    source: str | None = None
    """Where the prices are: bundled | yfinance | FILE. Default: the source that the champion was trained on."""


def main(argv: Sequence[str]) -> int:
    """Print a line for each run that answered, and return the exit code."""
    return run_verb(Score, argv, "models score", _score)


def _score(flags: Score) -> tuple[Mapping[str, object], str]:
    from sp500.data.sources import load
    from sp500.runs.store import Run
    from sp500.serving import answers, scores

    registry = Registry(flags.runs_dir)
    champion = registry.read(flags.model).champion
    folder = flags.runs_dir / (champion.run if champion else "")
    record = Run(folder).record() if champion else None
    if record is None:
        raise ConfigError(f"model {flags.model} has no champion in {registry.folder}; see sp500 models list")
    log = answers.read(registry.folder / answers.FOLDER / flags.model)
    config = record.best_config(folder)
    data = config.data.model_copy(update={"end": None, **({"source": flags.source} if flags.source else {})})
    rows = scores.score_answers(log, load(data).close, threshold=config.eval.threshold, horizon=data.horizon)
    return {"model": flags.model, "runs": rows}, "\n".join(map(_line, rows))


def _line(row: dict[str, Any]) -> str:
    text = f"{row['version']}  {row['run']} ({row['role']}): {row['judged']} of {row['answers']} answers judged"
    text += f", {row['other_prices']} were for other prices than the source's" if row["other_prices"] else ""
    if not row["judged"]:
        return text
    gain = row["improvement"]
    low, high = (percent(gain[end], sign=True) if gain[end] is not None else "unknown" for end in ("low", "high"))
    error = row[gain["metric"]]
    return (
        f"{text}; {gain['metric']} {error:.6g}, {percent(gain['value'], sign=True)} against naive '{gain['over']}' "
        f"(95% interval for these days {low} to {high})"
    )
