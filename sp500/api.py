"""The experiments as functions: settings in, a `Result` out, the same run folder as the scripts leave.

Settings are those of the scripts: sections (`data`, `model`, `train`, `eval`) as dictionaries, the rest by name;
those in FLAT also without their section. `task` and `model` may be a class, also one of a notebook, `data.source` a
table of pandas, and `space` a dictionary. All functions take `name` and `runs_dir` of the run, and `resume=True` to
continue it. They raise ConfigError for settings that are wrong, DataError for prices that are, and SP500Error if a
run fails; its record says why. What the commands show on stderr while they run is shown in a notebook and in a
terminal, and nowhere else.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from sp500.config import task
from sp500.errors import ConfigError
from sp500.execution import Experiment, execute
from sp500.formatting import name_command
from sp500.machine.disk import write_atomic
from sp500.plugins import notebook, source
from sp500.runs.record import RunRecord, starting_now
from sp500.runs.store import REPORT, Run, RunStore
from sp500.schema import merge, validate
from sp500.studies.result import Result
from sp500.studies.settings import ScaleSettings, SearchSettings, TrainSettings, WalkForwardSettings

S = TypeVar("S", bound=Experiment)
F = TypeVar("F", bound=Callable[..., Result])
KEYWORD = inspect.Parameter.KEYWORD_ONLY
GIVEN = ".given"
"""Folder among the runs of what was given as an object: classes of notebooks, tables."""
FLAT = {
    **dict.fromkeys(("epochs", "lr", "batch_size", "seed", "device"), "train"),
    **dict.fromkeys(("source", "tickers", "start", "end", "window", "horizon"), "data"),
    **dict.fromkeys(("hidden", "layers", "dropout"), "model"),
}
"""Settings that are accepted without their section, and that section."""
SECTIONS = ("task", "model", "data", "train", "eval")


def _takes(model: type[Experiment]) -> Callable[[F], F]:
    """Return a decorator that shows these settings in a function's signature and help, as TAB and `?` read them."""
    usual = model()
    words = {"archive": usual.io} | {key: getattr(usual, section) for key, section in FLAT.items()}
    words |= {key: usual for key in model.model_fields if key not in {*SECTIONS, "io"}}
    shown = [inspect.Parameter(key, KEYWORD, default=None, annotation=Any) for key in SECTIONS]
    lines = [f"    {key}: {', '.join(type(getattr(usual, key)).model_fields)}" for key in SECTIONS[1:]]
    for key, owner in words.items():
        field = type(owner).model_fields[key]
        shown += [inspect.Parameter(key, KEYWORD, default=getattr(owner, key), annotation=field.annotation)]
        lines += [f"    {key}: {' '.join((field.description or '').split())}"]

    def describe(function: F) -> F:
        """Add the settings."""
        signature = inspect.signature(function)
        own = [parameter for parameter in signature.parameters.values() if parameter.kind is KEYWORD]
        vars(function)["__signature__"] = signature.replace(parameters=[*own, *shown])
        function.__doc__ = "\n".join([function.__doc__ or "", "", "    Settings, and those of each section:", *lines])
        return function

    return describe


@_takes(TrainSettings)
def train(*, name: str | None = None, runs_dir: str | Path = "runs", **settings: Any) -> Result:
    """Train one model and judge it on the test dates; `num_workers=N` trains on Ray, `seeds=N` for N seeds."""
    from sp500.commands.experiments.train import act

    return _execute(_settings(TrainSettings, name, runs_dir, settings), act)


@_takes(SearchSettings)
def search(*, name: str | None = None, runs_dir: str | Path = "runs", **settings: Any) -> Result:
    """Try many configs (`space`, `method`, `trials`), and judge the best; `mode` is sequential, packed, ray or auto."""
    from sp500.commands.experiments.tune import act

    config = _settings(SearchSettings, name, runs_dir, settings)
    if config.mode == "all":
        raise ConfigError(f"mode all times one process per arm: run {name_command('tune', '--mode all')}")
    return _execute(config, act)


tune = search
"""The same, by the name of the script."""


@_takes(ScaleSettings)
def scale(*, name: str | None = None, runs_dir: str | Path = "runs", **settings: Any) -> Result:
    """Train on the stocks and noisy copies of them (`multipliers`), once per arm (`arms`) and size."""
    from sp500.commands.experiments.scale import act

    return _execute(_settings(ScaleSettings, name, runs_dir, settings), act)


@_takes(WalkForwardSettings)
def walk_forward(*, name: str | None = None, runs_dir: str | Path = "runs", **settings: Any) -> Result:
    """Re-train one config on every fold of the dates; `best_of` takes the config of an ended run in `runs_dir`."""
    from sp500.commands.experiments.walk_forward import act
    from sp500.studies.walk_forward import find_run

    chosen: dict[str, object] = {}
    if settings.get("best_of"):
        config = find_run(settings["best_of"], Path(runs_dir)).best_config(Path(runs_dir) / settings["best_of"])
        chosen = config.model_dump(include={*SECTIONS, *config.sections})
    return _execute(_settings(WalkForwardSettings, name, runs_dir, settings, chosen), act)


def compare(runs_dir: str | Path = "runs") -> Path:
    """Write the report on all runs of a folder, and return its page."""
    from sp500.report import page
    from sp500.report.section import read_runs

    store = RunStore(Path(runs_dir))
    return page.write_runs(read_runs(store), store.root / REPORT).path


def load_run(folder: str | Path) -> Result:
    """Return an ended run by its folder. Raises ConfigError if there is none, or it has not ended."""
    path = Path(folder).expanduser().absolute()
    record = RunStore(path.parent).record(path.name)
    if record is None:
        raise ConfigError(f"{folder}: no run that has ended")
    return Result(record, path)


def load_runs(runs_dir: str | Path = "runs") -> list[Result]:
    """Return the ended runs of a folder, oldest first."""
    store = RunStore(Path(runs_dir))
    return [Result(record, store.root / record.name) for record in store.scan().records]


def _execute(config: S, main: Callable[[S, Run], RunRecord]) -> Result:
    from sp500.console.progress import watched_only

    with watched_only(), starting_now():
        record = execute(config, main)
    return Result(record, RunStore(config.io.save_dir).root / record.name)


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
    source.check_not_importing()
    settings = _replace_objects(_gather(settings), Path(runs_dir))
    sections = {key: value for key, value in settings.items() if value is not None or key not in SECTIONS}
    sections["io"] = {"run_name": name, "save_dir": runs_dir, "archive": sections.pop("archive", None)}
    base = merge(model().model_dump(), task.find(str(settings.get("task", ""))).defaults)
    config = validate(model, merge(merge(base, chosen), sections), f"{model.experiment} settings")
    config.give(settings)
    return config


def _gather(settings: Mapping[str, object]) -> dict[str, object]:
    """Return settings in which those without a section are in theirs."""
    gathered = {key: value for key, value in settings.items() if key not in FLAT}
    for key in FLAT.keys() & settings.keys():
        section = gathered.get(FLAT[key]) or {}
        section = dict(section) if isinstance(section, Mapping) else {"kind": section}
        if key in section:
            raise ConfigError(f"{key} is given twice, also as {FLAT[key]}[{key!r}]")
        gathered[FLAT[key]] = {**section, key: settings[key]}
    return gathered


def _replace_objects(settings: dict[str, object], runs: Path) -> dict[str, object]:
    """Return settings with classes and tables replaced by the files that hold them."""
    model = settings.get("model")
    if model is not None and not isinstance(model, Mapping):
        settings["model"] = model = {"kind": model}
    if isinstance(model, Mapping) and callable(model.get("kind")):
        settings["model"] = {**model, "kind": _refer(model["kind"], runs)}
    if callable(settings.get("task")):
        settings["task"] = _refer(settings["task"], runs)
    if isinstance(settings.get("space"), Mapping):
        settings["space"] = str(_keep_space(settings["space"], runs / GIVEN))
    data = settings.get("data")
    if isinstance(data, Mapping) and hasattr(data.get("source"), "to_parquet"):
        settings["data"] = {**data, "source": str(_keep_table(data["source"], runs / GIVEN))}
    return settings


def _refer(own: Any, runs: Path) -> str:
    """Return the reference of a class or function. Raises ConfigError for one that no other process could import."""
    name, module = own.__qualname__, sys.modules.get(own.__module__)
    if not name.isidentifier():
        raise ConfigError(f"{name} is defined inside a function or class; define it at the top of its file")
    file = getattr(module, "__file__", None)
    if file is None:
        return f"{notebook.save(name, vars(module) if module else {}, runs / GIVEN)}:{name}"
    return f"{file}:{name}" if own.__module__ == "__main__" else f"{own.__module__}:{name}"


def _keep_space(space: object, folder: Path) -> Path:
    """Write a search space under the hash of its content."""
    import yaml

    text = yaml.safe_dump(space, sort_keys=False)
    path = folder.absolute() / f"space-{hashlib.sha256(text.encode()).hexdigest()[:8]}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, text)
    return path


def _keep_table(table: Any, folder: Path) -> Path:
    """Write a table of prices as Parquet under the hash of its content, which so enters the fingerprint."""
    import pandas as pd

    from sp500.data.sources.files import to_rows

    table = to_rows(table)
    content = pd.util.hash_pandas_object(table, index=False).to_numpy().tobytes() + repr(list(table.columns)).encode()
    path = folder.absolute() / f"table-{hashlib.sha256(content).hexdigest()[:16]}.parquet"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, table.to_parquet())
    return path
