"""What the report says of a walk-forward run, against rows whose answers can be read off."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
from result_rows import run_record

from sp500.report import folds, page, terminal
from sp500.report.section import Runs
from sp500.report.tables import Table
from sp500.runs.record import RunRecord
from sp500.studies.walk_forward_folds import summary

UP = [0.01, 0.02, 0.03]
EVIL = "diverged <b>&"


def parts_of(walked: RunRecord) -> tuple[Any, ...]:
    return folds.FoldSection().parts(walked, Runs([walked], {}, {}))


def row(number: int, gain: float | None, half: float = 0.005, **changes: Any) -> dict[str, Any]:
    """A fold whose naive MSE is 2e-4, and whose improvement over it has an interval of `half` to each side."""
    ends = {"low": None, "high": None} if gain is None else {"low": gain - half, "high": gain + half}
    return {
        "fold": number,
        "status": "ok",
        "reason": "",
        "splits": {"train": ["2000-01-03", "2009-12-31"], "test": [f"201{number}-01-02", f"201{number}-12-30"]},
        "blind": None,
        "seconds": 3.0,
        "windows": {"train": 1000 * number, "test": 252},
        "best_epoch": number,
        "epochs": 9,
        "samples": 9000,
        "improvement": {"over": "mean", "metric": "mse", "value": gain} | ends,
        "test": {
            "mse": 2e-4 * (1 - (gain or 0)),
            "directional_accuracy": 0.5,
            "sharpe_after_cost": 1.0 * number,
            "sharpe_after_cost_interval": [number - 2.0, number + 2.0],
            "buy_and_hold": {"sharpe_after_cost": 0.5, "sharpe_after_cost_interval": [-1.5, 2.5]},
        },
        "naive": {"mean": {"mse": 2e-4, "directional_accuracy": 0.52}, "zero": {"mse": 2.2e-4}},
    } | changes


def failed(number: int) -> dict[str, Any]:
    kept = {key: value for key, value in row(number, 0.0).items() if key in ("fold", "splits", "blind", "seconds")}
    return kept | {"status": "failed", "reason": EVIL}


def record(rows: list[dict[str, Any]], **changes: Any) -> RunRecord:
    config = {
        "task": "returns",
        "model": {"kind": "mlp", "hidden": 64, "layers": 2},
        "train": {},
        "data": {"horizon": 1},
        "eval": {"cost_bps": 1.0},
        "io": {"save_dir": "runs"},
    }
    data = {"source": "bundled", "tickers": ["AAPL", "KO"]}
    fields = {"experiment": "walk_forward", "config": config, "data": data, "metrics": summary(rows), "folds": rows}
    return run_record(**({"name": "walk"} | fields | changes))


def gains(*values: float | None, **changes: Any) -> RunRecord:
    return record([row(number, value, **changes) for number, value in enumerate(values, start=1)])


@pytest.mark.parametrize(
    ("values", "won", "mean"),
    [
        (UP, "3 of 3", "+2.00% (95% interval −0.48% to +4.48%, unclear)"),  # noqa: RUF001
        ([0.02, 0.02, 0.03], "3 of 3", "+2.33% (95% interval +0.90% to +3.77%, better)"),
        ([-0.03, -0.02, -0.02], "0 of 3", "−2.33% (95% interval −3.77% to −0.90%, worse)"),  # noqa: RUF001
        ([-0.01, 0.02, 0.03], "2 of 3", "+1.33% (95% interval −3.84% to +6.50%, unclear)"),  # noqa: RUF001
        ([0.01], "1 of 1", "+1.00% (one fold has no interval)"),
        ([None, None], "0 of 2", "not known"),
    ],
    ids=["wide", "better", "worse", "unclear", "one", "none"],
)
def test_verdict_claims_no_more_than_the_interval_of_the_mean_allows(
    values: list[float | None], won: str, mean: str
) -> None:
    verdict = folds.verdict(gains(*values))
    assert verdict.startswith(f"Returns of AAPL, KO, mlp 64x2 re-trained for every fold: {won} fold")
    assert verdict.endswith(f"in test MSE; mean improvement {mean}.")


def test_verdict_tells_of_failed_folds_and_of_those_that_are_not_blind() -> None:
    verdict = folds.verdict(record([row(1, 0.01, blind=False), failed(2), row(3, 0.02, blind=True)]))
    assert "2 of 2 folds better" in verdict
    assert "1 fold failed" in verdict
    assert verdict.endswith("fold 1.")
    assert folds.verdict(gains(*UP, blind=False)).endswith("fold 1, 2 and 3.")


def test_folds_that_kept_the_naive_forecast_are_no_evidence() -> None:
    kept = gains(0.0, -1e-4, best_epoch=0)
    assert "0.00%, naive kept). 2 folds kept the naive" in folds.verdict(gains(0.0, 0.0, best_epoch=0, half=0.0))
    table = next(part for part in parts_of(kept) if isinstance(part, Table))
    place = [column.title for column in table.columns].index("Verdict")
    assert [line.cells[place] for line in table.rows[:2]] == ["naive kept"] * 2
    verdict = folds.verdict(record([row(1, 0.01), row(2, 1e-9, best_epoch=0)]))
    assert "1 of 2 folds better" in verdict
    assert "mean improvement +0.50%" in verdict
    assert "1 fold kept" in verdict


def test_table_has_a_line_per_fold_then_mean_and_spread() -> None:
    found = next(part for part in parts_of(gains(*UP)) if isinstance(part, Table))
    assert [one.cells[0] for one in found.rows] == ["1", "2", "3", "Mean", "Spread"]
    titles = [column.title for column in found.columns]
    cells = [dict(zip(titles, one.cells, strict=True)) for one in found.rows]
    assert cells[1] == {
        "Fold": "2",
        "Test from": "2012-01-02",
        "to": "2012-12-30",
        "Trained on": "2,000",
        "Best epoch": "2",
        "MSE (10⁻⁴)": "1.960",
        "Naive MSE (10⁻⁴)": "2.000",
        "Against naive": "+2.00%",
        "95% interval, %": "+1.50 to +2.50",
        "Verdict": "better",
        "Best naive": "training mean",
        "Right direction": "50.0%",
        "Net Sharpe": "2.00 (0.00 to 4.00)",
        "Net Sharpe, buy-and-hold": "0.50 (−1.50 to 2.50)",  # noqa: RUF001
    }
    assert (cells[3]["Against naive"], cells[4]["Against naive"]) == ("+2.00%", "1.00%")
    sharpes = [1.0, 2.0, 3.0]
    assert (cells[3]["Net Sharpe"], cells[4]["Net Sharpe"]) == (f"{fmean(sharpes):.2f}", f"{stdev(sharpes):.2f}")
    assert (cells[3]["Trained on"], cells[4]["Verdict"]) == ("-", "-")


def test_failed_fold_is_a_marked_line_and_a_remark() -> None:
    parts = parts_of(record([failed(1), row(2, 0.01), row(3, 0.02)]))
    found = next(part for part in parts if isinstance(part, Table))
    assert (found.rows[0].kind, found.rows[0].cells[1], found.rows[0].cells[4]) == ("bad", "2011-01-02", "-")
    assert parts[-1] == f"Fold 1 failed: {EVIL}"


def test_figure_shows_every_fold_and_the_mean() -> None:
    svg = parts_of(gains(0.01, -0.02, 0.0))[0].svg
    for text in ("1: 2011-01-02 to 2011-12-30", ">mean<", "+1.00%  better", "worse", "0.00%  unclear"):
        assert text in svg


def test_terminal_tells_every_fold_and_the_verdict() -> None:
    found = record([row(1, 0.01), failed(2), row(3, None)])
    said = terminal.text(found, Path("runs"))
    assert (
        "fold 1, test 2011-01-02 to 2011-12-30: MSE 0.000198, naive (training mean) 0.0002, "
        "+1.00% (+0.50% to +1.50%, better)" in said
    )
    assert f"fold 2, test 2012-01-02 to 2012-12-30: failed: {EVIL}" in said
    assert folds.verdict(found) in said


def test_direction_is_told_in_error_rates_and_shown_in_accuracies() -> None:
    rows = [
        row(
            number,
            gain,
            improvement={"over": "majority", "metric": "error_rate", "value": gain, "low": -0.1, "high": 0.1},
            test={"accuracy": 0.51, "confusion_matrix": [[1, 2], [3, 4]]},
            naive={"majority": {"accuracy": 0.53, "confusion_matrix": [[0, 3], [0, 7]]}},
        )
        for number, gain in ((1, -0.04), (2, -0.05))
    ]
    found = record(rows, config=record(rows).config | {"task": "direction"})
    assert "in test error rate" in folds.verdict(found)
    shown = next(part for part in parts_of(found) if isinstance(part, Table))
    assert [column.title for column in shown.columns][5:7] == ["Accuracy", "Naive Accuracy"]
    assert "by how many percent the model's test error rate is below" in shown.note
    assert "Accuracy 51.0%, naive (majority class) 53.0%" in terminal.text(found, Path("runs"))


def test_page_has_the_newest_run_as_a_section_and_none_among_the_models(tmp_path: Path) -> None:
    older, newer = gains(0.5, 0.6), record([row(1, 0.01), failed(2)], name="newer")
    stopped = record([], status="stopped", metrics={}, folds=None)
    report = page.write([older, newer, stopped], {}, {}, tmp_path)
    assert report.verdicts["folds"] == [folds.verdict(newer)]
    assert "models" not in report.verdicts
    assert report.numbers["models"] == []
    html, markdown = report.path.read_text(), (tmp_path / "report.md").read_text()
    assert "<h2>Walk forward</h2>" in html
    assert "## Walk forward" in markdown
    assert "Every fold of newer" in markdown
    told = "This is the newest walk-forward run, newer. 1 earlier walk-forward run is not shown in detail: walk."
    assert told in html
    assert told in markdown
    assert "<b>" not in html


def test_empty_section_says_the_command(tmp_path: Path) -> None:
    report = page.write([], {}, {}, tmp_path)
    for text in (report.path.read_text(), (tmp_path / "report.md").read_text(), page.summary(report)):
        assert "sp500 walk-forward" in text
