"""The report in one folder: index.html with the answers first, report.md, report.json.

The page holds its own style and figures and loads nothing, so it can be sent as a file. The price is that it grows
with the runs: figures show the first fifteen models and the three hundred best configs, tables every model.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jinja2

from sp500 import formatting
from sp500.machine.disk import write_atomic
from sp500.report import pictures, tables
from sp500.report.differences import DifferenceSection
from sp500.report.folds import FoldSection
from sp500.report.glossary import WORDS
from sp500.report.listings import CostSection, DamagedSection, DataSection, RunSection
from sp500.report.models.section import ModelSection
from sp500.report.plot_style import Figure
from sp500.report.programs import ProgramSection
from sp500.report.scale.section import ScaleSection
from sp500.report.screen import build
from sp500.report.screen.answer import COSTS, FASTER, FITS, SAME, Facts
from sp500.report.screen.headline import Screen
from sp500.report.search.section import SearchSection
from sp500.report.section import Folded, Runs, Section
from sp500.report.tables import Table
from sp500.runs.cost import RateTable
from sp500.runs.details import Importance
from sp500.runs.record import EpochMetrics, RunRecord
from sp500.runs.trials import TrialResult

SECTIONS: tuple[Section, ...] = (
    ScaleSection(),
    SearchSection(),
    ProgramSection(),
    CostSection(),
    ModelSection(),
    FoldSection(),
    DifferenceSection(),
    DamagedSection(),
    DataSection(),
    RunSection(),
)
"""In the order in which they are read."""
UNITS = ("s", "min", "h", "days", "KiB", "MiB", "GiB", "USD")
# A terminal that shows the files obeys what names and tickers hold of these. Line feeds and tabs stay.
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class Shown:
    """A section as it is drawn."""

    name: str
    title: str
    lead: str
    chart: Figure | None
    """The chart next to the lead."""
    parts: Sequence[Any]
    """Table, Figure, or a string for a sentence: what the reader opens."""
    appendix: bool


@dataclass(frozen=True)
class Report:
    """Files and findings of a written report."""

    path: Path
    """index.html; report.md and report.json are in the same folder."""
    numbers: dict[str, object]
    """Content of report.json: `answers`, `search`, `scale` and what was computed of it, `models`, `costs`,
    `forecast`. What is called to be read is large."""
    screen: Screen
    verdicts: dict[str, list[str]]
    """Sentences by section."""
    sections: Sequence[Shown]


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


def write_runs(runs: Runs, out: Path, *, slides: bool = False) -> Report:
    """Write the report of these runs into the folder `out`; `slides`: five pages for a projector too."""
    report = compose(runs, out)
    out.mkdir(parents=True, exist_ok=True)
    write_atomic(out / "report.json", encode(report.numbers))
    write_atomic(out / "report.md", CONTROL.sub("", _markdown(runs.records, report.screen, report.sections)))
    write_atomic(report.path, draw(runs, report))
    parts = [part for section in report.sections for part in flatten((section.chart, *section.parts))]
    drawn = [part for part in parts if isinstance(part, Figure)]
    charts = [item.chart for item in report.screen.answers if item.chart]
    pictures.write_files([*charts, *drawn], [part for part in parts if isinstance(part, Table)], out)
    if slides:
        write_atomic(out / "slides.html", CONTROL.sub("", _slides(report.screen)))
    return report


def encode(numbers: Mapping[str, object]) -> Iterator[bytes]:
    """Yield the JSON of a report in parts; details of runs are read as they come."""
    encoder = json.JSONEncoder(indent=1, allow_nan=False, default=lambda read: read())
    yield from (part.encode() for part in encoder.iterencode(numbers))
    yield b"\n"


def compose(runs: Runs, out: Path) -> Report:
    """Return the report of these runs, without writing anything."""
    numbers, verdicts, shown = dict[str, object](), dict[str, list[str]](), []
    found = {section.name: section.collect(runs) for section in SECTIONS}
    screen = build.build(_collect_facts(found, runs), _source_flags(runs.records))
    numbers |= build.numbers(screen)
    for section in SECTIONS:
        part = found[section.name]
        numbers |= section.numbers(part, runs)
        if sentences := section.sentences(part, runs):
            verdicts[section.name] = sentences
        if parts := (*sentences, *section.parts(part, runs)):
            shown.append(_arrange(section, section.lead(part, runs), parts))
    return Report(out / "index.html", numbers, screen, verdicts, shown)


def draw(runs: Runs, report: Report, live: Sequence[Any] | None = None) -> str:
    """Return the page of a report; `live`: what goes on meanwhile."""
    template = _environment().get_template("page.html.jinja")
    html = template.render(
        span=_span(runs.records), screen=report.screen, sections=report.sections, words=WORDS, live=live
    )
    return CONTROL.sub("", html)


def flatten(parts: Sequence[Any]) -> list[Any]:
    """Return parts, and those inside of folded ones after each."""
    return [each for part in parts for each in (part, *(part.parts if isinstance(part, Folded) else ()))]


def summary(report: Report) -> str:
    """Return the first screen and the report's path, in plain lines."""
    screen = report.screen
    lines = [
        screen.headline,
        screen.note,
        *(f"{item.question} {item.number}. {item.caption}" for item in screen.answers),
    ]
    lines += [f"{question} Not run yet: {command}" for question, command in screen.unanswered]
    return "\n".join([*filter(None, lines), f"report: {report.path}"])


def _collect_facts(found: Mapping[str, Any], runs: Runs) -> Facts:
    groups, _ = found["models"]
    return Facts(runs, groups, found["search"], found["programs"], found["folds"], found["scale"])


def _arrange(section: Section, lead: str, parts: Sequence[Any]) -> Shown:
    """Return the section with its first figure apart, and without the lead among the sentences."""
    chart = None if section.appendix else next((part for part in parts if isinstance(part, Figure)), None)
    rest = [part for part in parts if part is not chart and part != lead]
    title = section.title or section.name.capitalize()
    return Shown(section.name, title, lead, chart, rest, section.appendix)


def _source_flags(records: Sequence[RunRecord]) -> str:
    """Return the flags of a command for the prices of the newest run."""
    data = records[-1].config.get("data", {}) if records else {}
    source = data.get("source", "bundled")
    return "" if source == "bundled" else f" --data.source {shlex.quote(source)}"


def _span(records: Sequence[RunRecord]) -> str:
    """Return how many runs there are and their dates. No clock is read, so the same runs make the same page."""
    if not records:
        return "no runs"
    first, last = min(record.started for record in records), max(record.finished for record in records)
    days = dict.fromkeys((f"{first:%Y-%m-%d}", f"{last:%Y-%m-%d}"))
    return f"{formatting.some(len(records), 'run')}, {' to '.join(days)}"


def _slides(screen: Screen) -> str:
    """Return five pages of 1280 x 720, which a browser prints to PDF: cost and sameness share one."""
    rest = [item for item in screen.answers if item.question in (COSTS, SAME)]
    pages = [[item] for item in screen.answers if item not in rest]
    place = sum(item.question in (FITS, FASTER) for [item] in pages)
    pages[place:place] = [rest] if rest else []
    return _environment().get_template("slides.html.jinja").render(screen=screen, pages=pages)


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # A number and its unit stay on one line.
    environment.filters["hold_units"] = partial(re.sub, rf"(?<=\d) (?={'|'.join(UNITS)}\b)", "\u00a0")
    environment.tests["table"] = lambda part: isinstance(part, Table)
    environment.tests["folded"] = lambda part: isinstance(part, Folded)
    return environment


def _markdown(records: Sequence[RunRecord], screen: Screen, sections: Sequence[Shown]) -> str:
    lines = [f"# {tables.escape(screen.headline)}", "", f"{_span(records)}. Figures: index.html."]
    lines += [f"{tables.escape(screen.note)}", ""] if screen.note else [""]
    lines += [
        f"- **{item.question}** {tables.escape(item.number)}. {tables.escape(item.caption)}" for item in screen.answers
    ]
    lines += [f"- **{question}** Not run yet: `{command}`" for question, command in screen.unanswered]
    for section in sections:
        lines += ["", f"## {section.title}", ""]
        lines += [f"**{tables.escape(section.lead)}**", ""] if section.lead else []
        for part in flatten(section.parts):
            lines += [part.markdown(), ""] if isinstance(part, Table) else []
            lines += [tables.escape(part), ""] if isinstance(part, str) else []
            lines += [f"### {tables.escape(part.title)}", ""] if isinstance(part, Folded) else []
    return "\n".join(lines) + "\n"
