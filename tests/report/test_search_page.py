"""What a search found and how far it can be trusted: against trials whose answers can be read off."""
# ruff: noqa: RUF001 - the report writes the sign for times

import json
import math
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import optuna
import pytest

from sp500.report import page, search, search_coordinates, search_figures, search_settings, search_tables
from sp500.report.search import Search
from sp500.report.search_verdicts import luck, sentences
from sp500.report.tables import Table
from sp500.runs.record import Machine, RunRecord, Seconds
from sp500.tuning.ledger import TrialResult

START = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)
VALID = {"mse": 1.0e-4, "sharpe": 0.8, "daily_sharpe": 0.05, "skew": -0.4, "kurtosis": 8.0, "observations": 1200}
TEST = {"mse": 2.0e-4, "sharpe": -0.1, "improvement": {"over": "zero", "metric": "mse", "value": -0.1}}
DEFLATED = {"expected_max": 0.06, "probability": 0.331, "trials": 17}
UNKNOWN = dict.fromkeys(search.COMPARED)


def side(name: str, minute: int, arm: str, seconds: float, loss: float = 0.4, **more: Any) -> RunRecord:
    """A search of 18 configs that ended `minute` minutes after the first; `more` goes into what it says of itself."""
    ended = START + timedelta(minutes=minute)
    best = {"id": "c07", "overrides": {"model.hidden": 128}, "valid_loss": loss}
    told = {"key": "k", "configs": 18, "failed": 0, "cores": 1 if arm == "sequential" else 2, "best": best}
    config: dict[str, Any] = {"task": "returns", "data": {}, "model": {"kind": "mlp", "hidden": 64, "layers": 2}}
    return RunRecord(
        name=name,
        experiment="tune",
        arm=arm,
        status="ok",
        config=config | {"data": {"horizon": more.pop("horizon", 1)}},
        fingerprint="c07",
        seed=0,
        started=ended - timedelta(seconds=seconds),
        finished=ended,
        seconds=Seconds(setup=1, train=1, total=seconds),
        machine=Machine(cpus=2, memory_bytes=8 << 30, threads=1, system="test"),
        versions={},
        metrics=more.pop("metrics", {"valid": VALID, "test": TEST, "naive": {}}),
        search=told | more,
    )


def both(**numbers: Any) -> RunRecord:
    told = {"configs": 18, "sequential_seconds": 21.0, "parallel_seconds": 16.0, "speedup": 21 / 16}
    told |= {"efficiency": 21 / 32, "same_best": True, "metric_gap": 2.5e-9}
    return side("b", 3, "both", 40.0, **(told | {"sides": {"sequential": "s", "parallel": "p"}} | numbers))


def trial(key: str, loss: float | None, at: float | None = None, **overrides: Any) -> dict[str, Any]:
    """A trial of two seconds that ended `at` seconds after the start, as the ledger's line holds it."""
    result = TrialResult(
        id=key,
        overrides={f"model.{name}": value for name, value in overrides.items()},
        status="failed" if loss is None else "ok",
        reason="it diverged" if loss is None else "",
        valid_loss=loss,
        seconds=2.0,
        finished=None if at is None else START + timedelta(seconds=at),
    )
    return result.model_dump(mode="json")


def of(trials: list[dict[str, Any]], **more: Any) -> Search:
    """The search of one side with these trials."""
    return search.newest([side("s", 0, "sequential", 20.0, **more)], {"s": trials})


def grid(*, dead: bool = False) -> list[dict[str, Any]]:
    """24 trials whose loss hangs on the learning rate, on the width ten times less, on nothing else."""
    found = []
    for number in range(24):
        lr, width, layers = 10.0 ** -(1 + number % 4), 32 * (1 + number // 4 % 3), 1 + number // 12
        loss = 1.0 + 0.1 * (number % 4) + 0.01 * (number // 4 % 3)
        found.append(trial(f"c{number:02}", loss, 2.0 * (number + 1), lr=lr, hidden=width, layers=layers))
    return [*found, trial("c99", None, 60.0, lr=0.1, hidden=32, layers=1)] if dead else found


def cells(table: Table | None, title: str) -> list[str]:
    assert table is not None
    place = [column.title for column in table.columns].index(title)
    return [row.cells[place] for row in table.rows]


# The two sides.


def test_search_of_one_side_has_nulls_for_the_other() -> None:
    numbers = search.newest([side("s", 0, "sequential", 21.0)], {}).compared
    assert numbers == UNKNOWN | {"configs": 18, "sequential_seconds": 21.0}


def test_search_of_two_separate_sides_is_computed_from_their_records() -> None:
    records = [side("s", 0, "sequential", 30.0), side("p", 1, "parallel", 20.0, loss=0.5)]
    numbers = search.newest(records, {}).compared
    assert numbers["speedup"] == pytest.approx(1.5)
    assert numbers["efficiency"] == pytest.approx(0.75)
    assert numbers["metric_gap"] == pytest.approx(0.2)
    assert numbers["same_best"] is True


def test_search_in_both_modes_shows_its_own_seconds() -> None:
    records = [side("s", 0, "sequential", 20.0), side("p", 1, "parallel", 15.0), both()]
    numbers = search.newest(records, {}).numbers
    assert (numbers["sequential_seconds"], numbers["parallel_seconds"]) == (21.0, 16.0)
    assert set(search.COMPARED) < set(numbers)


def test_no_search_gives_the_keys_with_nulls_and_nothing_to_say() -> None:
    found = search.newest([], {})
    assert set(found.numbers.values()) == {None}
    assert sentences(found) == []
    assert [part for part in search_figures.figures(found) if part] == []


def test_newer_search_is_the_one_shown() -> None:
    records = [side("old", 0, "sequential", 20.0, key="a"), side("new", 1, "sequential", 10.0, key="b", configs=3)]
    assert search.newest(records, {}).numbers["configs"] == 3


def test_verdict_names_the_faster_side_whichever_it_is() -> None:
    sooner = sentences(search.newest([side("s", 0, "sequential", 1), side("p", 1, "parallel", 1), both()], {}))[0]
    assert "1.3× sooner than one after another (16 s against 21 s, 2 cores, efficiency 66% per core)" in sooner
    assert "the same best config; the best validation losses agree within 3e-9" in sooner
    slower = sentences(search.newest([side("s", 0, "sequential", 10), side("p", 1, "parallel", 25)], {}))[0]
    assert slower.startswith("Ray Tune was slower: the same 18 configs took 2.5× as long")


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ([side("s", 0, "sequential", 20.0)], "18 configs ran one after another in 20 s; the other side has not run"),
        ([side("p", 0, "parallel", 20.0)], "18 configs ran on Ray Tune in 20 s; the other side has not run"),
        ([side("p", 0, "parallel", 20.0, resumed=3)], "18 configs ran with an interruption"),
        (
            [side("s", 0, "sequential", 20.0), side("p", 1, "parallel", 9.0, resumed=3)],
            "18 configs ran both ways, one with an interruption, so their seconds cannot be compared, and found the",
        ),
    ],
)
def test_sides_that_cannot_be_compared_are_not(records: list[RunRecord], said: str) -> None:
    assert sentences(search.newest(records, {}))[0].startswith(said)


# How far the best can be trusted.


def test_tries_failures_and_both_splits_of_the_chosen_config_are_told() -> None:
    found = of([], failed=1, deflated_sharpe=DEFLATED)
    assert sentences(found)[1:] == [
        "Best of 18 configs tried, 1 of which failed: hidden 128 (validation loss 0.4).",
        "Validation, which chose it, against the test, looked at once: MSE (10⁻⁴) 1.000 against 2.000; "
        "Sharpe 0.80 against −0.10.",
        "After 17 tries a Sharpe ratio of 0.060 per day (0.95 a year) would be expected of the best on validation by "
        "luck alone; the chosen one has 0.050 per day (0.79 a year). The probability that its true ratio is above "
        "zero after that is 33.1%, below the usual 95% (deflated Sharpe ratio).",
    ]
    table = search_tables.both_splits(found)
    assert cells(table, "Split") == ["validation, which chose it", "test, looked at once"]
    assert cells(table, "MSE (10⁻⁴)") == ["1.000", "2.000"]
    assert found.numbers["valid"] == VALID
    assert "improvement" not in found.numbers["test"]


@pytest.mark.parametrize(
    ("probability", "said"),
    [(0.97, "97.0%, above the usual"), (0.9999, "above 99.9%, above"), (1e-9, "below 0.1%, below"), (None, "")],
)
def test_probability_is_told_without_false_certainty(probability: float | None, said: str) -> None:
    (told,) = luck(of([], deflated_sharpe=DEFLATED | {"probability": probability}))
    assert said in told
    assert ("probability" in told) == (probability is not None)


def test_ratio_of_trades_of_several_days_is_not_called_daily() -> None:
    (told,) = luck(of([], deflated_sharpe=DEFLATED, horizon=5))
    assert f"0.060 per trade of 5 days ({0.06 * math.sqrt(252 / 5):.2f} a year)" in told


def test_luck_that_an_older_search_did_not_measure_is_said_not_to_be_known() -> None:
    assert luck(of([])) == ["Whether its Sharpe ratio is luck cannot be told: this search kept too few of its trials'."]
    assert luck(of([], metrics={"valid": {"accuracy": 0.5}, "test": {"accuracy": 0.4}, "naive": {}})) == []


# History.


def test_history_holds_the_trials_that_were_better_than_all_before() -> None:
    trials = [trial("a", 0.5, 2.0), trial("b", None, 3.0), trial("c", 0.6, 4.0), trial("d", 0.4, 9.0)]
    assert of(trials).numbers["history"] == {
        "sequential": [{"trial": 1, "seconds": 2.0, "loss": 0.5}, {"trial": 4, "seconds": 9.0, "loss": 0.4}]
    }


def test_trials_stand_in_the_order_in_which_they_ended() -> None:
    again = [trial("a", 0.5, 8.0), trial("b", 0.6, 4.0)]
    assert [one["id"] for one in of(again).trials] == ["b", "a"]


@pytest.mark.parametrize("reason", ["an older ledger", "an interruption"])
def test_seconds_that_are_not_known_leave_the_number_of_the_trial(reason: str) -> None:
    old = reason == "an older ledger"
    found = of([trial("a", 0.5, None if old else 1.0), trial("b", 0.4, 2.0)], resumed=0 if old else 1)
    assert found.sides[0].elapsed is None
    assert [one["seconds"] for one in found.numbers["history"]["sequential"]] == [None, None]
    drawing = search_figures.history(found)
    assert drawing is not None
    assert "trials, in the order in which they ended" in drawing.svg


def test_loss_far_off_stands_on_the_edge_and_is_counted() -> None:
    losses = [1.0, 1.1, 1.2, 1.3, 500.0]
    assert search_settings.ceiling(losses) == pytest.approx(1.0 + 4 * 0.2)
    assert search_settings.ceiling(losses[:4]) == 1.3
    assert search_settings.ceiling([1.0, 1.0, 1.0, 7.0]) == 7.0
    drawing = search_figures.history(of([trial(f"{loss}", loss, loss) for loss in losses]))
    assert drawing is not None
    assert "a loss above 1.8 (1 of 5)" in drawing.caption


# Settings.


def test_settings_that_vary_have_their_scale() -> None:
    rows = [(0.001, 32, "zscore", 0.0, 1), (0.003, 64, "none", 0.2, 1), (0.01, 128, "none", 0.2, 1)]
    keys = ("lr", "hidden", "norm", "dropout", "layers")
    trials = [trial(str(n), 1.0, **dict(zip(keys, row, strict=True))) for n, row in enumerate(rows)]
    lr, hidden, norm, dropout = search_settings.varied(trials)
    assert (lr.log, hidden.log, dropout.log) == (True, False, False)
    assert lr.place(0.003) == pytest.approx(math.log(3) / math.log(10))
    assert hidden.place(64) == pytest.approx(1 / 3)
    assert (norm.numeric, norm.place("zscore"), norm.place("none")) == (False, 0.0, 1.0)


def test_even_draws_from_near_zero_stay_on_an_even_scale() -> None:
    drawn = [trial(str(n), 1.0, dropout=0.004 + 0.02 * n, lr=1e-4 * 1.3**n) for n in range(25)]
    dropout, lr = search_settings.varied(drawn)
    assert (dropout.log, lr.log) == (False, True)


def test_values_of_any_kind_can_be_drawn_and_weighed() -> None:
    kinds: list[Any] = [None, True, ["AAPL", "KO"], "a-name-that-is-much-too-long", 3]
    trials = [trial(str(n), 1.0 + n % 5, width=n, kind=kinds[n % 5]) for n in range(20)]
    found = of(trials)
    assert isinstance(found.importance, dict)
    assert set(found.importance) == {"model.width", "model.kind"}
    drawing = search_coordinates.coordinates(found)
    assert drawing is not None
    assert "AAPL+KO" in drawing.svg
    assert "a-name-that\u2026" in drawing.svg


def test_names_are_short_where_that_is_clear() -> None:
    trials = [{"overrides": {"train.lr": n, "model.seed": n, "data.seed": n}} for n in (1, 2)]
    found = search_settings.names(search_settings.varied(trials))
    assert found == {"train.lr": "lr", "model.seed": "model.seed", "data.seed": "data.seed"}


def test_coordinates_keep_the_most_important_settings_and_say_so() -> None:
    trials = [trial(str(n), 1.0 + n % 2, **{f"s{k}": n * (k + 2) % 11 for k in range(9)}, z=n % 2) for n in range(30)]
    drawing = search_coordinates.coordinates(of(trials))
    assert drawing is not None
    assert "7 of 10 settings that varied." in drawing.caption
    assert ">z<" in drawing.svg


def test_coordinates_need_a_setting_and_two_losses() -> None:
    assert search_coordinates.coordinates(of([trial("a", 1.0, lr=1), trial("b", 2.0, lr=1)])) is None
    assert search_coordinates.coordinates(of([trial("a", 1.0, lr=1), trial("b", 1.0, lr=2)])) is None


# Importance.


def test_importance_is_optunas_and_finds_what_decides_the_loss() -> None:
    found = of(grid()).importance
    assert isinstance(found, dict)
    assert list(found) == ["model.lr", "model.hidden", "model.layers"]
    assert sum(found.values()) == pytest.approx(1)
    study = optuna.create_study()
    for one in grid():
        values = one["overrides"]
        ranges = {
            "model.lr": optuna.distributions.FloatDistribution(1e-4, 0.1, log=True),
            "model.hidden": optuna.distributions.FloatDistribution(32, 96),
            "model.layers": optuna.distributions.FloatDistribution(1, 2),
        }
        study.add_trial(optuna.trial.create_trial(params=values, distributions=ranges, value=one["valid_loss"]))
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    assert found == pytest.approx(optuna.importance.get_param_importances(study, evaluator=evaluator))


def test_importance_does_not_hang_on_the_order_or_on_one_trial_that_diverged() -> None:
    assert of(grid()[::-1]).importance == of(grid()).importance
    spoiled = grid()
    spoiled[5]["valid_loss"] = 1e9
    found = of(spoiled).importance
    assert isinstance(found, dict)
    assert next(iter(found)) == "model.lr"


@pytest.mark.parametrize(
    ("trials", "why"),
    [
        (grid()[:7], "it takes 8 finished trials, and there are 7"),
        ([trial(str(n), 1.0 + n, lr=n) for n in range(9)], "it takes two settings that vary"),
        ([trial(str(n), 1.0, lr=n, hidden=n) for n in range(9)], "every trial ended with the same loss"),
    ],
)
def test_importance_that_cannot_be_known_leaves_a_remark(trials: list[dict[str, Any]], why: str) -> None:
    found = of(trials)
    assert found.numbers["importance"] is None
    assert f"How much each setting mattered is not shown: {why}." in search_figures.figures(found)


# Tables.


def test_best_trials_are_ranked_with_the_seconds_of_each_side() -> None:
    records = [side("s", 0, "sequential", 20.0), side("p", 1, "parallel", 15.0)]
    found = search.newest(records, {"s": grid(), "p": [one | {"seconds": 3.0, "pack": 4} for one in grid()[:2]]})
    table = search_tables.best_trials(found)
    assert cells(table, "Id") == ["c00", "c12", "c04", "c16", "c08"]
    assert cells(table, "Seconds, one after another") == ["2.0 s"] * 5
    assert cells(table, "Seconds, Ray Tune") == ["3.0 s", *["-"] * 4]
    assert cells(table, "Together, Ray Tune")[0] == "4"


def test_failed_configs_stand_once_per_reason_and_the_rest_is_counted() -> None:
    dead = [trial(f"d{n:02}", None, 1.0, lr=n) | {"reason": f"reason {max(n - 5, 0):02}"} for n in range(30)]
    records = [side("s", 0, "sequential", 20.0), side("p", 1, "parallel", 15.0)]
    table = search_tables.failed_trials(search.newest(records, {"s": dead, "p": dead[:1]}))
    assert table is not None
    assert table.caption == "30 failed configs, by reason"
    assert table.rows[0].cells == ("reason 00", "6", "one after another and Ray Tune", "lr 0", "d00")
    assert len(table.rows) == 20
    assert table.note == "5 configs more failed for 5 further reasons."
    assert search_tables.failed_trials(of(grid())) is None


def test_trials_on_different_data_are_compared_by_their_share_of_the_naive_loss() -> None:
    quiet = trial("quiet", 0.2, 1.0, lr=1) | {"naive_loss": 0.1, "dataset": "KO, 30 days"}
    wild = trial("wild", 0.9, 2.0, lr=2) | {"naive_loss": 1.0, "dataset": "AAPL, 30 days"}
    best = {"overrides": {"model.lr": 2}, "valid_loss": 0.9, "id": "wild", "score": 0.9}
    named = [best | {"dataset": "AAPL, 30 days"}, best | {"dataset": "KO, 30 days", "id": "quiet", "score": 2.0}]
    found = of([quiet, wild], best=best, by_dataset=named)
    assert cells(search_tables.best_trials(found), "Id") == ["wild", "quiet"]
    assert cells(search_tables.best_trials(found), "Of naive") == ["90.00%", "200.00%"]
    assert cells(search_tables.by_dataset(found), "Data") == ["AAPL, 30 days", "KO, 30 days"]
    assert "validation loss 0.9, 90.00% of that of always answering zero" in sentences(found)[1]
    assert [one["loss"] for one in found.numbers["history"]["sequential"]] == pytest.approx([2.0, 0.9])


# The page.


def test_page_of_a_whole_search_is_the_same_for_the_same_runs(tmp_path: Path) -> None:
    records = [side("s", 0, "sequential", 20.0, failed=1, deflated_sharpe=DEFLATED), side("p", 1, "parallel", 15.0)]
    trials = {"s": grid(dead=True), "p": grid()}
    first, second = (page.write(records, {}, trials, tmp_path / name) for name in "ab")
    assert first.path.read_bytes() == second.path.read_bytes()
    numbers = json.loads((tmp_path / "a" / "report.json").read_text())["search"]
    assert set(search.COMPARED) < set(numbers)
    assert list(numbers["importance"]) == ["model.lr", "model.hidden", "model.layers"]
    text = first.path.read_text()
    for part in ("seconds since the first trial began", "log scale", "Importance: ", "1 failed config, by reason"):
        assert part in text


def test_page_of_records_and_ledgers_before_these_numbers_can_be_written(tmp_path: Path) -> None:
    new = {"valid_sharpe", "finished", "pack", "naive_loss", "dataset"}
    old = [{key: value for key, value in one.items() if key not in new} for one in grid(dead=True)]
    metrics = {"valid": {"mse": 1e-4, "sharpe": 0.5}, "test": {"mse": 2e-4, "sharpe": 0.1}, "naive": {}}
    report = page.write([side("s", 0, "sequential", 20.0, metrics=metrics)], {}, {"s": old}, tmp_path)
    assert "trials, in the order in which they ended" in report.path.read_text()
    assert report.numbers["search"]["deflated_sharpe"] is None
