"""`sp500 runs list`, `show` and `rm`: the runs of a folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import tyro
from pydantic import Field
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sp500.commands.verb import RunsFlags, verb
from sp500.console.output import printable
from sp500.errors import ConfigError
from sp500.formatting import NOTHING, seconds
from sp500.runs.record import RunRecord
from sp500.runs.store import Run, RunStore

COLUMNS = ("name", "experiment", "task", "model", "status", "ended", "time")


class List(RunsFlags):
    """List the runs of a folder, the newest last."""


class Show(RunsFlags):
    """Show what a run found."""

    name: tyro.conf.Positional[str]
    """Name of the run."""


class Remove(RunsFlags):
    """Delete runs, unless they are written now or serve a model."""

    names: tyro.conf.Positional[tuple[str, ...]] = Field(min_length=1)
    """Names of the runs."""


def _list(flags: List) -> tuple[str, int]:
    store = RunStore(flags.runs_dir)
    runs = store.scan()
    found = {record.name: (record, str(record.status)) for record in runs.records}
    for record in runs.unended:  # also one that is resumed, whose earlier attempt has a record
        found[record.name] = (record, "running" if store.run(record.name).is_open() else "killed")
    if flags.json_output:
        rows = [_row(record, status) for record, status in found.values()]
        return json.dumps({"runs": rows, "damaged": list(runs.damaged)}, indent=1), 0
    table = _table(list(found.values())) if found else f"no runs in {store.root}"
    return "\n".join([table, *(f"damaged: {text}" for text in runs.damaged)]), 0


def _row(record: RunRecord, status: str) -> dict[str, object]:
    return {
        "name": record.name,
        "experiment": record.experiment,
        "task": record.config.get("task"),
        "model": record.config.get("model", {}).get("kind"),
        "status": status,
        "ended": record.finished.isoformat(timespec="seconds"),
        "seconds": record.seconds.total,
    }


def _table(runs: Sequence[tuple[RunRecord, str]]) -> str:
    shown = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in COLUMNS:
        shown.add_column(column, no_wrap=column == "name")
    for record, status in runs:
        cells = {
            **_row(record, status),
            "ended": f"{record.finished:%Y-%m-%d %H:%M}",
            "time": seconds(record.seconds.total),
        }
        shown.add_row(*(Text(printable(str(cells[column] or NOTHING))) for column in COLUMNS))
    console = Console(width=None if Console().is_terminal else 160)
    with console.capture() as capture:
        console.print(shown)
    return capture.get().strip("\n")


def _show(flags: Show) -> tuple[str, int]:
    from sp500.report import terminal

    run = _existing(RunStore(flags.runs_dir), flags.name)
    record = run.attempt_without_record() or run.record()
    if record is None:
        raise ConfigError(f"{run.path} holds no run")
    if flags.json_output:
        return record.model_dump_json(indent=1), 0
    return terminal.text(record, flags.runs_dir), 0


def _remove(flags: Remove) -> tuple[str, int]:
    store = RunStore(flags.runs_dir)
    runs = [_existing(store, name) for name in dict.fromkeys(flags.names)]
    served = dict(_served(store.root))
    for run in runs:  # all of them or none
        if run.name in served:
            raise ConfigError(f"{run.name} serves model {served[run.name]}; promote another run first")
        if run.is_open():
            raise ConfigError(f"{run.name} is being written; stop it first")
    for run in runs:
        store.remove(run.name)
    removed = [run.name for run in runs]
    return json.dumps({"removed": removed}) if flags.json_output else f"removed {', '.join(removed)}", 0


def _existing(store: RunStore, name: str) -> Run:
    run = store.run(name)
    if not run.path.is_dir():
        raise ConfigError(f"{name}: no such run in {store.root}; `sp500 runs list` shows those that are there")
    return run


def _served(root: Path) -> Iterator[tuple[str, str]]:
    """Yield each run that answers for a model, or could again after a rollback, and the model's name."""
    from sp500.serving.registry import Registry

    registry = Registry(root)
    for name in registry.names():
        yield from ((version.run, name) for version in registry.read(name).versions)


list_runs = verb("runs list", List, _list)
show = verb("runs show", Show, _show)
remove = verb("runs rm", Remove, _remove)
