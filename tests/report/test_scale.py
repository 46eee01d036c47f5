"""What streaming bought, and what the cluster: sentences, tables and figures against rows that can be read off."""
# ruff: noqa: RUF001 - the report writes the sign for times

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sp500.report import page, scale, scale_figures, scale_verdicts, terminal
from sp500.runs.record import Machine, RunRecord, Seconds
from sp500.runs.scaling import Row

NOW = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)
MACHINE = Machine(cpus=2, memory_bytes=8 << 30, threads=1, system="test")
GIB = 2**30
OLD = ("multiplier", "arm", "status", "reason", "samples", "seconds", "samples_per_second", "peak_memory_bytes", "run")


def one(multiplier: int, arm: str, rate: float | None, workers: int = 0, **changes: Any) -> Row:
    """A row of 1,000 windows per multiplier, one epoch, after `fixed` seconds (2); no rate: it did not end well."""
    fixed, windows = changes.pop("fixed", 2.0), 1000 * multiplier
    row: Row = {
        "multiplier": multiplier,
        "arm": arm,
        "status": "ok" if rate else "out_of_memory",
        "reason": "" if rate else "no room",
        "num_workers": workers,
        "simulated_nodes": 0,
        "windows": windows if rate else None,
        "samples": windows if rate else 0,
        "seconds": fixed + (windows / rate if rate else 0.0),
        "setup_seconds": fixed,
        "writing_seconds": 0.0,
        "train_seconds": windows / rate if rate else 0.0,
        "samples_per_second": 0.5 * rate if rate else None,
        "warm_samples_per_second": rate,
        "epoch_seconds": windows / rate if rate else None,
        "memory_limit_bytes": 2 * GIB,
        "peak_memory_bytes": GIB if rate else None,
        "bytes_on_disk": None if arm == "in_memory" else 2**20 * multiplier,
        "run": f"{multiplier}-{arm}-{workers}",
    }
    return row | changes


def record(rows: list[Row], **changes: Any) -> RunRecord:
    fields: dict[str, Any] = {
        "name": "scale",
        "experiment": "scale",
        "arm": "all",
        "status": "ok",
        "config": {"data": {}, "io": {"save_dir": "runs"}},
        "fingerprint": "f",
        "seed": 0,
        "started": NOW,
        "finished": NOW,
        "seconds": Seconds(setup=2, train=7, total=10),
        "machine": MACHINE,
        "versions": {},
        "scale": rows,
    }
    return RunRecord(**(fields | changes))


def found(*rows: Row, **changes: Any) -> scale.Scale:
    return scale.newest([record(list(rows), **changes)])


def cells(table: Any, title: str) -> list[str]:
    place = [column.title for column in table.columns].index(title)
    return [row.cells[place] for row in table.rows]


def test_streaming_is_held_against_arrays_at_the_largest_size_both_trained() -> None:
    rows = [
        one(1, "in_memory", 100.0),
        one(1, "streaming", 50.0),
        one(10, "in_memory", 400.0),
        one(10, "streaming", 300.0, peak_memory_bytes=GIB // 2),
        one(50, "in_memory", None),
        one(50, "streaming", 999.0, peak_memory_bytes=GIB * 3 // 4),
        one(200, "in_memory", None),
        one(200, "streaming", 999.0, peak_memory_bytes=GIB // 2),
    ]
    assert scale_verdicts.streaming(rows) == [
        "Streaming at ×10, against arrays in memory: slower, 0.75× the windows/s (300 against 400); less memory, 0.50× "
        "the peak (512 MiB against 1 GiB).",
        "×50 and ×200 do not fit in 2 GiB as arrays; streaming trained on them within 768 MiB.",
    ]


def test_streaming_that_bought_nothing_is_told_so() -> None:
    rows = [one(1, "in_memory", 100.0), one(1, "streaming", 101.0, peak_memory_bytes=3 * GIB)]
    first, second = scale_verdicts.streaming(rows)
    assert "about as fast, 1.01× the windows/s" in first
    assert "more memory, 3.00× the peak (3 GiB against 1 GiB)" in first
    assert second == "Arrays fit at every size tried: memory did not call for streaming here."


def test_size_that_neither_arm_trained_is_not_counted_for_streaming() -> None:
    rows = [one(9, "in_memory", None), one(9, "streaming", None)]
    assert scale_verdicts.streaming(rows) == [
        "How fast streaming is cannot be told: at no size did it and arrays in memory both end well.",
        "×9 does not fit in 2 GiB as arrays, and streaming did not train on it either.",
    ]


def test_arms_that_did_not_run_leave_their_question_open() -> None:
    rows = [one(1, "ray", 100.0, 2)]
    assert scale_verdicts.streaming(rows) == [
        "What streaming buys cannot be told: that takes both arms, in memory and streaming."
    ]
    assert scale_verdicts.cluster(rows) == [
        "What the cluster buys cannot be told: that takes both arms, streaming and Ray."
    ]


def test_each_number_of_workers_is_held_against_streaming_at_its_largest_size() -> None:
    rows = [
        one(10, "streaming", 100.0, fixed=10.0, writing_seconds=8.0),
        one(20, "streaming", 100.0),
        one(20, "ray", 50.0, 1),
        one(10, "ray", 400.0, 2, fixed=12.0),
        one(20, "ray", None, 2, status="failed"),
    ]
    assert scale_verdicts.cluster(rows) == [
        "1 Ray worker at ×20, against streaming in one process: slower, 0.50× the windows/s (50 against 100); later, "
        "6.7 min against 3.4 min from start to end.",
        # 8 of the 110 seconds in one process wrote the shards that Ray then found.
        "2 Ray workers at ×10, against streaming in one process: faster, 4.00× the windows/s (400 against 100); "
        "sooner, 37 s against 102 s from start to end, writing shards left out.",
        "The cluster made no further size fit: streaming in one process trained on every size that Ray did.",
    ]


def test_cluster_bought_memory_only_where_one_process_ran_out_of_it() -> None:
    alone = [one(1, "streaming", 100.0), one(50, "streaming", None)]
    (_, told) = scale_verdicts.cluster([*alone, one(1, "ray", 100.0, 2), one(50, "ray", 90.0, 2, simulated_nodes=2)])
    assert told == (
        "2 Ray workers trained on ×50 within 1 GiB per simulated node, where streaming in one process ran out of "
        "memory."
    )
    broke = [one(1, "streaming", 100.0), one(50, "streaming", None, status="failed")]
    assert len(scale_verdicts.cluster([*broke, one(1, "ray", 100.0, 2), one(50, "ray", 90.0, 2)])) == 1


def test_workers_that_never_ended_well_cannot_be_judged() -> None:
    told = scale_verdicts.cluster([one(1, "streaming", 100.0), one(1, "ray", None, 2)])
    assert told == ["What 2 Ray workers bought cannot be told: at no size did this arm and streaming both end well."]


def test_speeds_of_a_warm_and_a_cold_run_are_not_mixed() -> None:
    cold = one(1, "ray", 100.0, 2, warm_samples_per_second=None)
    (told, _) = scale_verdicts.cluster([one(1, "streaming", 100.0), cold])
    assert "1.00× the windows/s (50 against 50)" in told


def test_break_even_is_told_in_windows_and_as_one_pass_over_a_size() -> None:
    # 2 + n/100 = 12 + n/200  =>  n = 2,000, which is one pass over x2, and was measured.
    rows = [one(3, "streaming", 100.0), one(3, "ray", 200.0, 2, fixed=12.0), one(3, "ray", 100.5, 1, fixed=12.0)]
    first, laws = scale_verdicts.break_even(found(*rows))
    assert first == (
        "One process is sooner than 1 worker below about 201,000 windows trained (one pass over ×200; extrapolated) "
        "and than 2 workers below about 2,000 windows trained (one pass over ×2)."
    )
    assert laws == (
        "Here seconds are taken as fixed + windows / rate: 2.0 s + windows / 100 in one process (streaming), "
        "12 s + windows / 100 on 1 worker and 12 s + windows / 200 on 2 workers."
    )


@pytest.mark.parametrize(
    ("rate", "fixed", "said"),
    [
        (90.0, 12.0, "On these machines 2 workers are never sooner than one process."),
        (100.0, 2.0, "On these machines 2 workers are never sooner than one process."),
        (200.0, 1.0, "On these machines 2 workers are sooner than one process from the first window on."),
        # 2 + n/100 = 1 + n/50  =>  n = 100
        (50.0, 1.0, "One process is sooner than 2 workers above about 100 windows trained."),
    ],
)
def test_break_even_that_is_none_says_which_side_is_sooner(rate: float, fixed: float, said: str) -> None:
    rows = [one(1, "streaming", 100.0), one(1, "ray", rate, 2, fixed=fixed)]
    assert scale_verdicts.break_even(found(*rows))[0] == said


def test_budget_names_whatever_exceeded_it() -> None:
    within = [one(1, "streaming", 1.0, peak_memory_bytes=GIB // 4), one(1, "ray", 1.0, 2, simulated_nodes=2)]
    over = one(9, "ray", 1.0, 2, simulated_nodes=2, peak_memory_bytes=3 * GIB)
    assert scale_verdicts.budget([*within, one(9, "in_memory", None)]) == [
        "Every run that ended well stayed within the budget of 2 GiB per node; the most was 1 GiB per simulated node "
        "(2 Ray workers at ×1)."
    ]
    assert scale_verdicts.budget([*within, over, one(9, "streaming", 1.0, peak_memory_bytes=None)]) == [
        "Over the budget of 2 GiB per node: 2 Ray workers at ×9 (3 GiB per simulated node); every other run whose "
        "peak was measured stayed within it."
    ]
    assert "no run that ended well stayed within it" in scale_verdicts.budget([over])[0]
    assert scale_verdicts.budget([one(1, "streaming", 1.0, memory_limit_bytes=None)]) == []


def test_one_machine_is_no_cluster_and_simulated_nodes_are_named() -> None:
    (plain,) = scale_verdicts.one_machine(found(one(1, "ray", 1.0, 1), one(1, "ray", 1.0, 2)))
    assert plain.startswith(
        "2 workers on the 2 cores of one machine are no cluster: this shows what distributing costs"
    )
    (simulated,) = scale_verdicts.one_machine(found(one(1, "ray", 1.0, 2, simulated_nodes=2)))
    assert simulated.startswith(
        "2 workers on 2 simulated nodes, processes on the 2 cores of one machine, are no cluster"
    )
    assert scale_verdicts.one_machine(found(one(1, "streaming", 1.0))) == []
    cluster = MACHINE.model_copy(update={"cluster": {"CPU": 32, "nodes": 4}})
    assert scale_verdicts.one_machine(found(one(1, "ray", 1.0, 2), machine=cluster)) == []


def test_arms_that_failed_are_told_with_sizes_and_reasons() -> None:
    rows = [one(50, "in_memory", None), one(9, "in_memory", None), one(9, "ray", None, 2, status="failed", reason="")]
    assert scale_verdicts.failed(rows) == [
        "In memory ended as out of memory at ×9 (no room) and ×50 (no room).",
        "2 Ray workers ended as failed at ×9.",
    ]


def test_table_says_workers_and_share_of_the_budget() -> None:
    rows = [one(50, "in_memory", None), one(50, "streaming", 1000.0), one(50, "ray", 250.0, 2, writing_seconds=1.5)]
    (table,) = scale.tables(found(*rows))
    assert table.caption == "Every arm at every size; budget 2 GiB per node"
    assert cells(table, "Data (windows)") == ["×50 (50,000)"] * 3
    assert cells(table, "Arm") == ["in memory", "streaming", "2 Ray workers"]
    assert cells(table, "Status") == ["out of memory", "ok", "ok"]
    assert cells(table, "Windows/s") == ["-", "1,000", "250"]
    assert cells(table, "One epoch") == ["-", "50 s", "3.3 min"]
    assert cells(table, "of that, shards") == ["-", "-", "1.5 s"]
    assert cells(table, "Peak memory (of budget)") == ["-", "1 GiB (50%)", "1 GiB (50%)"]
    assert cells(table, "On disk") == ["-", "50 MiB", "50 MiB"]
    assert [row.kind for row in table.rows] == ["bad", "", ""]


def test_scaling_table_holds_strong_then_weak_with_efficiency() -> None:
    rates = {(2, 1): 100.0, (2, 2): 150.0, (4, 2): 160.0}
    rows = [one(size, "ray", rate, workers, simulated_nodes=workers) for (size, workers), rate in rates.items()]
    _, table = scale.tables(found(*rows))
    assert cells(table, "Scaling") == ["strong", "strong", "weak", "weak"]
    assert cells(table, "Data") == ["×2", "×2", "×2 per worker", "×2 per worker"]
    assert cells(table, "Speed-up") == ["1.00×", "1.50×", "1.00×", "1.60×"]
    assert cells(table, "Efficiency") == ["100%", "75%", "100%", "80%"]
    assert "shared the 2 cores of one machine" in table.note


def test_figures_name_every_arm_the_budget_and_what_did_not_end_well() -> None:
    sizes = [one(size, "streaming", 100.0) for size in (1, 10)]
    arms = [one(1, "in_memory", 90.0), one(10, "in_memory", None), one(10, "ray", None, 2, status="failed")]
    (drawn,) = scale_figures.figures(found(*sizes, *arms, one(1, "ray", 50.0, 2)))
    texts = set(re.findall(r">([^<>]+)</text>", drawn.svg))
    assert {"in memory", "streaming", "2 Ray workers", "windows per second", "peak memory"} <= texts
    assert {"in memory: out of memory", "2 Ray workers: failed", "budget of a node, 2 GiB"} <= texts
    assert {"×1", "×10", "1k windows", "10k windows"} <= texts
    assert "A cross: the arm did not end well" in drawn.caption


def test_one_size_is_drawn_as_bars() -> None:
    (drawn,) = scale_figures.figures(found(one(5, "in_memory", None), one(5, "streaming", 1234.0)))
    texts = re.findall(r">([^<>]+)</text>", drawn.svg)
    assert texts.count("out of memory") == 2
    assert {"windows per second, ×5", "1,234", "1 GiB"} <= set(texts)
    assert "the budget of a node, 2 GiB" in drawn.caption


@pytest.mark.parametrize(
    ("pairs", "titles"),
    [
        ([(2, 1), (2, 2)], {"strong"}),
        ([(2, 1), (4, 2)], {"weak"}),
        ([(2, 1), (2, 2), (4, 2)], {"strong", "weak"}),
    ],
)
def test_scaling_is_drawn_where_there_is_some(pairs: list[tuple[int, int]], titles: set[str]) -> None:
    drawn = scale_figures.figures(found(*[one(size, "ray", 100.0, workers) for size, workers in pairs]))
    assert len(drawn) == 2
    assert set(re.findall(r">(strong|weak): ", drawn[1].svg)) == titles


def test_sizes_too_close_for_their_labels_drop_the_smaller() -> None:
    (drawn,) = scale_figures.figures(found(*[one(size, "streaming", 100.0) for size in (1, 95, 100)]))
    texts = re.findall(r">(×\d+)</text>", drawn.svg)
    assert set(texts) == {"×1", "×100"}


def test_nothing_ended_well_still_makes_a_figure_and_a_table() -> None:
    nothing = found(one(1, "streaming", None), one(9, "streaming", None))
    assert len(scale_figures.figures(nothing)) == 1
    assert cells(scale.tables(nothing)[0], "Status") == ["out of memory"] * 2


def test_record_older_than_its_keys_still_renders(tmp_path: Path) -> None:
    rows = [one(1, "in_memory", 100.0), one(1, "streaming", 80.0), one(2, "streaming", 80.0), one(1, "ray", 20.0)]
    older = record([{key: row[key] for key in OLD} for row in rows])
    report = page.write([older], {}, {}, tmp_path / "report")
    assert "0.80× the windows/s (40 against 50)" in report.verdicts["scale"][0]
    assert report.numbers["break_even"] == []
    assert "1x Ray" in terminal.text(older)


def test_report_json_holds_the_rows_and_what_was_computed_of_them(tmp_path: Path) -> None:
    rows = [one(2, "streaming", 100.0)]
    rows += [one(size, "ray", 200.0, workers, fixed=12.0) for size, workers in ((2, 1), (2, 2), (4, 2))]
    page.write([record(rows)], {}, {}, tmp_path)
    numbers = json.loads((tmp_path / "report.json").read_text())
    assert numbers["scale"] == rows
    assert [(law["workers"], law["windows"]) for law in numbers["break_even"]] == [
        (1, pytest.approx(2000)),
        (2, pytest.approx(2000)),
    ]
    assert [row["efficiency"] for row in numbers["strong_scaling"]] == [1.0, 0.5]
    assert [row["multiplier_per_worker"] for row in numbers["weak_scaling"]] == [2.0, 2.0]


def test_newest_experiment_counts_and_simulated_nodes_are_one_machine() -> None:
    ray = one(1, "ray", 1.0, 2, run="arm")
    simulated = MACHINE.model_copy(update={"cluster": {"CPU": 4, "nodes": 2}, "simulated_nodes": 2})
    arm = record([], name="arm", scale=None, machine=simulated)
    newest = scale.newest([record([one(9, "ray", 1.0, 2)], name="older"), arm, record([ray])])
    assert (newest.rows, newest.cores, newest.nodes) == ([ray], 2, 1)
    real = arm.model_copy(update={"machine": simulated.model_copy(update={"simulated_nodes": 0})})
    assert scale.newest([real, record([ray])]).nodes == 2
    assert scale.newest([]).rows == []


def test_terminal_names_workers_warm_rates_and_the_break_even() -> None:
    rows = [one(3, "streaming", 100.0), one(3, "ray", 200.0, 2, fixed=12.0), one(3, "in_memory", None)]
    lines = terminal.text(record(rows)).splitlines()
    assert lines[2] == "   3x 2 Ray workers ok  3000 windows in 15 s of 27 s, 200 windows/s, peak 1 GiB per process"
    assert lines[3] == "   3x in memory     out_of_memory no room"
    assert lines[4].startswith("One process is sooner than 2 workers below about 2,000 windows trained")
