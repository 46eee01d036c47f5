import json

from sp500.tuning.ledger import Ledger, TrialResult


def result(name: str, loss: float | None = None) -> TrialResult:
    status = "failed" if loss is None else "ok"
    return TrialResult(id=name, overrides={"model.hidden": 8}, status=status, valid_loss=loss, reason="")


def test_results_are_there_for_the_next_process(tmp_path):
    first = Ledger(tmp_path)
    first.add(result("a", 0.5))
    first.add(result("b"))
    assert Ledger(tmp_path).results == first.results


def test_line_cut_off_by_a_kill_is_dropped_and_the_next_one_stands_alone(tmp_path):
    Ledger(tmp_path).add(result("a", 0.5))
    path = tmp_path / "trials.jsonl"
    path.write_text(path.read_text() + '{"id": "b", "over')
    again = Ledger(tmp_path)
    assert set(again.results) == {"a"}
    again.add(result("c", 0.25))
    assert [json.loads(line)["id"] for line in path.read_text().splitlines()] == ["a", "c"]


def test_best_is_the_lowest_loss_and_failed_trials_have_none(tmp_path):
    ledger = Ledger(tmp_path)
    assert ledger.best() is None
    for name, loss in (("c", None), ("b", 0.4), ("a", 0.4), ("d", 0.9)):
        ledger.add(result(name, loss))
    assert ledger.best().id == "a"
