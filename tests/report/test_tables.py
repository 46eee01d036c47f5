"""What tables and verdicts say of models, against small records whose answers can be read off."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt
from result_rows import NOW, run_record, search_summary

from sp500 import formatting
from sp500.report import tables, terminal
from sp500.report.models import results, scores, verdicts
from sp500.runs.record import RunRecord

DATA = {
    "source": "bundled",
    "sha256": "ab" * 32,
    "tickers": ["^GSPC"],
    "splits": {"test": ["2018-01-26", "2022-12-28"]},
    "windows": {"train": 5734, "test": 1239},
    "notes": ["rounded"],
}
NAIVE = {
    "zero": {"mse": 2.2e-4, "information_coefficient": None, "samples": 1239},
    "mean": {"mse": 2.0e-4, "information_coefficient": None, "samples": 1239},
}


def record(name: str, minute: int = 0, **changes: Any) -> RunRecord:
    """A run that ended well, `minute` minutes after the first."""
    ended = NOW + timedelta(minutes=minute, seconds=30)
    fields = {"started": ended - timedelta(seconds=10), "finished": ended, "data": DATA}
    return run_record(name, **(fields | {"versions": {"git": "0123456789ab"}} | changes))


def scored(mse: float, low: float | None, high: float | None) -> dict[str, Any]:
    gain = {"over": "mean", "metric": "mse", "value": 1 - mse / 2.0e-4, "low": low, "high": high}
    test = {"mse": mse, "information_coefficient": 0.02, "samples": 1239, "improvement": gain}
    return {"test": test, "naive": NAIVE}


def side(name: str, minute: int, arm: str, **more: Any) -> RunRecord:
    search = search_summary(cores=1 if arm == "sequential" else 2)
    fields = {"experiment": "tune", "arm": arm, "fingerprint": "c07", "metrics": scored(1.9e-4, -0.01, 0.02)}
    return record(name, minute, search=search | more, **fields)


def test_number_that_only_a_task_of_the_users_knows_is_a_column_under_its_own_name_last() -> None:
    own = {"top5": 0.9251, "beyond": 12345, "skew": -1.5, "name": "x", "flag": True, "accuracy": 0.5, "loss": 2.0}
    naive = {"zero": {"accuracy": 0.4, "top5": None}}
    run = record("a", metrics={"test": own | {"samples": 10}, "naive": naive})
    (group,) = results.group_runs([run])
    shown = scores.comparison(group)
    titles = [column.title for column in shown.columns]
    assert titles == ["Model", "Accuracy", "top5", "beyond", "skew", "loss", "Run"]
    assert shown.rows[0].cells[1:-1] == ("50.0%", "0.9251", "12,345", f"{formatting.MINUS}1.5", "2")
    run.config["train"]["early_stop_patience"] = 0
    assert "top5 0.9251, beyond 12,345" in terminal.text(run, Path("runs"))


@pytest.mark.parametrize(
    "test",
    [
        {"mse": 1.0, "daily_ic": 0.1, "daily_ic_t": 2.0, "sharpe": 1.0, "sharpe_after_cost": 0.9, "samples": 10},
        {"accuracy": 0.5, "brier": 0.2, "log_loss": 0.6},
        {"bits_per_byte": 2.0, "loss": 1.4, "bytes": 99, "perplexity": 4.0},
    ],
)
def test_built_in_tasks_have_no_further_columns(test: dict[str, Any]) -> None:
    assert scores.own_names([test]) == []


def test_runs_on_the_same_test_windows_stand_together_above_one_set_of_naive_rows() -> None:
    elsewhere = DATA | {"sha256": "cd" * 32}
    records = [
        record("worse", 0, metrics=scored(2.1e-4, -0.1, -0.01)),
        record("better", 1, metrics=scored(1.8e-4, 0.01, 0.2)),
        record("other-prices", 2, data=elsewhere, metrics=scored(1.8e-4, 0.01, 0.2)),
    ]
    first, second = results.group_runs(records)
    assert [row["run"] for row in first.models] == ["better", "worse"]
    assert [row["name"] for row in first.naive] == ["mean", "zero"]
    assert [row["run"] for row in second.models] == ["other-prices"]
    rows = results.make_rows([first, second], [])
    assert [row["kind"] for row in rows] == ["model", "model", "naive", "naive", "model", "naive", "naive"]
    assert rows[0]["improvement"] == {
        "over": "mean",
        "metric": "mse",
        "value": pytest.approx(0.1),
        "low": 0.01,
        "high": 0.2,
    }
    assert rows[0]["test"]["mse"] == 1.8e-4


@pytest.mark.parametrize(
    ("task", "settings", "cards", "subjects"),
    [
        ("returns", [{"start": "2015-01-01", "end": None}, {"start": None, "end": None}], [{}, {}],
         ["Returns of ^GSPC (data.start 2015-01-01)", "Returns of ^GSPC (data.start -)"]),
        ("returns", [{"window": 30}, {"window": 30}], [{}, {}], ["Returns of ^GSPC (m0)", "Returns of ^GSPC (m1)"]),
        ("own.py:Volatility", [{"tickers": ["AAPL", "KO"]}, {"tickers": []}], [{}, {}],
         ["Volatility of bundled (data.tickers AAPL+KO)", "Volatility of bundled (data.tickers -)"]),
        ("own.py:Volatility", [{}, {}], [{"source": "the index"}, {"source": "20 stocks"}],
         ["Volatility of the index", "Volatility of 20 stocks"]),
    ],
)  # fmt: skip
def test_groups_of_one_subject_are_told_apart(
    task: str, settings: list[dict[str, Any]], cards: list[dict[str, Any]], subjects: list[str]
) -> None:
    records = [
        record(
            f"m{number}",
            number,
            config={"task": task, "model": {"kind": "linear"}, "train": {}, "data": data},
            data=DATA | {"sha256": f"{number}" * 64} | card,
            metrics=scored(1.9e-4, -0.1, 0.1),
        )
        for number, (data, card) in enumerate(zip(settings, cards, strict=True))
    ]
    assert [group.subject for group in results.group_runs(records)] == subjects


def test_newer_run_of_the_same_settings_replaces_the_older_and_says_so() -> None:
    again = {"fingerprint": "same", "metrics": scored(1.9e-4, -0.1, 0.1)}
    records = [
        record("old", 0, **again),
        record("new", 1, **again),
        record("on-ray", 2, arm="ray", num_workers=2, **again),
    ]
    (group,) = results.group_runs(records)
    assert {row["run"]: row["replaces"] for row in group.models} == {"new": ["old"], "on-ray": []}


def test_search_in_all_modes_is_one_model() -> None:
    told = {"runs": {"sequential": "s", "packed": "p", "ray": "r"}, "same_best": True}
    arms = [side("s", 0, "sequential"), side("p", 1, "packed"), side("r", 2, "ray")]
    records = [*arms, side("all", 3, "all", **told)]
    (group,) = results.group_runs(records)
    assert [(row["run"], row["name"]) for row in group.models] == [("p", "mlp 128x2, searched")]


def test_models_with_one_name_are_told_apart_by_what_differs() -> None:
    metrics = scored(1.9e-4, -0.1, 0.1)
    base = {"task": "returns", "data": {}, "model": {"kind": "linear"}}
    records = [
        record("one", 0, config=base | {"train": {"lr": 0.1, "epochs": 3}}, metrics=metrics),
        record("two", 1, config=base | {"train": {"lr": 0.2, "epochs": 3}}, metrics=metrics),
    ]
    (group,) = results.group_runs(records)
    assert {row["name"] for row in group.models} == {"linear (lr 0.1)", "linear (lr 0.2)"}


@pytest.mark.parametrize(
    ("intervals", "said"),
    [
        ([(-0.1, 0.1), (-0.2, -0.1)], "0 of 2 models better than the best naive forecast (training mean) on test MSE"),
        ([(-0.1, 0.1), (-0.2, -0.1)], "1 worse, 1 unclear."),
        ([(0.01, 0.1), (-0.2, 0.1)], "1 of 2 models better"),
        ([(None, None)], "1 without an interval"),
    ],
)
def test_model_verdict_counts_intervals_that_exclude_zero(intervals: list[tuple[Any, Any]], said: str) -> None:
    records = [record(f"m{n}", n, metrics=scored(1.9e-4, *ends)) for n, ends in enumerate(intervals)]
    (group,) = results.group_runs(records)
    assert said in verdicts.models(group)


def test_failed_run_is_kept_with_its_reason_and_without_metrics() -> None:
    (row,) = results.list_without_metrics([record("bad", status="failed", reason="diverged"), record("good", 1)])
    assert (row["run"], row["status"], row["reason"], row["test"]) == ("bad", "failed", "diverged", {})


def test_metric_that_is_not_defined_reads_as_a_dash() -> None:
    (group,) = results.group_runs([record("m", metrics=scored(1.9e-4, -0.1, 0.1))])
    table = scores.comparison(group)
    column = [column.title for column in table.columns].index("IC")
    assert [row.cells[column] for row in table.rows] == ["0.020", "-", "-"]
    assert [row.kind for row in table.rows] == ["", "naive", "naive"]


def test_small_errors_carry_their_unit_in_the_title() -> None:
    (group,) = results.group_runs([record("m", metrics=scored(1.9e-4, -0.1, 0.1))])
    table = scores.comparison(group)
    column = [column.title for column in table.columns].index("MSE (10\u207b\u2074)")
    assert [row.cells[column] for row in table.rows] == ["1.900", "2.000", "2.200"]


def test_classification_has_its_own_columns() -> None:
    test = {"accuracy": 0.5, "f1": 0.4, "roc_auc": None, "confusion_matrix": [[1, 2], [3, 4]], "samples": 10}
    metrics = {"test": test, "naive": {"majority": test | {"accuracy": 0.6}}}
    config = {"task": "direction", "model": {"kind": "linear"}, "data": {}, "train": {}}
    (group,) = results.group_runs([record("d", config=config, metrics=metrics)])
    table = scores.comparison(group)
    assert [column.title for column in table.columns] == ["Model", "Accuracy", "F1", "TN/FP/FN/TP", "Run"]
    assert table.rows[0].cells == ("linear", "50.0%", "0.400", "1/2/3/4", "d (one process)")


def test_table_of_many_models_shows_the_best_and_says_how_many_there_are() -> None:
    many = scores.MODELS + 5
    records = [record(f"r{number}", metrics=scored((1 + number) * 1e-6, 0.01, 0.2)) for number in range(many)]
    (group,) = results.group_runs(records)
    table = scores.comparison(group)
    runs = [row.cells[-1].split()[0] for row in table.rows if row.kind != "naive"]
    assert runs == [f"r{number}" for number in range(scores.MODELS)]
    assert f"The {scores.MODELS} best of {many} models" in table.note


def test_table_of_many_runs_shows_the_newest_and_says_how_many_there_are() -> None:
    many = tables.RUNS + 5
    table = tables.runs([record(f"r{number}") for number in range(many)])
    assert [row.cells[0] for row in table.rows] == [f"r{many - 1 - number}" for number in range(tables.RUNS)]
    assert table.caption == f"The newest {tables.RUNS} of {many} runs"


def test_markdown_cell_cannot_break_its_table() -> None:
    (line,) = tables.runs([record("r", status="failed", reason="a | b\n<script>")]).markdown().splitlines()[4:5]
    assert "failed: a \\| b &lt;script>" in line


def test_text_of_a_run_makes_no_link_or_image_in_markdown() -> None:
    text = "[pay](https://a.example) ![x](https://b.example/pixel.png) \\[c](https://c.example) **d** `e`"
    (block,) = [token for token in MarkdownIt().parse(tables.escape(text)) if token.type == "inline"]
    assert {token.type for token in block.children or ()} <= {"text", "text_special"}
    assert "".join(token.content for token in block.children or ()) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (formatting.fixed(None), "-"),
        (formatting.fixed(-0.001), "0.00"),
        (formatting.fixed(-1234.5, 1), "\u22121,234.5"),
        (formatting.percent(0.0134, 2, sign=True), "+1.34%"),
        (formatting.seconds(9.96), "10.0 s"),
        (formatting.seconds(150), "2.5 min"),
        (formatting.size(412 * 2**20), "412 MiB"),
        (formatting.size(2 * 2**30), "2 GiB"),
        (formatting.size(1234.5 * 2**30), "1,230 GiB"),
        (formatting.approx(112_669), "113,000"),
        (formatting.join(["a"]), "a"),
        (formatting.join(["a", "b", "c"]), "a, b and c"),
        (formatting.gap(3.2e-9), "4e-9"),
        (formatting.gap(3e-9), "3e-9"),
        (formatting.gap(0.0), "0"),
        (formatting.gap(None), "-"),
        (formatting.config({"train.lr": 0.00190351, "data.tickers": ["AAPL", "KO"]}), "lr 0.001904, tickers AAPL+KO"),
    ],
)
def test_numbers_read_as_a_person_writes_them(text: str, expected: str) -> None:
    assert text == expected


def test_long_setting_loses_its_middle() -> None:
    long = ["T" * 4 + str(number) for number in range(500)]
    text = formatting.config({"data.tickers": long, "train.lr": 0.00123456})
    assert (text[:19], text[-24:], "…" in text) == ("tickers TTTT0+TTTT1", "+TTTT498+TTTT499, lr 0.001235"[-24:], True)
    assert len(text) < 90
