"""What streaming bought, and what the cluster: sentences, tables and figures against rows that can be read off."""
# ruff: noqa: RUF001 - the report writes the sign for times

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from scale_rows import GIB, one

from sp500.report import page, terminal
from sp500.report.scale import figures, verdicts
from sp500.report.scale.results import Row, Scale, collect, tables
from sp500.runs.record import Machine, RunRecord, Seconds

NOW = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)
CLUSTER = {"place": "cluster", "hardware": "nodes with 1 CPUs, 4.0 GiB", "cores": 16}
MACHINE = Machine(cpus=2, memory_bytes=8 << 30, threads=1, system="test")


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


def found(*rows: Row, **changes: Any) -> Scale:
    return collect([record(list(rows), **changes)])


def merged(*rows: Row) -> list[Row]:
    return found(*rows).rows


def cells(table: Any, title: str) -> list[str]:
    place = [column.title for column in table.columns].index(title)
    return [row.cells[place] for row in table.rows]


def test_streaming_is_compared_with_arrays_at_the_largest_size_both_trained() -> None:
    rows = merged(
        one(1, "in_memory", 100.0),
        one(1, "streaming", 50.0),
        one(10, "in_memory", 400.0),
        one(10, "streaming", 300.0, peak_memory_bytes=GIB // 2),
        one(50, "in_memory", None),
        one(50, "streaming", 999.0, peak_memory_bytes=GIB * 3 // 4),
        one(200, "in_memory", None),
        one(200, "streaming", 999.0, peak_memory_bytes=GIB // 2),
    )
    assert verdicts.streaming(rows) == [
        "Streaming at ×10, compared with arrays in memory: slower, 0.75× the windows/s (300 compared with 400); less "
        "memory, 0.50× the peak (512 MiB compared with 1 GiB).",
        "×50 and ×200 do not fit in memory as arrays; streaming trained on them within 768 MiB.",
    ]


def test_budget_that_is_watched_and_not_enforced_is_said_with_the_table() -> None:
    notes = [tables(found(one(1, "streaming", 100.0, **watched)))[0].note for watched in ({}, {"memory_watched": True})]
    assert ["watched, not enforced" in note for note in notes] == [False, True]


def test_streaming_without_a_gain_is_reported_as_such() -> None:
    first, second = verdicts.streaming(
        merged(one(1, "in_memory", 100.0), one(1, "streaming", 101.0, peak_memory_bytes=3 * GIB))
    )
    assert "about as fast, 1.01× the windows/s" in first
    assert "more memory, 3.00× the peak (3 GiB compared with 1 GiB)" in first
    assert second.startswith("Arrays fit in memory at every size")


def test_size_that_neither_arm_trained_is_no_gain_of_streaming() -> None:
    rows = merged(one(9, "in_memory", None), one(9, "streaming", None))
    assert "speed of streaming is unknown" in verdicts.streaming(rows)[0]
    assert "streaming did not train on it either" in verdicts.streaming(rows)[1]


def test_missing_arms_are_named() -> None:
    rows = merged(one(1, "ray", 100.0, 2))
    assert "run the arms in_memory and streaming" in verdicts.streaming(rows)[0]
    assert verdicts.cluster(rows)[0].endswith("run the arm streaming.")
    alone = merged(one(1, "streaming", 100.0))
    assert verdicts.cluster(alone)[0].endswith("run the arm ray.")


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
    rate = sorted(rates)[1]
    rows = [one(1, "in_memory", 100.0), one(1, "streaming", rate, epoch_rates=rates)]
    assert f": {verdict}, " in verdicts.streaming(merged(*rows))[0]


def test_repeated_experiment_widens_the_margin() -> None:
    laptop = [one(1, "in_memory", 100.0), one(1, "streaming", 125.0)]
    again = [one(1, "in_memory", 100.0), one(1, "streaming", 90.0)]
    once = collect([record(again), record(laptop)])
    assert "about as fast, 1.25×" in verdicts.streaming(once.rows)[0]
    assert "faster, 1.25×" in verdicts.streaming(merged(*laptop))[0]


def test_each_number_of_workers_is_compared_with_one_process_at_its_largest_size() -> None:
    rows = merged(
        one(10, "streaming", 100.0, fixed=10.0, writing_seconds=8.0),
        one(20, "streaming", 100.0),
        one(20, "ray", 50.0, 1),
        one(10, "ray", 400.0, 2, fixed=12.0),
        one(20, "ray", None, 2, status="failed"),
    )
    one_worker, two_workers, memory = verdicts.cluster(rows)
    assert one_worker.startswith("At ×20 (20,000 windows), streaming in one process took 3.4 min on one machine")
    assert "1 Ray worker (2 cores, 8 GiB) took 6.7 min: slower, 0.50× the speed" in one_worker
    # 8 of the 110 seconds in one process wrote the shards that Ray then found.
    assert "took 102 s on one machine" in two_workers
    assert "took 37 s: faster, 2.76× the speed from start to end" in two_workers
    assert "faster, 4.00× the windows/s (400 compared with 100)" in two_workers
    assert two_workers.endswith("Writing shards is not counted.")
    assert memory == "Every size that Ray trained on also fit one process."


def test_cluster_gained_memory_only_where_one_process_ran_out_of_it() -> None:
    alone = [one(1, "streaming", 100.0), one(50, "streaming", None)]
    rays = [one(1, "ray", 100.0, 2), one(50, "ray", 90.0, 2, simulated_nodes=2)]
    (_, told) = verdicts.cluster(merged(*alone, *rays), lambda run: f"0.01 USD for {run}")
    assert told == (
        "2 Ray workers trained on ×50 (1 GiB per simulated node, 0.01 USD for 50-ray-2), where one process ran out of "
        "memory."
    )
    broke = [one(1, "streaming", 100.0), one(50, "streaming", None, status="failed")]
    assert len(verdicts.cluster(merged(*broke, *rays))) == 1


def test_workers_that_never_ended_well_cannot_be_judged() -> None:
    (told,) = verdicts.cluster(merged(one(1, "streaming", 100.0), one(1, "ray", None, 2)))
    assert told.startswith("The gain from 2 Ray workers is unknown")


def test_speeds_of_a_warm_and_a_cold_run_are_not_mixed() -> None:
    cold = one(1, "ray", 100.0, 2, warm_samples_per_second=None)
    (told, _) = verdicts.cluster(merged(one(1, "streaming", 100.0), cold))
    assert "1.00× the windows/s (50 compared with 50)" in told


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
    sentence = verdicts.sentences(both, lambda run: f"0.25 USD ({run})")[0]
    assert sentence == (
        "At ×10 (10,000 windows), streaming in one process took 102 s on one machine (2 cores, 8 GiB). On the cluster, "
        "2 Ray workers (nodes with 1 CPUs, 4.0 GiB) took 45 s: faster, 2.25× the speed from start to end. "
        "In training, after the first batch: "
        "faster, 3.00× the windows/s (300 compared with 100). That cost 0.25 USD (cluster-10)."
    )
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


def test_break_even_is_reported_in_windows_and_as_one_pass_over_a_size() -> None:
    # 2 + n/100 = 12 + n/200  =>  n = 2,000, which is one pass over x2, and was measured.
    rows = [one(3, "streaming", 100.0), one(3, "ray", 200.0, 2, fixed=12.0), one(3, "ray", 100.5, 1, fixed=12.0)]
    first, second, lines = verdicts.break_even(found(*rows))
    assert "a run with 1 worker below about 201,000 windows trained (one pass over ×200; extrapolated)" in first
    assert "a run with 2 workers below about 2,000 windows trained (one pass over ×2)" in second
    assert lines.endswith(
        "2.0 s + windows × epochs / 100 in one process (streaming), 12 s + windows × epochs / 100 on 1 worker "
        "and 12 s + windows × epochs / 200 "
        "on 2 workers."
    )
    uneven = [*rows, one(1, "streaming", 100.0, fixed=10.0)]
    assert verdicts.break_even(found(*uneven))[-1].endswith("by up to 20%.")  # 6 + 10 s for the 20 it took


@pytest.mark.parametrize(
    ("rate", "fixed", "said"),
    [
        (90.0, 12.0, "At no size up to ×1 was a run with 2 workers faster than one process"),
        (100.0, 2.0, "At no size up to ×1 was a run with 2 workers faster than one process"),
        (200.0, 1.0, "A run with 2 workers is sooner than one process at every size."),
        # 2 + n/100 = 1 + n/50  =>  n = 100
        (50.0, 1.0, "One process is sooner than a run with 2 workers above about 100 windows trained."),
    ],
)
def test_missing_break_even_says_which_side_is_sooner(rate: float, fixed: float, said: str) -> None:
    rows = [one(1, "streaming", 100.0), one(1, "ray", rate, 2, fixed=fixed)]
    assert verdicts.break_even(found(*rows))[0].startswith(said)


def test_test_error_of_the_arms_is_compared_within_one_size() -> None:
    same = [one(1, "streaming", 1.0, test_error=9e-4), one(10, "streaming", 1.0), one(10, "ray", 1.0, 2)]
    assert verdicts.numbers(merged(*same)) == ["The test MSE at ×10 is the same in all 2 runs."]
    apart = [*same, one(10, "in_memory", 1.0, test_error=2.1e-4)]
    assert verdicts.numbers(merged(*apart)) == [
        "The test MSE at ×10 is between 0.0002 and 0.00021, 5.00% apart in 3 runs."
    ]
    assert verdicts.numbers(merged(one(1, "streaming", 1.0))) == []
    kept = [one(10, "streaming", 1.0, best_epoch=0), one(10, "ray", 1.0, 2, best_epoch=0)]
    assert "naive forecast" in verdicts.numbers(merged(*kept))[0]
    assert "same by construction" in verdicts.numbers(merged(*kept))[0]


def test_every_size_at_which_some_run_was_trained_is_compared() -> None:
    rows = [
        one(1, "in_memory", 1.0, test_error=5.2863e-4, best_epoch=0),
        one(1, "streaming", 1.0, test_error=5.2863e-4, best_epoch=0),
        one(1, "ray", 1.0, 2, test_error=5.2876e-4),
        one(5, "streaming", 1.0),
        one(5, "ray", 1.0, 2),
        *(one(size, arm, 1.0, best_epoch=0) for size in (10, 20) for arm in ("in_memory", "streaming")),
        one(50, "streaming", 1.0),
    ]
    first, second, third = verdicts.numbers(merged(*rows))
    assert "at ×1 is between 0.0005286 and 0.0005288, 0.02% apart in 3 runs, of which 2 kept the naive" in first
    assert "at ×5 is the same in all 2 runs" in second
    assert "at ×10 and ×20 kept the naive" in third


def test_runs_on_a_busy_machine_are_named_and_left_out_of_the_break_even() -> None:
    quiet = [one(1, "streaming", 100.0, others_share=0.05), one(1, "ray", 200.0, 2, fixed=12.0, others_share=None)]
    assert verdicts.busy_rows(merged(*quiet)) == []
    assert verdicts.break_even(found(*quiet))
    rows = [quiet[0], one(1, "ray", 200.0, 2, fixed=12.0, others_share=0.4)]
    assert "2 Ray workers at ×1 (40%)" in verdicts.sentences(found(*rows))[0]
    assert verdicts.break_even(found(*rows)) == []


def test_size_that_streaming_never_tried_is_not_its_memory() -> None:
    rows = merged(one(1, "in_memory", 1.0), one(1, "streaming", 1.0), one(200, "in_memory", None))
    assert "×200 does not fit in memory as arrays; streaming did not train on it either." in verdicts.streaming(rows)


def test_budget_names_whatever_exceeded_it() -> None:
    within = [one(1, "streaming", 1.0, peak_memory_bytes=GIB // 4), one(1, "ray", 1.0, 2, simulated_nodes=2)]
    over = one(9, "ray", 1.0, 2, simulated_nodes=2, peak_memory_bytes=3 * GIB)
    assert verdicts.budget(merged(*within, one(9, "in_memory", None))) == [
        "All 2 measured runs stayed within the memory budget; the largest peak was 2 Ray workers at ×1, 1 GiB per "
        "simulated node."
    ]
    assert verdicts.budget(merged(*within, over)) == [
        "Over the memory budget: 2 Ray workers at ×9 (3 GiB per simulated node); 2 other runs stayed within it."
    ]


def test_one_machine_is_not_presented_as_a_cluster() -> None:
    (plain,) = verdicts.one_machine(found(one(1, "ray", 1.0, 1), one(1, "ray", 1.0, 2)))
    assert plain.startswith("2 workers shared the 2 cores of one machine")
    (simulated,) = verdicts.one_machine(found(one(1, "ray", 1.0, 2, simulated_nodes=2)))
    assert simulated.startswith("2 workers on 2 simulated nodes shared the 2 cores of one machine")
    assert verdicts.one_machine(found(one(1, "streaming", 1.0))) == []
    assert verdicts.one_machine(found(one(1, "ray", 1.0, 2, **CLUSTER))) == []


def test_failed_arms_are_listed_with_sizes_and_reasons() -> None:
    rows = [one(50, "in_memory", None), one(9, "in_memory", None), one(9, "ray", None, 2, status="failed", reason="")]
    assert verdicts.failures(merged(*rows)) == [
        "In memory ended with status out of memory at ×9 (no room) and ×50 (no room).",
        "2 Ray workers ended with status failed at ×9.",
    ]


def test_table_says_workers_and_share_of_the_budget() -> None:
    rows = [one(50, "in_memory", None), one(50, "streaming", 1000.0), one(50, "ray", 250.0, 2, writing_seconds=1.5)]
    (table,) = tables(found(*rows))
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
    _, table = tables(found(*rows))
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
    assert {"in memory", "streaming", "2 Ray workers", "windows per second", "peak memory"} <= texts
    assert {"in memory: out of memory", "2 Ray workers: failed", "budget of a node, 2 GiB"} <= texts
    assert {"×1", "×10", "1k", "10k"} <= texts
    assert "A hollow cross: the arm did not end well" in drawn.caption
    assert "out of memory, need not known" in texts


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
    crosses = drawn_crosses(memory)
    assert crosses[10, 3.0] == "none"
    assert min(height for _, height in crosses) > 2.0  # none on the budget of 2 GiB
    assert {"would need 3 GiB", "out of memory, need not known"} <= {text.get_text() for text in memory.texts}


def test_one_size_is_drawn_as_bars() -> None:
    (drawn,) = figures.figures(found(one(5, "in_memory", None), one(5, "streaming", 1234.0)))
    texts = re.findall(r">([^<>]+)</text>", drawn.svg)
    assert texts.count("out of memory") == 2
    lacks = one(
        5, "in_memory", None, reason="5 windows need 2684354560 bytes (2.5 GiB) besides the 536870912 bytes of ours"
    )
    (drawn,) = figures.figures(found(lacks, one(5, "streaming", 1234.0)))
    assert "would need 3 GiB" in drawn.svg
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
    drawn = figures.figures(found(*[one(size, "ray", 100.0, workers) for size, workers in pairs]))
    assert len(drawn) == 2
    assert set(re.findall(r">(strong|weak): ", drawn[1].svg)) == titles


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
    assert lines[4].startswith("One process is sooner than a run with 2 workers below about 2,000 windows trained")
