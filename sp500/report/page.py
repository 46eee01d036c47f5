"""One page that says what the runs found: index.html, report.md and report.json in one folder.

The page holds its own style and figures and loads nothing, so it can be sent as a file. The price is that it grows
with the runs: figures show the first fifteen models and the three hundred best configs, tables every model.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from sp500 import formatting
from sp500.machine.disk import write_atomic
from sp500.report import costs, folds, serving, tables
from sp500.report.models.results import group_runs, list_without_metrics, make_rows
from sp500.report.models.section import model_parts, model_sentences
from sp500.report.scale.results import collect
from sp500.report.scale.section import scale_parts, scale_sentences
from sp500.report.search.results import newest
from sp500.report.search.section import search_parts, search_sentences
from sp500.report.tables import Table
from sp500.runs.cost import RateTable
from sp500.runs.record import EpochMetrics, RunRecord
from sp500.runs.trials import TrialResult

COMMANDS = {
    "models": ("No model has been trained yet", "python experiments/train.py"),
    "search": ("No search has run yet", "python experiments/tune.py --mode all --space grid18"),
    "folds": ("No walk-forward run has ended yet", "python experiments/walk_forward.py"),
    "scale": ("No scale experiment has run yet", "python experiments/scale.py --multipliers 1 10"),
    "data": ("No run has read prices yet", "python experiments/prepare.py"),
    "runs": ("No run has ended yet", "python experiments/train.py"),
}
# A terminal that shows the files obeys what names and tickers hold of these. Line feeds and tabs stay.
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
TITLES = {"folds": "Walk forward", "cost": "Cost and forecast", "damaged": "Damaged runs"}


@dataclass(frozen=True)
class Section:
    """One part of the page: tables, figures and remarks in the order in which they are read."""

    name: str
    parts: tuple[Any, ...]
    """Table, Figure, or a string for a remark; nothing: the section is empty."""
    missing: tuple[str, str]
    """What it says when it is empty, and the command that fills it; blank for one that is shown only with parts."""

    @property
    def title(self) -> str:
        """Its heading."""
        return title(self.name)


@dataclass(frozen=True)
class Report:
    """What was written, and where."""

    path: Path
    """index.html; report.md and report.json lie beside it."""
    numbers: dict[str, object]
    """What report.json holds: `search`, `scale` and what was computed of it, `models`, `costs`, `forecast`."""
    verdicts: dict[str, list[str]]
    """Sentences by section."""
    missing: dict[str, tuple[str, str]]
    """What an empty section says, and the command that fills it."""


def write(
    records: Sequence[RunRecord],
    epochs: Mapping[str, Sequence[EpochMetrics]],
    trials: Mapping[str, Sequence[TrialResult]],
    out: Path,
    *,
    rates: RateTable | None = None,
    unended: Sequence[RunRecord] = (),
    damaged: Sequence[str] = (),
) -> Report:
    """Write the report of `records`, oldest first, into the folder `out`; epochs and trials go by their run's name.

    `unended` left no record and only cost something; `damaged` says what is wrong with each run that cannot be read.
    """
    paid, served = costs.of(records, unended, rates), serving.newest(records)
    groups, failed = group_runs(records), list_without_metrics(records)
    searched, walked, scaled = newest(records, trials), folds.newest(records), collect(records)
    verdicts = {
        "models": model_sentences(groups),
        "search": search_sentences(searched, records),
        "folds": folds.sentences(walked),
        "scale": scale_sentences(scaled, paid),
        "serving": serving.sentences(served),
        "cost": costs.sentences(paid),
        "damaged": [f"Left out as unreadable: {formatting.some(len(damaged), 'run')}."] if damaged else [],
    }
    parts = {
        "models": model_parts(records, groups, failed, epochs, paid),
        "search": search_parts(searched, records, paid),
        "folds": folds.parts(walked, folds.list_earlier(records)),
        "scale": scale_parts(scaled, paid),
        "serving": serving.parts(served, rates),
        "cost": costs.parts(paid),
        "data": (*tables.notes(records), *tables.data_cards(records)),
        "runs": (tables.runs(records, paid.cells), *tables.throughput(records)) if records else (),
        "damaged": tuple(damaged),
    }
    rows = {"folds": folds.numbers(walked), "models": make_rows(groups, failed), **serving.numbers(served)}
    numbers = rows | {"search": searched.numbers, **scaled.numbers, **paid.numbers}
    return _write_files(out, records, numbers | ({"damaged": list(damaged)} if damaged else {}), verdicts, parts)


def title(name: str) -> str:
    """Heading of a section by its name."""
    return TITLES.get(name, name.capitalize())


def summary(report: Report) -> str:
    """The verdicts and the report's path, in plain lines."""
    lines = [f"{name}: {sentence}" for name, sentences in report.verdicts.items() for sentence in sentences]
    lines += [f"{name}: {': '.join(report.missing[name])}" for name, said in report.verdicts.items() if not said]
    return "\n".join([*lines, f"report: {report.path}"])


def _write_files(
    out: Path,
    records: Sequence[RunRecord],
    numbers: dict[str, object],
    verdicts: Mapping[str, list[str]],
    parts: Mapping[str, Sequence[Any]],
) -> Report:
    """Sections that a command could fill are shown empty; of the others those that have something to say."""
    shown = [name for name in parts if name in COMMANDS or verdicts[name]]
    missing = _fill_commands(records)
    sections = [Section(name, tuple(parts[name]), missing.get(name, ("", ""))) for name in shown]
    said = {name: lines for name, lines in verdicts.items() if name in shown}
    report = Report(out / "index.html", numbers, said, missing)
    out.mkdir(parents=True, exist_ok=True)
    write_atomic(out / "report.json", json.dumps(report.numbers, indent=1, allow_nan=False) + "\n")
    write_atomic(out / "report.md", CONTROL.sub("", _markdown(records, report.verdicts, sections)))
    write_atomic(report.path, CONTROL.sub("", _html(records, report.verdicts, sections)))
    return report


def _fill_commands(records: Sequence[RunRecord]) -> dict[str, tuple[str, str]]:
    """COMMANDS, with the prices of the newest run."""
    data = records[-1].config.get("data", {}) if records else {}
    source = data.get("source", "bundled")
    flags = "" if source == "bundled" else f" --data.source {shlex.quote(source)}"
    return {name: (text, command + flags) for name, (text, command) in COMMANDS.items()}


def _span(records: Sequence[RunRecord]) -> str:
    """How many runs, and from when to when; no clock, so the same runs make the same page."""
    if not records:
        return "no runs"
    first, last = min(record.started for record in records), max(record.finished for record in records)
    days = dict.fromkeys((f"{first:%Y-%m-%d}", f"{last:%Y-%m-%d}"))
    return f"{formatting.some(len(records), 'run')}, {' to '.join(days)}"


def _html(records: Sequence[RunRecord], verdicts: Mapping[str, list[str]], sections: Sequence[Section]) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.tests["table"] = lambda part: isinstance(part, Table)
    environment.filters["svg"] = lambda figure: Markup(figure.svg)  # noqa: S704
    template = environment.get_template("page.html.jinja")
    return template.render(span=_span(records), verdicts=verdicts, sections=sections)


def _markdown(records: Sequence[RunRecord], verdicts: Mapping[str, list[str]], sections: Sequence[Section]) -> str:
    lines = ["# What the runs found", "", f"{_span(records)}. Figures: index.html.", ""]
    lines += [
        f"- **{title(name)}.** {tables.escape(' '.join(sentences))}"
        for name, sentences in verdicts.items()
        if sentences
    ]
    for section in sections:
        lines += ["", f"## {section.title}", ""]
        for part in section.parts:
            lines += [part.markdown(), ""] if isinstance(part, Table) else []
            lines += [tables.escape(part), ""] if isinstance(part, str) else []
        lines += [] if section.parts else [f"{section.missing[0]}: `{section.missing[1]}`"]
    return "\n".join(lines) + "\n"
