"""A folder of many runs: details stay on the disk until they are shown, and what is shown of them has an end."""

import json
from pathlib import Path

from test_page import trained

from sp500.report import page
from sp500.report.models.section import GROUPS
from sp500.report.section import read_runs
from sp500.runs.store import RunStore

GROWTH = {"dates": ["2026-01-31", "2026-02-28", "2026-03-31"], "model": [1.0, 1.1, 1.2], "buy_and_hold": [1.0] * 3}
RESIDUALS = {"mean": 0.0, "deviation": 1.0, "skew": None, "kurtosis": None, "quantiles": {}, "autocorrelation": 0.5}
EMPTY = {name: [] for name in ("tickers", "years", "months", "strategies", "bins")}
DETAILS = {"metric": "mse", "over": "mean", "groups": 0, "slope": 0.9, "residuals": RESIDUALS, **EMPTY}


def test_details_are_on_the_disk_only_and_written_whole(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    for number in (1, 2):
        run = trained(f"m{number}", number, breakdown=DETAILS)
        run.metrics["test"]["growth"] = GROWTH
        with store.open(run.name) as folder:
            folder.write_record(run)
    runs = read_runs(store)
    first, second = runs.records
    assert (first.breakdown, first.metrics["test"]["growth"]) == ({}, {})
    assert (first.data is second.data, first.metrics["naive"] is second.metrics["naive"]) == (True, True)
    assert runs.whole(first).breakdown == DETAILS
    report = page.write_runs(runs, tmp_path / "report")
    models = json.loads((tmp_path / "report" / "report.json").read_text())["models"][:2]
    assert [(row["growth"], row["breakdown"]) for row in models] == [(GROWTH, DETAILS)] * 2
    assert 'id="figure-growth' in report.path.read_text()


def test_tests_beyond_the_largest_have_a_line_each(tmp_path: Path) -> None:
    runs = [trained(f"m{number}", number) for number in range(GROUPS + 3)]
    for number, run in enumerate(runs):
        run.data["splits"] = {"test": ["a", f"b{number}"]}
    report = page.write(runs, {}, {}, tmp_path)
    drawn = list((tmp_path / "figures").glob("improvements-*.svg"))
    lines = (tmp_path / "tables" / "3-other-sets-of-test-data.csv").read_text().splitlines()
    assert (len(drawn), len(lines)) == (GROUPS, 1 + 3)
    assert len(report.verdicts["models"]) == GROUPS
