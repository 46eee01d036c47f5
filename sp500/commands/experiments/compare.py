"""Read the run records and write the report: one page, Markdown, JSON, figures and tables as files."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pydantic import Field

from sp500.commands import rate_table
from sp500.console.entry import Answer, Flags, run_script
from sp500.errors import ConfigError, DiskError
from sp500.formatting import some
from sp500.machine.imports import uncollected
from sp500.runs.cost import RateTable
from sp500.runs.store import REPORT, RunStore


class Compare(Flags):
    """Compare the runs in a folder: models against naive forecasts, parallel against sequential, arms against sizes."""

    runs_dir: Path = Path("runs")
    """Folder of all runs."""
    runs: tuple[str, ...] = ()
    """Only these runs, with the settings in which they differ."""
    project: str = ""
    """Only the runs of this project."""
    out: Path | None = None
    """Folder of the report. Default: `report` inside the folder of runs."""
    rates: Path | None = None
    """Table of rates. Default: cluster/rates.yaml if it exists."""
    watch: bool = False
    """Show the report in a browser on this machine and renew it while runs go on. Writes nothing."""
    port: int = Field(0, ge=0, le=65535)
    """Port of --watch. Default: a free one."""
    slides: bool = False
    """Also write slides.html: five pages that a browser prints to PDF."""


def act(config: Compare) -> Answer:
    """Write the report and print its path."""
    if not config.runs_dir.is_dir():
        raise ConfigError(f"--runs-dir {config.runs_dir}: no such folder")
    rates = rate_table.read(config.rates)
    if config.watch and not config.dry_run:
        return _watch(config, rates)
    with uncollected():
        from sp500.report import page
        from sp500.report.section import read_runs

        runs = read_runs(RunStore(config.runs_dir), rates, names=config.runs, project=config.project)
    out = config.out or config.runs_dir / REPORT
    if config.dry_run:
        names = [record.name for record in runs.records]
        plan = {"runs": names, "out": str(out), "damaged": list(runs.damaged)}
        return Answer(plan, "\n".join([f"would compare {some(len(names), 'run')} into {out}", *names, *runs.damaged]))
    try:
        report = page.write_runs(runs, out, slides=config.slides)
    except DiskError:
        raise
    except OSError as error:
        raise ConfigError(f"--out {out}: cannot be written ({error.strerror})") from error
    plain = json.loads((out / "report.json").read_bytes()) if config.json_output else {}
    return Answer(plain, page.summary(report))


def _watch(config: Compare, rates: RateTable | None) -> Answer:
    """Serve the page until the user ends it."""
    from sp500.live.server import LiveServer
    from sp500.report.live import LivePage

    page = LivePage(RunStore(config.runs_dir), rates, names=config.runs, project=config.project)
    try:
        server = LiveServer(page, config.port)
    except OSError as error:
        raise ConfigError(f"--port {config.port}: cannot be used ({error.strerror})") from error
    server.renew()  # an error in the flags ends the command, not a request
    print(f"live report: {server.url} (Ctrl-C ends it)", file=sys.stderr, flush=True)
    with server, suppress(KeyboardInterrupt):
        server.serve_forever()
    return Answer({"url": server.url}, "ended")


def main(argv: Sequence[str], prog: str = "sp500 compare") -> int:
    """Run it and return the exit code."""
    return run_script(Compare, act, argv, prog=prog)
