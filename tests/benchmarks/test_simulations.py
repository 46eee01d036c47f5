"""The simulations run end to end in their smallest form, and count as they say."""

import json
from pathlib import Path

import forks
import pytest
from scipy import stats

ROOT = Path(__file__).parent.parent.parent
# Ten to twenty seconds of one free core; a busy machine may take many times as long.
pytestmark = pytest.mark.timeout(1200)


def ran(name, *arguments):
    done = forks.run([str(ROOT / "benchmarks" / name), *arguments, "--json"], timeout=1200)
    assert done.returncode in (0, 1), done.stderr
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def test_false_claims_are_counted_with_an_exact_interval():
    rows = ran("false_claims.py", "--quick", "--processes", "1")
    assert [row["claim"] for row in rows] == [
        "searches that claim skill above 95%",
        "linear models called better",
        "linear models called worse",
    ]
    for row in rows:
        expected = stats.binomtest(row["count"], row["of"]).proportion_ci(method="exact")
        assert (row["low"], row["high"], row["of"]) == (pytest.approx(expected.low), pytest.approx(expected.high), 2)


def test_intervals_of_the_report_hold_the_truth_in_most_small_samples():
    rows = ran("coverage.py", "--draws", "60")
    assert len(rows) == 80
    assert all(row["coverage"] >= 0.8 for row in rows)
    assert sum(row["coverage"] for row in rows) / len(rows) >= 0.93
    assert all(row["coverage"] + row["better"] + row["worse"] == pytest.approx(1) for row in rows)
    for row in rows:  # the truth of the test days is that of the long run
        if row["truth"] == 0.0 or row["interval"] == "Sharpe ratio":
            assert row["long_run"] == row["coverage"]
    wild = [row for row in rows if (row["volatility"], abs(row["truth"])) == ("wild clusters", 0.04)]
    assert sum(row["long_run"] for row in wild) < 0.9 * sum(row["coverage"] for row in wild)


def test_range_of_the_forecast_holds_most_runs_where_some_were_repeated():
    rows = ran("forecast_range.py", "--draws", "10")
    repeated = [row["coverage"] for row in rows if "twice" in row["runs"] and row["varies"] > 0.05]
    assert sum(repeated) / len(repeated) >= 0.75
