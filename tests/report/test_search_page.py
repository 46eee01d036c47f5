"""What a search found and how far it can be trusted: against trials whose answers can be read off."""
# ruff: noqa: RUF001 - the report writes the sign for times

import json
import math
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import optuna
import pytest
from result_rows import cells
from search_records import START, VALID, side

from sp500.report import page
from sp500.report.search import figures, hyperparameters, results, tables
from sp500.report.search.hyperparameters import Trial
from sp500.report.search.results import Search
from sp500.report.search.verdicts import best, luck, sentences
from sp500.runs.results import SearchComparison
from sp500.runs.trials import TrialResult

DEFLATED = {"sharpe": 0.05, "days_apart": 300, "expected_max": 0.06, "probability": 0.331, "trials": 17}


def trial(key: str, loss: float | None, at: float | None = None, **overrides: Any) -> TrialResult:
    """A trial of two seconds that ended `at` seconds after the start."""
    return TrialResult(
        id=key,
        overrides={f"model.{name}": value for name, value in overrides.items()},
        status="failed" if loss is None else "ok",
        reason="it diverged" if loss is None else "",
        valid_loss=loss,
        seconds=2.0,
        finished=None if at is None else START + timedelta(seconds=at),
    )


def changed(trial: TrialResult, **changes: Any) -> TrialResult:
    return trial.model_copy(update=changes)


def of(trials: Sequence[TrialResult], **more: Any) -> Search:
    """The search of one arm with these trials."""
    return results.newest([side("s", 0, "sequential", 20.0, **more)], {"s": trials})


def grid(*, dead: bool = False) -> list[TrialResult]:
    """24 trials whose loss hangs on the learning rate, on the width ten times less, on nothing else."""
    found = []
    for number in range(24):
        lr, width, layers = 10.0 ** -(1 + number % 4), 32 * (1 + number // 4 % 3), 1 + number // 12
        loss = 1.0 + 0.1 * (number % 4) + 0.01 * (number // 4 % 3)
        found.append(trial(f"c{number:02}", loss, 2.0 * (number + 1), lr=lr, hidden=width, layers=layers))
    return [*found, trial("c99", None, 60.0, lr=0.1, hidden=32, layers=1)] if dead else found


# How far the best can be trusted.


def test_tries_failures_and_both_splits_of_the_chosen_config_are_told() -> None:
    found = of([changed(trial("a", 0.4), epochs=25)], failed=1, deflated_sharpe=DEFLATED)
    chosen, splits, luck = sentences(found)[2:]
    assert chosen == "Best of 18 configs tried, 1 of which failed: hidden 128 (validation loss 0.4)."
    assert "validation: R² 0.0020, Net Sharpe 0.80 (−0.10 to 1.70); on the test: R² −0.0100, Net Sharpe −0.10" in splits
    for part in ("0.79 a year", "0.95 for the best of 17 tries", "33.1%, usual is 95%"):
        assert part in luck
    table = tables.both_splits(found)
    assert cells(table, "Model") == ["chosen config", "buy-and-hold"] * 2
    assert cells(table, "Split") == ["validation", "validation", "test", "test"]
    assert cells(table, "MSE (10⁻⁴)") == ["1.000", "-", "2.000", "-"]
    assert cells(table, "Net Sharpe")[1] == "1.00 (0.10 to 1.90)"
    assert found.numbers["valid"] == VALID
    assert "improvement" not in found.numbers["test"]


def test_chosen_config_that_another_training_made_another_model_is_told_with_both_losses() -> None:
    told = side("s", 0, "packed", 20.0)
    for loss, said in ((0.41, True), (0.400001, False), (None, False)):
        again = told.model_copy(update={"best_loss": loss, "best_epoch": 3})
        _, *rest = best(results.newest([again], {}))
        assert ([line[:47] for line in rest] == ["Trained again alone, it reached 0.41 at epoch 3"]) == said


def test_best_configs_are_those_of_the_arm_that_named_the_best() -> None:
    records = [side("one", 0, "sequential", 9.0, 0.5), side("two", 1, "packed", 3.0, 0.4)]
    trials = {
        "one": [trial("c07", 0.5), trial("c08", 0.6), trial("c09", 0.7)],
        "two": [trial("c07", 0.4), trial("c08", 0.45)],
    }
    table = tables.best_trials(results.newest(records, trials))
    assert cells(table, "Valid loss") == ["0.400000", "0.450000"]
    assert table is not None
    assert table.caption == "The 2 best of 2 configs, packed without Ray"


def test_config_that_holds_the_index_is_called_buy_and_hold_without_a_probability() -> None:
    same = DEFLATED | {"days_apart": 7, "expected_max": None, "probability": None}
    (line,) = luck(of([], deflated_sharpe=same))
    assert line.endswith("like buy-and-hold on all but 7 validation dates.")


@pytest.mark.parametrize(
    ("probability", "said"),
    [(0.97, ": 97.0%"), (0.9999, ": above 99.9%"), (1e-9, ": below 0.1%"), (None, ": not known")],
)
def test_probability_is_told_without_false_certainty(probability: float | None, said: str) -> None:
    assert said in luck(of([], deflated_sharpe=DEFLATED | {"probability": probability}))[0]


def test_ratio_of_trades_of_several_days_is_annualised_by_their_number() -> None:
    (told,) = luck(of([], deflated_sharpe=DEFLATED, horizon=5))
    assert f"{0.06 * math.sqrt(252 / 5):.2f} for the best" in told


def test_luck_that_was_not_measured_is_said_not_to_be_known() -> None:
    (said,) = luck(of([]))
    assert said.startswith("Luck cannot be ruled out")
    assert luck(of([], metrics={"valid": {"accuracy": 0.5}, "test": {"accuracy": 0.4}, "naive": {}})) == []


# History.


def test_history_holds_the_trials_that_were_better_than_all_before() -> None:
    trials = [trial("a", 0.5, 2.0), trial("b", None, 3.0), trial("c", 0.6, 4.0), trial("d", 0.4, 9.0)]
    assert of(trials).numbers["history"] == {
        "sequential": [{"trial": 1, "seconds": 2.0, "loss": 0.5}, {"trial": 4, "seconds": 9.0, "loss": 0.4}]
    }


def test_trials_of_a_pack_began_when_the_pack_did() -> None:
    """Their seconds are a sixth of the pack's twelve."""
    pack = [changed(trial(key, loss, 12.0), pack=6) for key, loss in (("a", 0.5), ("b", 0.4))]
    found = of([*pack, changed(trial("c", 0.3, 24.0), pack=6)])
    assert found.sides[0].elapsed == {"a": 12.0, "b": 12.0, "c": 24.0}


def test_trials_stand_in_the_order_in_which_they_ended() -> None:
    again = [trial("a", 0.5, 8.0), trial("b", 0.6, 4.0)]
    assert [one.id for one in of(again).trials] == ["b", "a"]


@pytest.mark.parametrize("reason", ["an older ledger", "an interruption"])
def test_seconds_that_are_not_known_leave_the_number_of_the_trial(reason: str) -> None:
    old = reason == "an older ledger"
    found = of([trial("a", 0.5, None if old else 1.0), trial("b", 0.4, 2.0)], resumed=0 if old else 1)
    assert found.sides[0].elapsed is None
    assert [one["seconds"] for one in found.numbers["history"]["sequential"]] == [None, None]
    drawing = figures.history(found)
    assert drawing is not None
    assert "trials, in the order in which they ended" in drawing.svg


def test_loss_far_off_stands_on_the_edge_and_is_counted() -> None:
    losses = [1.0, 1.1, 1.2, 1.3, 500.0]
    assert hyperparameters.ceiling(losses) == pytest.approx(1.0 + 4 * 0.2)
    assert hyperparameters.ceiling(losses[:4]) == 1.3
    assert hyperparameters.ceiling([1.0, 1.0, 1.0, 7.0]) == 7.0
    drawing = figures.history(of([trial(f"{loss}", loss, loss) for loss in losses]))
    assert drawing is not None
    assert "a loss above 1.8 (1 of 5)" in drawing.caption


# Settings.


def test_settings_that_vary_have_their_scale() -> None:
    rows = [(0.001, 32, "zscore", 0.0, 1), (0.003, 64, "none", 0.2, 1), (0.01, 128, "none", 0.2, 1)]
    keys = ("lr", "hidden", "norm", "dropout", "layers")
    trials = [trial(str(n), 1.0, **dict(zip(keys, row, strict=True))) for n, row in enumerate(rows)]
    lr, hidden, norm, dropout = hyperparameters.list_varied(of(trials).trials)
    assert (lr.log, hidden.log, dropout.log) == (True, False, False)
    assert (norm.numeric, norm.values) == (False, ("zscore", "none"))
    # Even draws from near zero stay on an even scale.
    drawn = [trial(str(n), 1.0, dropout=0.004 + 0.02 * n, lr=1e-4 * 1.3**n) for n in range(25)]
    dropout, lr = hyperparameters.list_varied(of(drawn).trials)
    assert (dropout.log, lr.log) == (False, True)


def test_values_of_any_kind_can_be_drawn_and_weighed() -> None:
    kinds: list[Any] = [None, True, ["AAPL", "KO"], "a-name-that-is-much-too-long", 3]
    trials = [trial(str(n), 1.0 + n % 5, width=n, kind=kinds[n % 5]) for n in range(20)]
    found = of(trials)
    assert isinstance(found.importance, dict)
    assert set(found.importance) == {"model.width", "model.kind"}
    drawing = figures.settings(found)
    assert drawing is not None
    assert "AAPL+KO" in drawing.svg
    assert "a-name-that\u2026" in drawing.svg


def test_names_are_short_where_that_is_clear() -> None:
    trials = [Trial(id=str(n), status="ok", overrides={"train.lr": n, "model.seed": n, "data.seed": n}) for n in (1, 2)]
    found = hyperparameters.names(hyperparameters.list_varied(trials))
    assert found == {"train.lr": "lr", "model.seed": "model.seed", "data.seed": "data.seed"}


def test_figure_of_settings_keeps_the_most_important_ones_and_says_so() -> None:
    trials = [trial(str(n), 1.0 + n % 2, **{f"s{k}": n * (k + 2) % 11 for k in range(9)}, z=n % 2) for n in range(30)]
    drawing = figures.settings(of(trials))
    assert drawing is not None
    assert "8 of 10 settings" in drawing.caption
    assert ">z<" in drawing.svg
    assert figures.settings(of([trial("a", 1.0, lr=1), trial("b", 2.0, lr=1)])) is None
    assert figures.settings(of([trial("a", 1.0, lr=1), trial("b", 1.0, lr=2)])) is None


# Importance.


def test_importance_is_optunas_and_finds_what_decides_the_loss() -> None:
    found = of(grid()).importance
    assert isinstance(found, dict)
    assert list(found) == ["model.lr", "model.hidden", "model.layers"]
    assert sum(found.values()) == pytest.approx(1)
    study = optuna.create_study()
    for one in grid():
        values = one.overrides
        ranges = {
            "model.lr": optuna.distributions.FloatDistribution(1e-4, 0.1, log=True),
            "model.hidden": optuna.distributions.FloatDistribution(32, 96),
            "model.layers": optuna.distributions.FloatDistribution(1, 2),
        }
        study.add_trial(optuna.trial.create_trial(params=values, distributions=ranges, value=one.valid_loss))
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    assert found == pytest.approx(optuna.importance.get_param_importances(study, evaluator=evaluator))


def test_importance_does_not_hang_on_the_order_or_on_one_trial_that_diverged() -> None:
    assert of(grid()[::-1]).importance == of(grid()).importance
    spoiled = grid()
    spoiled[5] = changed(spoiled[5], valid_loss=1e9)
    found = of(spoiled).importance
    assert isinstance(found, dict)
    assert next(iter(found)) == "model.lr"


@pytest.mark.parametrize(
    ("trials", "why"),
    [
        (grid()[:7], "it needs 8 finished trials, and there are 7"),
        ([trial(str(n), 1.0 + n, lr=n) for n in range(9)], "it needs two settings that vary"),
        ([trial(str(n), 1.0, lr=n, hidden=n) for n in range(9)], "every trial ended with the same loss"),
    ],
)
def test_importance_that_cannot_be_known_leaves_a_remark(trials: list[TrialResult], why: str) -> None:
    found = of(trials)
    assert found.numbers["importance"] is None
    assert f"How much each setting mattered is not shown: {why}." in figures.figures(found)


# Tables.


def test_best_trials_are_ranked_with_the_seconds_of_each_arm() -> None:
    records = [side("s", 0, "sequential", 20.0), side("p", 1, "ray", 15.0)]
    found = results.newest(records, {"s": grid(), "p": [changed(one, seconds=3.0, pack=4) for one in grid()[:2]]})
    table = tables.best_trials(found)
    assert cells(table, "Id") == ["c00", "c12", "c04", "c16", "c08"]
    assert cells(table, "Seconds, one after another") == ["2.0 s"] * 5
    assert cells(table, "Seconds, Ray Tune") == ["3.0 s", *["-"] * 4]
    assert cells(table, "Together, Ray Tune")[0] == "4"


def test_loss_of_scaled_returns_is_told_from_their_mse() -> None:
    sentence = "does not compare with the test MSE"
    record = side("s", 0, "sequential", 20.0)
    for data, task, said in (({"norm": "zscore"}, "returns", True), ({"norm": "none"}, "returns", False),
                             ({"norm": "zscore"}, "direction", False)):  # fmt: skip
        found = results.newest([record.model_copy(update={"config": {"task": task, "data": data}})], {"s": grid()})
        table, drawing = tables.best_trials(found), figures.history(found)
        assert table is not None
        assert drawing is not None
        assert (sentence in table.note, sentence in drawing.caption) == (said, said)


def test_failed_configs_stand_once_per_reason_and_the_rest_is_counted() -> None:
    dead = [changed(trial(f"d{n:02}", None, 1.0, lr=n), reason=f"reason {max(n - 5, 0):02}") for n in range(30)]
    records = [side("s", 0, "sequential", 20.0), side("p", 1, "ray", 15.0)]
    table = tables.failures(results.newest(records, {"s": dead, "p": dead[:1]}))
    assert table is not None
    assert table.caption == "30 failed configs, by reason"
    assert table.rows[0].cells == ("reason 00", "6", "one after another and Ray Tune", "lr 0", "d00")
    assert len(table.rows) == 20
    assert table.note == "5 configs more failed for 5 further reasons."
    assert tables.failures(of(grid())) is None


def test_trials_on_different_data_are_compared_by_their_share_of_the_naive_loss() -> None:
    quiet = changed(trial("quiet", 0.2, 1.0, lr=1), naive_loss=0.1, dataset="KO, 30 days")
    wild = changed(trial("wild", 0.9, 2.0, lr=2), naive_loss=1.0, dataset="AAPL, 30 days")
    best = {"overrides": {"model.lr": 2}, "valid_loss": 0.9, "id": "wild", "score": 0.9}
    named = [best | {"dataset": "AAPL, 30 days"}, best | {"dataset": "KO, 30 days", "id": "quiet", "score": 2.0}]
    found = of([quiet, wild], best=best, by_dataset=named)
    assert cells(tables.best_trials(found), "Id") == ["wild", "quiet"]
    assert cells(tables.best_trials(found), "Of naive") == ["90.00%", "200.00%"]
    assert cells(tables.by_dataset(found), "Data") == ["AAPL, 30 days", "KO, 30 days"]
    assert "validation loss 0.9, 90.00% of that of always answering zero" in sentences(found)[2]
    assert [one["loss"] for one in found.numbers["history"]["sequential"]] == pytest.approx([2.0, 0.9])


def test_trials_are_compared_by_what_the_search_was_told_to_monitor() -> None:
    low = changed(trial("low", 0.2, 1.0, lr=1), naive_loss=1.0, dataset="KO", monitored=-0.6)
    right = changed(trial("right", 0.9, 2.0, lr=2), naive_loss=1.0, dataset="AAPL", monitored=-0.8)
    best = {"overrides": {"model.lr": 2}, "valid_loss": 0.9, "id": "right", "score": -0.8}
    named = [best | {"dataset": "AAPL"}, best | {"dataset": "KO", "id": "low", "score": -0.6}]
    record = side("s", 0, "sequential", 20.0, best=best, by_dataset=named)
    record.config["train"] = {"monitor": "accuracy", "monitor_mode": "max"}
    found = results.newest([record], {"s": [low, right]})
    assert (found.relative, found.loss) == (False, "minus accuracy")
    assert [one["loss"] for one in found.numbers["history"]["sequential"]] == [-0.6, -0.8]
    assert cells(tables.best_trials(found), "Id") == ["right", "low"]
    assert cells(tables.best_trials(found), "accuracy") == ["0.800000", "0.600000"]
    assert cells(tables.by_dataset(found), "accuracy") == ["0.800000", "0.600000"]
    assert sentences(found)[2].endswith("(accuracy 0.8).")


# The page.


def test_page_of_a_whole_search_is_the_same_for_the_same_runs(tmp_path: Path) -> None:
    records = [side("s", 0, "sequential", 20.0, failed=1, deflated_sharpe=DEFLATED), side("p", 1, "ray", 15.0)]
    trials = {"s": grid(dead=True), "p": grid()}
    first, second = (page.write(records, {}, trials, tmp_path / name) for name in "ab")
    assert first.path.read_bytes() == second.path.read_bytes()
    numbers = json.loads((tmp_path / "a" / "report.json").read_text())["search"]
    assert SearchComparison.__annotations__.keys() < set(numbers)
    assert list(numbers["importance"]) == ["model.lr", "model.hidden", "model.layers"]
    text = first.path.read_text()
    for part in (
        "seconds since the first trial began",
        "of every trial by its settings",
        "Importance: ",
        "1 failed config, by reason",
    ):
        assert part in text
