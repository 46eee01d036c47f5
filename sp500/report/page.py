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

from sp500 import formatting
from sp500.machine.disk import write_atomic
from sp500.report import tables
from sp500.report.folds import FoldSection
from sp500.report.listings import CostSection, DamagedSection, DataSection, RunSection
from sp500.report.models.section import ModelSection
from sp500.report.programs import ProgramSection
from sp500.report.scale.section import ScaleSection
from sp500.report.search.section import SearchSection
from sp500.report.section import Runs, Section
from sp500.report.tables import Table
from sp500.runs.cost import RateTable
from sp500.runs.details import Importance
from sp500.runs.record import EpochMetrics, RunRecord
from sp500.runs.trials import TrialResult

SECTIONS: tuple[Section, ...] = (
    ModelSection(),
    SearchSection(),
    ProgramSection(),
    FoldSection(),
    ScaleSection(),
    CostSection(),
    DataSection(),
    RunSection(),
    DamagedSection(),
)
"""In the order in which they are read."""
# A terminal that shows the files obeys what names and tickers hold of these. Line feeds and tabs stay.
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class Shown:
    """A section as it is drawn."""

    name: str
    title: str
    parts: Sequence[Any]
    """Table, Figure, or a string for a remark; nothing: the section is empty."""
    missing: tuple[str, str]
    """Text of an empty section, and the command that fills it."""


@dataclass(frozen=True)
class Report:
    """Files and findings of a written report."""

    path: Path
    """index.html; report.md and report.json are in the same folder."""
    numbers: dict[str, object]
    """Content of report.json: `search`, `scale` and what was computed of it, `models`, `costs`, `forecast`."""
    verdicts: dict[str, list[str]]
    """Sentences by section."""
    missing: dict[str, tuple[str, str]]
    """Text of each empty section, and the command that fills it."""


def write(
    records: Sequence[RunRecord],
    epochs: Mapping[str, Sequence[EpochMetrics]],
    trials: Mapping[str, Sequence[TrialResult]],
    out: Path,
    *,
    rates: RateTable | None = None,
    unended: Sequence[RunRecord] = (),
    damaged: Sequence[str] = (),
    importance: Mapping[str, Importance] | None = None,
) -> Report:
    """Write the report of `records`, oldest first, into the folder `out`; epochs, trials and importance go by
    their run's name.

    `unended` left no record and only cost something; `damaged` says what is wrong with each run that cannot be read.
    """
    return write_runs(Runs(records, epochs, trials, rates, unended, damaged, importance or {}), out)


def write_runs(runs: Runs, out: Path) -> Report:
    """Write the report of these runs into the folder `out`."""
    records = runs.records
    missing, numbers, verdicts, shown = _fill_commands(records), dict[str, object](), dict[str, list[str]](), []
    for section in SECTIONS:
        found = section.collect(runs)
        numbers |= section.numbers(found, runs)
        sentences = section.sentences(found, runs)
        # A section that a command could fill is shown empty; of the others those that have something to say.
        if section.empty[0] or sentences:
            if sentences is not None:
                verdicts[section.name] = sentences
            parts = section.parts(found, runs)
            shown.append(Shown(section.name, title(section), parts, missing.get(section.name, ("", ""))))
    report = Report(out / "index.html", numbers, verdicts, missing)
    out.mkdir(parents=True, exist_ok=True)
    write_atomic(out / "report.json", json.dumps(report.numbers, indent=1, allow_nan=False) + "\n")
    write_atomic(out / "report.md", CONTROL.sub("", _markdown(records, report.verdicts, shown)))
    write_atomic(report.path, CONTROL.sub("", _html(records, report.verdicts, shown)))
    return report


def title(section: Section) -> str:
    """Return the heading of a section."""
    return section.title or section.name.capitalize()


def summary(report: Report) -> str:
    """Return the verdicts and the report's path, in plain lines."""
    lines = [f"{name}: {sentence}" for name, sentences in report.verdicts.items() for sentence in sentences]
    lines += [
        f"{name}: {': '.join(report.missing[name])}" for name, verdicts in report.verdicts.items() if not verdicts
    ]
    return "\n".join([*lines, f"report: {report.path}"])


def _fill_commands(records: Sequence[RunRecord]) -> dict[str, tuple[str, str]]:
    """Return the texts of empty sections, each with a command for the prices of the newest run."""
    data = records[-1].config.get("data", {}) if records else {}
    source = data.get("source", "bundled")
    flags = "" if source == "bundled" else f" --data.source {shlex.quote(source)}"
    return {each.name: (each.empty[0], each.empty[1] + flags) for each in SECTIONS if each.empty[0]}


def _span(records: Sequence[RunRecord]) -> str:
    """Return how many runs there are and their dates. No clock is read, so the same runs make the same page."""
    if not records:
        return "no runs"
    first, last = min(record.started for record in records), max(record.finished for record in records)
    days = dict.fromkeys((f"{first:%Y-%m-%d}", f"{last:%Y-%m-%d}"))
    return f"{formatting.some(len(records), 'run')}, {' to '.join(days)}"


def _html(records: Sequence[RunRecord], verdicts: Mapping[str, list[str]], sections: Sequence[Shown]) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.tests["table"] = lambda part: isinstance(part, Table)
    template = environment.get_template("page.html.jinja")
    return template.render(span=_span(records), verdicts=verdicts, sections=sections)


def _markdown(records: Sequence[RunRecord], verdicts: Mapping[str, list[str]], sections: Sequence[Shown]) -> str:
    lines = ["# What the runs found", "", f"{_span(records)}. Figures: index.html.", ""]
    lines += [
        f"- **{section.title}.** {tables.escape(' '.join(verdicts[section.name]))}"
        for section in sections
        if verdicts.get(section.name)
    ]
    for section in sections:
        lines += ["", f"## {section.title}", ""]
        for part in section.parts:
            lines += [part.markdown(), ""] if isinstance(part, Table) else []
            lines += [tables.escape(part), ""] if isinstance(part, str) else []
        lines += [] if section.parts else [f"{section.missing[0]}: `{section.missing[1]}`"]
    return "\n".join(lines) + "\n"
