"""The arms of a search side by side: what packing bought, what Ray bought, and where Ray would break even."""
# ruff: noqa: RUF001 - the report writes the sign for times

from typing import Any

import pytest
from result_rows import cells, chosen, search_summary
from search_records import side

from sp500.report.search import figures, results
from sp500.report.search.arms import NAMES, arms_table, break_even_table
from sp500.report.search.arms import sentences as arm_sentences
from sp500.report.search.section import SearchSection
from sp500.report.search.verdicts import sentences
from sp500.report.section import Runs
from sp500.runs import compare
from sp500.runs.record import RunRecord
from sp500.runs.results import SearchComparison
from sp500.runs.trials import TrialResult


def timed(**numbers: Any) -> RunRecord:
    """The record of a search in all modes, whose arms took 27, 9 and 30 s from start to exit."""
    arms = three_arms()
    seconds = {arm: {"seconds": taken, "cpu_seconds": 8.0} for arm, taken in zip(arms, (27.0, 9.0, 30.0), strict=True)}
    told = compare.searches(arms, seconds) | {"runs": {arm: record.name for arm, record in arms.items()}} | numbers
    return side("all", 3, "all", 70.0, **told)


def three_arms() -> dict[str, RunRecord]:
    work = {"sequential": 22.0, "packed": 10.0, "ray": 10.0}
    return {
        arm: side(arm, minute, arm, 20.0, trial_seconds=work[arm], cores=1 if arm == "sequential" else 2)
        for minute, arm in enumerate(work)
    }


def test_search_of_one_arm_has_nulls_for_what_needs_others() -> None:
    numbers = results.newest([side("s", 0, "sequential", 21.0)], {}).compared
    assert numbers["arms"]["sequential"]["seconds"] == 21.0
    assert numbers["configs"] == 18
    assert {numbers[key] for key in SearchComparison.__annotations__.keys() - {"arms", "configs"}} == {None}


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ({"others_share": 0.11}, "Ray Tune: other programs took 11% of the cores)"),
        ({"cpu_share": 0.79}, "Ray Tune: its trials computed in 79% of their time)"),
        ({"others_share": 0.09, "cpu_share": 0.81}, ""),
        ({"others_share": None, "cpu_share": None}, ""),
        ({}, ""),  # a record of an earlier version
    ],
)
def test_times_of_a_busy_machine_are_called_so_and_give_no_break_even(shares: dict[str, Any], said: str) -> None:
    arms = {"packed": side("p", 0, "packed", 10.0), "ray": side("r", 1, "ray", 20.0)}
    own = {name: share for name, share in shares.items() if name == "cpu_share"}
    arms["ray"] = arms["ray"].model_copy(update={"search": {**arms["ray"].search, **own}})
    outer = {"ray": {"seconds": 20.0, **{name: share for name, share in shares.items() if name == "others_share"}}}
    numbers = compare.searches(arms, outer)
    lines = arm_sentences(numbers)
    assert lines[0].startswith("The machine was busy: ") is bool(said)
    assert said in lines[0]
    assert (numbers["break_even"] is None) is bool(said)
    assert any("Ray " in line and "pays" in line for line in lines) is not bool(said)


def test_separate_arms_are_compared_by_their_records() -> None:
    records = [side("s", 0, "sequential", 30.0), side("p", 1, "packed", 10.0), side("r", 2, "ray", 40.0, loss=0.5)]
    numbers = results.newest(records, {}).compared
    assert numbers["packing_speedup"] == pytest.approx(3)
    assert numbers["ray_speedup"] == pytest.approx(0.25)
    assert numbers["arms"]["ray"]["speedup_over_sequential"] == pytest.approx(0.75)
    assert numbers["metric_gap"] == pytest.approx(0.2)
    assert numbers["same_best"] is True


def test_arms_that_chose_different_configs_are_reported_with_the_way_to_equal_numbers() -> None:
    other = chosen(id="c08", overrides={"model.hidden": 64}, valid_loss=0.41)
    records = [side("s", 0, "sequential", 30.0), side("p", 1, "packed", 10.0, best=other)]
    numbers = results.newest(records, {}).compared
    assert numbers["same_best"] is False
    (told,) = [sentence for sentence in arm_sentences(numbers) if "different best configs" in sentence]
    assert "differ by 2%" in told
    assert "--train.dtype float64" in told


def test_search_in_all_modes_shows_the_seconds_that_it_timed() -> None:
    numbers = results.newest([*three_arms().values(), timed()], {}).numbers
    assert [row["seconds"] for row in numbers["arms"].values()] == [27.0, 9.0, 30.0]
    assert numbers["arms"]["ray"]["cpu_seconds"] == 8.0
    assert SearchComparison.__annotations__.keys() < set(numbers)


def test_arms_are_named_with_their_seconds_and_cores() -> None:
    lines = sentences(results.newest([*three_arms().values(), timed()], {}))
    assert lines[0] == (
        "18 configs took 27 s one after another (1 core), 9.0 s packed without Ray (2 cores) "
        "and 30 s Ray Tune (2 cores)."
    )
    assert lines[1] == "The arms found the same best config; the best validation losses are equal."


def test_how_far_one_config_is_apart_is_told_where_the_arms_chose_different_ones() -> None:
    arms = three_arms()
    losses = {"sequential": (0.400, 0.41), "packed": (0.404, 0.41), "ray": (0.404, 0.41)}
    trials = {
        arm: [
            TrialResult(id=key, overrides={}, status="ok", valid_loss=loss)
            for key, loss in zip("ab", pair, strict=True)
        ]
        for arm, pair in losses.items()
    }
    told = "The validation losses of one config differ by up to 0.99% between the arms."
    assert told in sentences(results.newest([*arms.values(), timed(same_best=False)], trials))
    assert told not in sentences(results.newest([*arms.values(), timed()], trials))


def test_break_even_is_where_the_two_lines_cross() -> None:
    found = results.newest([*three_arms().values(), timed()], {})
    # Packed: 4 s and 10 s of work on 2 cores for 18 configs. Ray Tune: 25 s and as much work.
    even = found.compared["break_even"]
    assert even["cores"] is None
    assert [row["cores"] for row in even["configs"]] == [2, 4, 8, 16]
    assert even["configs"][0]["configs"] is None
    for row in even["configs"][1:]:
        count, work = row["configs"], 10 / 18
        assert 4 + count * work / 2 == pytest.approx(25 + count * work / row["cores"])
    assert sentences(found)[2] == "Ray pays from about 152 configs on 4 cores, against packs on 2 cores."
    table = break_even_table(found.compared)
    assert cells(table, "Sooner from")[:2] == ["at no number of configs", "about 152 configs"]
    assert table is not None
    assert "Assumed: the start does not grow with configs or cores" in table.note


def test_break_even_in_cores_is_where_ray_takes_as_long_for_the_same_configs() -> None:
    packed = side("p", 0, "packed", 104.0, trial_seconds=200.0)
    numbers = compare.searches({"packed": packed, "ray": side("r", 1, "ray", 125.0, trial_seconds=200.0)})
    assert numbers["break_even"]["cores"] == pytest.approx(200 / (104 - 25))


def test_arms_have_a_row_each() -> None:
    table = arms_table(results.newest([*three_arms().values(), timed()], {}).compared, NAMES)
    assert cells(table, "Arm") == ["one after another", "packed without Ray", "Ray Tune"]
    assert cells(table, "CPU seconds") == ["8"] * 3
    assert cells(table, "Configs/s") == ["0.67", "2.00", "0.60"]
    assert cells(table, "Speed-up over sequential") == ["1.00×", "3.00×", "0.90×"]
    assert cells(table, "Speed-up over packed") == ["0.33×", "1.00×", "0.30×"]


def test_no_search_gives_the_keys_with_nulls_and_nothing_to_say() -> None:
    found = results.newest([], {})
    assert set(found.numbers.values()) == {None}
    assert sentences(found) == []
    assert [part for part in figures.figures(found) if part] == []


def test_newer_search_is_the_one_shown() -> None:
    records = [side("old", 0, "sequential", 20.0, key="a"), side("new", 1, "sequential", 10.0, key="b", configs=3)]
    assert results.newest(records, {}).numbers["configs"] == 3


def test_earlier_searches_are_named_by_their_last_run() -> None:
    assert results.newest([side("only", 0, "packed", 9.0), side("same", 1, "ray", 9.0)], {}).earlier == []
    old = [
        side(name, minute, arm, 9.0, key="old") for minute, (name, arm) in enumerate([("a", "packed"), ("b", "ray")])
    ]
    records = [*old, side("c", 2, "ray", 9.0, key="other"), side("new", 3, "ray", 9.0), side("again", 4, "packed", 9.0)]
    found = results.newest(records, {})
    assert found.earlier == ["c", "b"]
    assert SearchSection().parts(found, Runs(records, {}, {}))[0] == (
        "This is the newest search, again. 2 earlier searches are not shown in detail: c, b."
    )


def test_missing_arms_are_named_by_their_modes() -> None:
    lines = sentences(results.newest([side("p", 0, "packed", 20.0)], {}))
    assert lines[1] == "Not run: --mode sequential and --mode ray."


def test_arm_that_was_interrupted_is_not_compared_by_time() -> None:
    records = [side("s", 0, "sequential", 20.0), side("p", 1, "packed", 9.0, resumed=3)]
    found = results.newest(records, {})
    assert found.compared["packing_speedup"] is None
    assert sentences(found)[1] == "Interrupted, so without a time that compares: packed without Ray."


def test_programs_are_compared_by_their_metric() -> None:
    arms = {
        "sequential": side("s", 0, "sequential", 9.0),
        "parallel": side("p", 1, "parallel", 3.0, best=chosen(id="b")),
    }
    lines = arm_sentences(compare.searches(arms), search_summary(metric="accuracy"))
    assert lines[0].startswith("18 programs took 9.0 s one after another")
    assert "different best configs; the best values of accuracy" in lines[1]
    assert lines[2] == "Not run: --mode ray."
