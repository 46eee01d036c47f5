"""What streaming bought, and what the cluster: sentences, tables and figures against rows that can be read off."""
# ruff: noqa: RUF001 - the report writes the sign for times

import json
import re
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from result_rows import cells, run_record
from scale_rows import GIB, one

from sp500.report import page, terminal
from sp500.report.scale import figures, verdicts
from sp500.report.scale.results import Row, Scale, collect, compare_errors, tables
from sp500.runs.record import RunRecord

CLUSTER = {"place": "cluster", "hardware": "nodes with 1 CPUs, 4.0 GiB", "cores": 16}


def record(rows: list[Row], **changes: Any) -> RunRecord:
    config = {"data": {}, "io": {"save_dir": "runs"}}
    return run_record(
        **{"name": "scale", "experiment": "scale", "arm": "all", "config": config, "scale": rows} | changes
    )


def found(*rows: Row, **changes: Any) -> Scale:
    return collect([record(list(rows), **changes)])


def merged(*rows: Row) -> list[Row]:
    return found(*rows).rows


def test_arms_are_compared_at_the_largest_size_that_both_trained() -> None:
    rows = merged(
        one(1, "in_memory", 100.0),
        one(1, "streaming", 50.0),
        one(10, "in_memory", 400.0, fixed=5.0),
        one(10, "streaming", 250.0, peak_memory_bytes=GIB // 2),
        one(50, "in_memory", None),
        one(50, "streaming", 999.0, peak_memory_bytes=GIB * 3 // 4),
    )
    assert verdicts.streaming(rows) == [
        "At ×10, streaming (42 s, 250 windows/s, peak 512 MiB) against in memory (30 s, 400 windows/s, peak 1 GiB): "
        "slower, 0.71× the speed."
    ]


def test_budget_that_is_watched_and_not_enforced_is_said_with_the_table() -> None:
    notes = [tables(found(one(1, "streaming", 100.0, **watched)))[0].note for watched in ({}, {"memory_watched": True})]
    assert ["watched, not enforced" in note for note in notes] == [False, True]


def test_arms_without_a_common_size_are_not_compared() -> None:
    (line,) = verdicts.streaming(merged(one(9, "in_memory", None), one(9, "streaming", None)))
    assert line.startswith("Not compared")
    assert line.endswith("streaming and in memory.")
    (line,) = verdicts.cluster(merged(one(1, "streaming", 100.0), one(1, "ray", None, 2)))
    assert line.startswith("Not compared")
    assert line.endswith("2 Ray workers and streaming.")
    for rows in (merged(one(1, "ray", 100.0, 2)), merged(one(1, "streaming", 100.0))):
        assert verdicts.streaming(rows) == []
        assert "not known" in verdicts.cluster(rows)[0]


@pytest.mark.parametrize(
    ("rates", "verdict"),
    [
        ([108.0] * 3, "about as fast"),  # one run each: 10% of margin for either
        ([125.0] * 3, "faster"),
        ([80.0, 125.0, 170.0], "about as fast"),  # its own epochs are 36% apart from their middle
        ([79.0] * 3, "slower"),
    ],
)
def test_difference_within_the_margin_of_repeated_epochs_is_not_claimed(rates: list[float], verdict: str) -> None:
    rows = [one(1, "in_memory", 100.0, fixed=0.0), one(1, "streaming", sorted(rates)[1], fixed=0.0, epoch_rates=rates)]
    assert f": {verdict}, " in verdicts.streaming(merged(*rows))[0]


def test_repeated_experiment_widens_the_margin() -> None:
    laptop = [one(1, "in_memory", 100.0, fixed=0.0), one(1, "streaming", 125.0, fixed=0.0)]
    again = [one(1, "in_memory", 100.0), one(1, "streaming", 90.0)]
    once = collect([record(again), record(laptop)])
    assert "about as fast, 1.25×" in verdicts.streaming(once.rows)[0]
    assert "faster, 1.25×" in verdicts.streaming(merged(*laptop))[0]


def test_each_number_of_workers_is_compared_without_writing_shards() -> None:
    rows = merged(
        one(10, "streaming", 100.0, fixed=10.0, writing_seconds=8.0),
        one(20, "streaming", 100.0),
        one(20, "ray", 50.0, 1),
        one(10, "ray", 400.0, 2, fixed=12.0),
        one(20, "ray", None, 2, status="failed"),
    )
    one_worker, two_workers = verdicts.cluster(rows)
    assert one_worker.startswith("At ×20, 1 Ray worker (6.7 min, 50 windows/s")
    assert one_worker.endswith("slower, 0.50× the speed.")
    # 8 of the 110 seconds in one process wrote the shards that Ray then found.
    assert two_workers.startswith("At ×10, 2 Ray workers (37 s")
    assert "streaming (102 s" in two_workers
    assert two_workers.endswith("faster, 2.76× the speed.")


def laptop_and_cluster() -> tuple[RunRecord, RunRecord]:
    """A laptop's experiment without Ray, and one of the same settings on a cluster with Ray alone."""
    laptop = [one(size, "streaming", 100.0, run=f"laptop-{size}") for size in (1, 10)]
    ray = [one(size, "ray", 300.0, 2, fixed=12.0, run=f"cluster-{size}", **CLUSTER) for size in (1, 10)]
    return record(laptop, name="laptop"), record(ray, name="cluster")


@pytest.mark.parametrize("cluster_is_newer", [True, False])
def test_laptop_and_cluster_runs_of_the_same_settings_are_paired(*, cluster_is_newer: bool) -> None:
    laptop, cluster = laptop_and_cluster()
    both = collect([laptop, cluster] if cluster_is_newer else [cluster, laptop])
    assert [(row["multiplier"], row["label"]) for row in both.rows] == [
        (1, "streaming, one machine"),
        (1, "2 Ray workers, cluster"),
        (10, "streaming, one machine"),
        (10, "2 Ray workers, cluster"),
    ]
    assert verdicts.cluster(both.rows)[0].endswith("faster, 2.25× the speed.")
    # 2 + n/100 = 12 + n/300  =>  n = 1,500
    assert both.break_even[0]["windows"] == pytest.approx(1500)
    assert verdicts.one_machine(both) == []
    texts = "".join(figure.svg for figure in figures.figures(both))
    assert "2 Ray workers, cluster" in texts


def test_runs_of_other_settings_or_another_machine_are_not_paired() -> None:
    laptop, cluster = laptop_and_cluster()
    other = record([row | {"settings": "other"} for row in laptop.scale or []], name="other")
    assert {row["place"] for row in collect([other, cluster]).rows} == {"cluster"}
    faster = record([row | {"hardware": "64 cores, 256 GiB"} for row in laptop.scale or []], name="faster")
    rows = collect([laptop, faster, cluster]).rows
    assert {row["hardware"] for row in rows if row["place"] == "machine"} == {"64 cores, 256 GiB"}


def test_failed_run_without_known_hardware_hides_no_older_row() -> None:
    laptop, cluster = laptop_and_cluster()
    lost = one(50, "ray", None, 2, status="failed", **CLUSTER | {"hardware": "a pod"})
    rows = collect([laptop, cluster, record([lost])]).rows
    assert [(row["multiplier"], row["status"]) for row in rows if row["place"] == "cluster"] == [
        (1, "ok"),
        (10, "ok"),
        (50, "failed"),
    ]


def test_break_even_is_reported_in_windows_with_the_lines_that_cross() -> None:
    # 2 + n/100 = 12 + n/200  =>  n = 2,000
    rows = [one(3, "streaming", 100.0), one(3, "ray", 200.0, 2, fixed=12.0), one(3, "ray", 100.5, 1, fixed=12.0)]
    first, second = verdicts.break_even(found(*rows))
    assert first == "1 Ray worker: sooner than one process from about 201,000 windows trained."
    assert "from about 2,000 windows" in second
    table = tables(found(*rows))[1]
    assert cells(table, "Workers") == ["one process", "1 on Ray", "2 on Ray"]
    assert cells(table, "Fixed") == ["2.0 s", "12 s", "12 s"]
    assert cells(table, "Sooner from") == ["-", "201,000", "2,000"]
    uneven = [*rows, one(1, "streaming", 100.0, fixed=10.0)]
    assert cells(tables(found(*uneven))[1], "Misses by")[0] == "20%"  # 6 + 10 s for the 20 it took


@pytest.mark.parametrize(
    ("rate", "fixed", "phrase"),
    [
        (90.0, 12.0, "not sooner"),
        (100.0, 2.0, "not sooner"),
        (200.0, 1.0, "at every size"),
        (50.0, 1.0, "not sooner"),
    ],
)
def test_missing_break_even_says_which_side_is_sooner(rate: float, fixed: float, phrase: str) -> None:
    rows = [one(1, "streaming", 100.0), one(1, "ray", rate, 2, fixed=fixed)]
    assert phrase in verdicts.break_even(found(*rows))[0]


def test_test_error_of_trained_arms_is_compared_within_one_size() -> None:
    same = [one(1, "streaming", 1.0, test_error=9e-4), one(10, "streaming", 1.0), one(10, "ray", 1.0, 2)]
    assert compare_errors(merged(*same)) == {10: 0.0}
    apart = merged(*same, one(10, "in_memory", 1.0, test_error=2.1e-4))
    assert compare_errors(apart)[10] == pytest.approx(1 / 21)
    assert verdicts.errors(apart) == ["The test MSE of the arms differs by up to 4.76% (at ×10)."]
    kept = [one(10, "streaming", 1.0, best_epoch=0), one(10, "ray", 1.0, 2, best_epoch=0)]
    for rows in ([one(1, "streaming", 1.0)], kept):
        assert verdicts.errors(merged(*rows)) == []


def test_runs_on_a_busy_machine_are_named_and_left_out_of_the_break_even() -> None:
    quiet = [one(1, "streaming", 100.0, others_share=0.05), one(1, "ray", 200.0, 2, fixed=12.0, others_share=None)]
    assert verdicts.busy_rows(merged(*quiet)) == []
    assert verdicts.break_even(found(*quiet))
    rows = [quiet[0], one(1, "ray", 200.0, 2, fixed=12.0, others_share=0.4)]
    assert "2 Ray workers at ×1 (40%)" in verdicts.sentences(found(*rows))[0]
    assert verdicts.break_even(found(*rows)) == []


def test_runs_over_the_budget_are_named() -> None:
    within = [one(1, "streaming", 1.0, peak_memory_bytes=GIB // 4), one(1, "ray", 1.0, 2, simulated_nodes=2)]
    over = one(9, "ray", 1.0, 2, simulated_nodes=2, peak_memory_bytes=3 * GIB)
    assert verdicts.over_budget(merged(*within, one(9, "in_memory", None))) == []
    assert "2 Ray workers at ×9 (3 GiB)" in verdicts.over_budget(merged(*within, over))[0]


def test_one_machine_is_not_presented_as_a_cluster() -> None:
    (plain,) = verdicts.one_machine(found(one(1, "ray", 1.0, 1), one(1, "ray", 1.0, 2)))
    assert plain.startswith("2 workers shared the 2 cores of one machine")
    (simulated,) = verdicts.one_machine(found(one(1, "ray", 1.0, 2, simulated_nodes=2)))
    assert simulated.startswith("2 workers on 2 simulated nodes shared the 2 cores of one machine")
    assert verdicts.one_machine(found(one(1, "streaming", 1.0))) == []
    assert verdicts.one_machine(found(one(1, "ray", 1.0, 2, **CLUSTER))) == []


def test_failed_arms_are_listed_with_sizes_and_reasons() -> None:
    rows = [one(50, "in_memory", None), one(9, "in_memory", None), one(9, "ray", None, 2, status="failed", reason="")]
    (line,) = verdicts.failures(merged(*rows))
    for part in ("in memory at ×9 (out of memory: no room)", "2 Ray workers at ×9 (failed)", "in memory at ×50 (out"):
        assert part in line


def test_table_says_workers_and_share_of_the_budget() -> None:
    rows = [one(50, "in_memory", None), one(50, "streaming", 1000.0), one(50, "ray", 250.0, 2, writing_seconds=1.5)]
    table, *_ = tables(found(*rows))
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
    *_, table = tables(found(*rows))
    assert cells(table, "Scaling") == ["strong", "strong", "weak", "weak"]
    assert cells(table, "Data") == ["×2", "×2", "×2 per worker", "×2 per worker"]
    assert cells(table, "Speed-up") == ["1.00×", "1.50×", "1.00×", "1.60×"]
    assert cells(table, "Efficiency") == ["100%", "75%", "100%", "80%"]
    assert "all workers shared its 2 cores" in table.note


def test_figures_name_every_arm_the_budget_and_what_did_not_end_well() -> None:
    sizes = [one(size, "streaming", 100.0) for size in (1, 10)]
    arms = [one(1, "in_memory", 90.0), one(10, "in_memory", None), one(10, "ray", None, 2, status="failed")]
    (drawn,) = figures.figures(found(*sizes, *arms, one(1, "ray", 50.0, 2)))
    texts = set(re.findall(r">([^<>]+)</text>", drawn.svg))
    assert {"in memory", "streaming", "2 Ray workers", "windows per second", "peak memory, GiB"} <= texts
    assert {"budget of a node, 2 GiB", "×1", "×10", "1k", "10k"} <= texts
    assert "A hollow cross" in drawn.caption


def drawn_crosses(axes: Axes) -> dict[tuple[float, float], str]:
    """Colour of the face of each cross of a chart, by its place."""
    lines = (line for line in axes.get_lines() if line.get_marker() == "X")
    return {place: line.get_markerfacecolor() for line in lines for place in zip(*line.get_data(), strict=True)}


def test_cross_of_a_run_out_of_memory_is_hollow_at_what_it_would_have_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    charts, render = [], figures.render
    monkeypatch.setattr(figures, "render", lambda chart, *rest: charts.append(chart) or render(chart, *rest))
    lacks = {10: "10 windows as arrays need 2.5 GiB, besides 512 MiB of the process", 50: "killed"}
    out = [one(size, "in_memory", None, reason=reason) for size, reason in lacks.items()]
    figures.sizes(found(*[one(size, "streaming", 100.0) for size in (1, 10, 50)], *out))
    speed, memory = charts[0].get_axes()
    assert speed.get_ylim()[0] == memory.get_ylim()[0] == 0  # nothing is below zero
    assert drawn_crosses(speed) == {(10, 0.0): "none", (50, 0.0): "none"}
    assert drawn_crosses(memory) == {(10, 3.0): "none"}  # what the other needed is not known


def test_one_size_is_drawn_as_bars() -> None:
    lacks = one(
        5, "in_memory", None, reason="5 windows need 2684354560 bytes (2.5 GiB) besides the 536870912 bytes of ours"
    )
    speed, memory = (figure.svg for figure in figures.figures(found(lacks, one(5, "streaming", 1234.0))))
    assert {"out of memory", "1,234 windows/s"} <= set(re.findall(r">([^<>]+)</text>", speed))
    assert {"3 GiB, refused", "1 GiB", "budget 2 GiB"} <= set(re.findall(r">([^<>]+)</text>", memory))


@pytest.mark.parametrize(
    ("pairs", "titles"),
    [
        ([(2, 1), (2, 2)], {"strong"}),
        ([(2, 1), (4, 2)], {"weak"}),
        ([(2, 1), (2, 2), (4, 2)], {"strong", "weak"}),
    ],
)
def test_scaling_is_drawn_where_there_is_some(pairs: list[tuple[int, int]], titles: set[str]) -> None:
    drawn = figures.figures(found(*[one(size, "ray", 100.0, workers) for size, workers in pairs]))
    assert len(drawn) == (3 if len({size for size, _ in pairs}) == 1 else 2)
    assert set(re.findall(r">(strong|weak): ", drawn[-1].svg)) == titles


def test_sizes_too_close_for_their_labels_drop_the_smaller() -> None:
    (drawn,) = figures.figures(found(*[one(size, "streaming", 100.0) for size in (1, 95, 100)]))
    texts = re.findall(r">(×\d+)</text>", drawn.svg)
    assert set(texts) == {"×1", "×100"}


def test_nothing_ended_well_still_makes_a_figure_and_a_table() -> None:
    nothing = found(one(1, "streaming", None), one(9, "streaming", None))
    assert len(figures.figures(nothing)) == 1
    assert cells(tables(nothing)[0], "Status") == ["out of memory"] * 2


def test_report_json_holds_the_rows_and_what_was_computed_of_them(tmp_path: Path) -> None:
    rows = [one(2, "streaming", 100.0)]
    rows += [one(size, "ray", 200.0, workers, fixed=12.0) for size, workers in ((2, 1), (2, 2), (4, 2))]
    page.write([record(rows)], {}, {}, tmp_path)
    numbers = json.loads((tmp_path / "report.json").read_text())
    assert [(row["multiplier"], row["num_workers"]) for row in numbers["scale"]] == [(2, 0), (2, 1), (2, 2), (4, 2)]
    assert numbers["scale"][0].items() >= rows[0].items()
    assert [(law["workers"], law["windows"]) for law in numbers["break_even"]] == [
        (1, pytest.approx(2000)),
        (2, pytest.approx(2000)),
    ]
    assert [row["efficiency"] for row in numbers["strong_scaling"]] == [1.0, 0.5]
    assert [row["multiplier_per_worker"] for row in numbers["weak_scaling"]] == [2.0, 2.0]


def test_newest_run_of_an_arm_makes_its_row() -> None:
    older, newer = one(9, "ray", 1.0, 2), one(9, "ray", 5.0, 2)
    rows = collect([record([older]), record([newer])]).rows
    assert [(row["samples_per_second"], row["rates"]) for row in rows] == [(2.5, [1.0] * 3 + [5.0] * 3)]
    assert collect([]).rows == []


def test_terminal_names_workers_warm_rates_and_the_break_even() -> None:
    rows = [one(3, "streaming", 100.0), one(3, "ray", 200.0, 2, fixed=12.0), one(3, "in_memory", None)]
    lines = terminal.text(record(rows), Path("runs")).splitlines()
    assert lines[3] == "   3x 2 Ray workers ok  3000 windows in 15 s of 27 s, 200 windows/s, peak 1 GiB per process"
    assert lines[1] == "   3x in memory     out_of_memory no room"
    assert lines[4].endswith("from about 2,000 windows trained.")
