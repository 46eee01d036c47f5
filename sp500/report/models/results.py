"""Trained models, naive forecasts and buy-and-hold as rows: the `models` of report.json.

Only rows judged on the same test windows are in one group. The price is that a changed date range or horizon opens a
new group with its own naive forecasts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypedDict

from sp500 import formatting
from sp500.config import TaskKind, kinds, task
from sp500.runs.details import Breakdown, Elsewhere
from sp500.runs.experiments import JUDGED
from sp500.runs.record import RunRecord
from sp500.runs.results import Improvement, Metrics

FEW = 4
"""Tickers that are still named one by one."""
NAME_PARTS = 4
Read = Callable[[RunRecord], RunRecord]
"""Returns a record with all its details."""


class NaiveRow(TypedDict):
    """A naive forecast or buy-and-hold, as report.json has it."""

    name: str
    kind: Literal["naive"]
    task: str
    model: None
    run: None
    status: str
    group: str
    """Rows of one group were judged on the same test windows."""
    test: Metrics
    improvement: None


class ModelRow(TypedDict):
    """A trained model, as report.json has it."""

    name: str
    kind: Literal["model"]
    task: str
    model: str | None
    run: str
    arm: str
    num_workers: int
    status: str
    reason: str
    group: str | None
    """None: it was not judged."""
    fingerprint: str
    replaces: list[str]
    """Older runs of the same settings."""
    best_epoch: int | None
    untrained_loss: float | None
    test: Metrics
    growth: Callable[[], Metrics | None] | None
    """Reads the growth of 1 by trading its forecasts, after costs: `dates`, `model`, `buy_and_hold`."""
    improvement: Improvement | None
    breakdown: Callable[[], Breakdown | None] | None
    """Reads the test in detail, of a model of prices."""
    elsewhere: Elsewhere | None
    """Of forecasts that were not made here."""


@dataclass(frozen=True)
class Group:
    """Models judged on the same test windows, best first, and the naive forecasts for those windows."""

    name: str
    task: str
    newest: RunRecord
    """Run whose data card and naive forecasts represent the group."""
    models: list[ModelRow]
    naive: list[NaiveRow]
    apart: str = ""
    """The difference from other groups of the same subject: 'data.start 2005-01-01'."""

    @property
    def subject(self) -> str:
        """The subject of the forecasts: 'Returns of ^GSPC', '5-day returns of 20 tickers'."""
        return f"{self._what} ({self.apart})" if self.apart else self._what

    @property
    def short(self) -> str:
        """The quantity that is forecast, in few letters."""
        title = self.kind.title or self.task
        return f"{title} ({self.apart})" if self.apart else title

    @property
    def kind(self) -> TaskKind:
        """Facts about the task that need no class of it."""
        return task.find(self.task)

    @property
    def _what(self) -> str:
        title = self.kind.title or self.task
        data = self.newest.data
        if not self.kind.from_prices:
            return f"{title} of {data['source']}" if self.kind.real and "source" in data else title
        names = data.get("tickers") or []
        of = ", ".join(names) if len(names) <= FEW else f"{len(names)} tickers"
        days = title if self.horizon == 1 else f"{self.horizon}-day {title.lower()}"
        return f"{days} of {of or data.get('source', 'unnamed data')}"

    def naive_epoch(self, row: ModelRow | NaiveRow) -> int | None:
        """Return the best epoch of a model that training started from the naive forecast; None for others."""
        return row["best_epoch"] if row["kind"] == "model" and self.kind.from_prices else None

    @property
    def horizon(self) -> int:
        """Days ahead that are forecast."""
        return int(self.newest.config.get("data", {}).get("horizon", 1))


def keep_all(record: RunRecord) -> RunRecord:
    """Return a record that has its details already."""
    return record


def group_runs(records: Sequence[RunRecord], read: Read = keep_all) -> list[Group]:
    """Return judged models by what makes their rows comparable, largest group first."""
    newest_runs = _newest_of_each(records)
    members: dict[str, list[tuple[RunRecord, list[str]]]] = {}
    for record, replaced in newest_runs:
        members.setdefault(_group_name(record), []).append((record, replaced))
    groups = []
    for name, judged in members.items():
        rows = [_model(record, name, replaced, read) for record, replaced in judged]
        members_of = [record for record, _ in judged]
        names, runs = [row["name"] for row in rows], [record.name for record in members_of]
        for row, apart in zip(rows, _tell_apart(names, list(map(_settings, members_of)), runs), strict=True):
            row["name"] += f" ({apart})" if apart else ""
        rows.sort(key=_merit, reverse=True)
        newest = judged[-1][0]
        groups.append(Group(name, _task(newest), newest, rows, _naive(newest, name)))
    subjects, newest_of = [group.subject for group in groups], [group.newest for group in groups]
    different = _tell_apart(subjects, list(map(_test_settings, newest_of)), [record.name for record in newest_of])
    named = [replace(group, apart=text) for group, text in zip(groups, different, strict=True)]
    return sorted(named, key=lambda group: -len(group.models))


def list_without_metrics(records: Sequence[RunRecord]) -> list[ModelRow]:
    """Return rows of runs that ended without test metrics: failed, stopped, out of memory."""
    runs = [record for record in records if record.experiment in JUDGED and record.status != "ok"]
    return [_model(record, None, []) for record in runs if not record.metrics.get("test")]


def make_rows(groups: Sequence[Group], ended: Sequence[ModelRow]) -> list[ModelRow | NaiveRow]:
    """Return the `models` of report.json: each group's models, its naive forecasts, then what has no metrics."""
    judged: list[ModelRow | NaiveRow] = []
    for group in groups:
        judged += [*group.models, *group.naive]
    return [*judged, *ended]


def _newest_of_each(records: Sequence[RunRecord]) -> list[tuple[RunRecord, list[str]]]:
    """Return the newest judged run per settings, arm and workers, with the names of those that it replaces."""
    doubles = _find_doubles(records)
    alike_runs: dict[tuple[Any, ...], list[RunRecord]] = {}
    for record in records:
        if record.experiment in JUDGED and record.metrics.get("test") and record.name not in doubles:
            # A search keeps its base settings' fingerprint: its key distinguishes two searches.
            key, data = record.search and record.search["key"], record.data.get("sha256")
            alike_runs.setdefault((record.fingerprint, record.arm, record.num_workers, key, data), []).append(record)
    newest = [(alike[-1], [record.name for record in alike[:-1]]) for alike in alike_runs.values()]
    return sorted(newest, key=lambda pair: pair[0].finished)


def _find_doubles(records: Sequence[RunRecord]) -> set[str]:
    """Return runs whose chosen model another row shows: a search in all modes copies its packed arm's."""
    judged = {record.name for record in records if record.metrics.get("test")}
    doubles: set[str] = set()
    for record in records:
        search = record.search
        runs = search.get("runs") if search else None
        if search and runs and runs["packed"] in judged:
            doubles.add(record.name)
            # One search, one best: the other arms trained the same model again.
            doubles.update([runs["sequential"], runs["ray"]] if search.get("same_best") else [])
    return doubles


def _group_name(record: RunRecord) -> str:
    """Return the task and a hash of the test set and of what is counted on it."""
    data, settings = record.data, record.config
    section = task.of_record(settings).section
    generated = {section: settings.get(section), "seed": settings.get("data", {}).get("seed")}
    parts = [
        data.get("sha256") or generated,
        data.get("splits", {}).get("test"),
        record.metrics["test"].get("samples"),
        settings.get("data", {}).get("horizon"),
        settings.get("eval", {}).get("threshold"),
        settings.get("eval", {}).get("cost_bps"),
    ]
    if (loss := settings.get("train", {}).get("loss", "mse")) != "mse":  # verdicts by other losses are not compared
        parts += [loss, settings["train"].get("quantile")]
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()
    return f"{_task(record)}-{digest[:8]}"


def _task(record: RunRecord) -> str:
    return formatting.reference_name(str(record.config.get("task") or kinds.default_task()))


def _merit(row: ModelRow) -> float:
    """Return the merit of a model; larger is better."""
    gain = row["improvement"]["value"] if row["improvement"] else None
    accuracy = row["test"].get("accuracy")
    merit = gain if gain is not None else accuracy
    return float("-inf") if merit is None else float(merit)


def _model(record: RunRecord, group: str | None, replaced: list[str], read: Read = keep_all) -> ModelRow:
    test = dict(record.metrics.get("test") or {})
    improvement, growth = test.pop("improvement", None), test.pop("growth", None)
    test.pop("buy_and_hold", None)  # a row of its own
    settings = dict(record.config.get("model", {}))
    chosen = record.search["best"]["overrides"] if record.search else {}
    settings |= {key.removeprefix("model."): value for key, value in chosen.items() if key.startswith("model.")}
    return {
        "name": record.elsewhere["file"]
        if record.elsewhere
        else model_name(settings, searched=record.search is not None),
        "kind": "model",
        "task": _task(record),
        "model": None if record.elsewhere else settings.get("kind"),
        "run": record.name,
        "arm": record.arm,
        "num_workers": record.num_workers,
        "status": record.status,
        "reason": record.reason,
        "group": group,
        "fingerprint": record.search["best"]["id"] if record.search else record.fingerprint,
        "replaces": replaced,
        "best_epoch": record.best_epoch,
        "untrained_loss": record.untrained_loss,
        "test": test,
        "growth": None if growth is None else lambda: read(record).metrics["test"].get("growth"),
        "improvement": improvement,
        "breakdown": None if record.breakdown is None else lambda: read(record).breakdown,
        "elsewhere": record.elsewhere,
    }


def _tell_apart(names: Sequence[str], settings: Sequence[Mapping[str, object]], runs: Sequence[str]) -> list[str]:
    """Return for each name that others share what differs in their settings: 'epochs 3'; '' for a name of its own.

    More than a few is a list of settings and no name: then it is the run's.
    """
    alike: dict[str, list[Mapping[str, object]]] = {}
    for name, own in zip(names, settings, strict=True):
        alike.setdefault(name, []).append(own)
    varied = {
        name: {key for own in several for key in own if own[key] != several[0].get(key)}
        | {key for own in several for key in several[0] if own.get(key) != several[0][key]}
        for name, several in alike.items()
    }
    apart = []
    for name, own, run in zip(names, settings, runs, strict=True):
        differing = [key for key in own if key in varied[name]]
        text = ", ".join(f"{key} {formatting.setting(own[key]) or formatting.NOTHING}" for key in differing)
        text = text if 0 < len(differing) <= NAME_PARTS else run
        apart.append(text if len(alike[name]) > 1 else "")
    return apart


def _test_settings(record: RunRecord) -> dict[str, object]:
    """Return what decides which windows are the test, and what is counted on them."""
    sections = ("data", task.find(_task(record)).section, "eval")
    train = record.config.get("train", {})
    loss = {"train.loss": train.get("loss", "mse"), "train.quantile": train.get("quantile", 0.5)}
    return {f"{name}.{key}": value for name in sections for key, value in record.config.get(name, {}).items()} | loss


def _settings(record: RunRecord) -> dict[str, object]:
    """Return settings that can distinguish two models of a group, the most useful first."""
    config = record.config
    data = {
        key: config.get("data", {}).get(key) for key in ("window", "norm", "multiplier", "valid_from_train", "seed")
    }
    section = task.find(_task(record)).section
    model = config.get("model", {})
    kind = kinds.models().get(model.get("kind"))  # records of earlier versions have the keys of all kinds
    own = {
        **{key: value for key, value in model.items() if not kind or key in kind.model_fields},
        **{f"{section} {key}": value for key, value in config.get(section, {}).items()},
        **{f"data {key}": value for key, value in data.items()},
        **config.get("train", {}),
    }
    return {"workers": record.num_workers, **own}


def model_name(settings: Mapping[str, Any], *, searched: bool = False) -> str:
    """Return a model's name for a reader: kind and size, or the options of one that the user brought."""
    kind = str(settings.get("kind", "model"))
    if built_in := kinds.models().get(kind):
        size = built_in.describe_size(settings)
    else:
        options = dict(settings.get("options") or {})
        options |= {
            key.removeprefix("options."): value for key, value in settings.items() if key.startswith("options.")
        }
        kind, size = formatting.reference_name(kind), formatting.config(options)
    return f"{kind}{' ' if size else ''}{size}{', searched' if searched else ''}"


def _naive(record: RunRecord, group: str) -> list[NaiveRow]:
    """Return naive forecasts, best first, and buy-and-hold, which forecasts nothing and has only Sharpe ratios."""
    held = record.metrics["test"].get("buy_and_hold")
    rivals = {**(record.metrics.get("naive") or {}), **({"buy_and_hold": held} if held else {})}
    rows = [
        NaiveRow(
            name=name,
            kind="naive",
            task=_task(record),
            model=None,
            run=None,
            status="ok",
            group=group,
            test=test,
            improvement=None,
        )
        for name, test in rivals.items()
    ]
    return sorted(rows, key=_naive_merit)


def _naive_merit(row: NaiveRow) -> float:
    """Return the merit of a naive forecast; smaller is better."""
    test = row["test"]
    errors = (test.get("mse"), test.get("bits_per_byte"), -test["accuracy"] if "accuracy" in test else None)
    return next((float(error) for error in errors if error is not None), float("inf"))
