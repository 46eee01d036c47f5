import json

import pytest

from sp500.errors import ConfigError
from sp500.runs.checksums import append_line
from sp500.runs.trials import Ledger, TrialResult


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


DAMAGES = {
    "flipped digit": lambda line: line.replace(b"0.5", b"0.4"),
    "torn": lambda line: line[:40],
    "blank": lambda line: b"",
    "not UTF-8": lambda line: b"\xff" + line[1:],
    "not a number": lambda line: line.replace(b"0.5", b"NaN"),
    "without its checksum": lambda line: line[: line.index(b', "sha256"')] + b"}",
    "another object": lambda line: b"[1]",
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_line_is_refused_by_file_and_number(tmp_path, damage):
    ledger = Ledger(tmp_path)
    for name in ("a", "b", "c"):
        ledger.add(result(name, 0.5))
    path = tmp_path / "trials.jsonl"
    first, second, third = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([first, damage(second), third, b""]))
    with pytest.raises(ConfigError, match=f"{path}, line 2 is damaged"):
        Ledger(tmp_path)
    path.write_bytes(b"\n".join([first, third, b""]))  # what the message advises
    assert set(Ledger(tmp_path).results) == {"a", "c"}


def test_line_of_another_kind_of_result_is_refused_although_its_checksum_is_right(tmp_path):
    append_line(tmp_path / "trials.jsonl", '{"fold": 1}')
    with pytest.raises(ConfigError, match="line 1 is damaged"):
        Ledger(tmp_path)
