"""The experiments as functions: settings in, the run's record out, the same run folder as the scripts leave.

Settings are those of the scripts: sections (`data`, `model`, `train`, `eval`) as dictionaries, the rest by name. All
functions take `name` and `runs_dir` of the run, and `resume=True` to continue it. They raise ConfigError for settings
that are wrong, DataError for prices that are, and SP500Error if a run fails; its record says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from sp500.config import task
from sp500.errors import ConfigError
from sp500.execution import Experiment, execute
from sp500.runs.record import RunRecord
from sp500.runs.store import Run
from sp500.schema import merge, validate
from sp500.studies.settings import ScaleSettings, SearchSettings, TrainSettings, WalkForwardSettings

S = TypeVar("S", bound=Experiment)
SECTIONS = ("task", "data", "model", "train", "eval")


def train(*, name: str | None = None, runs_dir: str | Path = "runs", **settings: Any) -> RunRecord:
    """Train one model and judge it on the test dates; `num_workers=N` trains on Ray, `seeds=N` for N seeds."""

    def main(config: TrainSettings, run: Run) -> RunRecord:
        """Train in the run's folder."""
        from sp500.studies import train as study

        return study.train(config, run, seeds=config.seeds)

    return execute(_settings(TrainSettings, name, runs_dir, settings), main)


def search(*, name: str | None = None, runs_dir: str | Path = "runs", **settings: Any) -> RunRecord:
    """Try many configs (`space`, `method`, `trials`), and judge the best; `mode` is sequential, packed, ray or auto."""
    from sp500.studies.search import run_search

    config = _settings(SearchSettings, name, runs_dir, settings)
    if config.mode == "all":
        raise ConfigError("mode all times one process per arm: run experiments/tune.py --mode all")
    return execute(config, run_search)


def scale(*, name: str | None = None, runs_dir: str | Path = "runs", **settings: Any) -> RunRecord:
    """Train on the stocks and noisy copies of them (`multipliers`), once per arm (`arms`) and size."""
    from sp500.studies.scale import run_scale

    return execute(_settings(ScaleSettings, name, runs_dir, settings), run_scale)


def walk_forward(*, name: str | None = None, runs_dir: str | Path = "runs", **settings: Any) -> RunRecord:
    """Re-train one config on every fold of the dates; `best_of` takes the config of an ended run in `runs_dir`."""
    from sp500.studies.walk_forward import find_run, run_walk_forward

    chosen: dict[str, object] = {}
    if settings.get("best_of"):
        config = find_run(settings["best_of"], Path(runs_dir)).best_config(Path(runs_dir) / settings["best_of"])
        chosen = config.model_dump(include={*SECTIONS, *config.sections})
    return execute(_settings(WalkForwardSettings, name, runs_dir, settings, chosen), run_walk_forward)


def _settings(
    model: type[S],
    name: str | None,
    runs_dir: str | Path,
    settings: dict[str, object],
    chosen: Mapping[str, object] = MappingProxyType({}),
) -> S:
    """Return checked settings; sections for which the study has other defaults keep these under what is given.

    `chosen` is of a run, and lies between the two.
    """
    if "io" in settings:
        raise ConfigError("io: give the run's `name`, its folder `runs_dir` and its `archive` in its place")
    sections = {key: value for key, value in settings.items() if value is not None or key not in SECTIONS}
    sections["io"] = {"run_name": name, "save_dir": runs_dir, "archive": sections.pop("archive", None)}
    base = merge(model().model_dump(), task.find(str(settings.get("task", ""))).defaults)
    config = validate(model, merge(merge(base, chosen), sections), f"{model.experiment} settings")
    config.give(settings)
    return config
