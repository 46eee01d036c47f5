"""Errors of work that must not end its caller, and steps that are undone."""

import pytest

from sp500.errors import attempt, undo_on_error


def test_attempt_returns_the_result_or_what_is_made_of_any_error():
    assert attempt(lambda: 1 / 2, lambda _: -1.0) == 0.5
    assert attempt(lambda: 1 / 0, lambda _: -1.0) == -1.0


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit])
def test_attempt_lets_signals_and_exits_pass(end):
    def work():
        raise end

    with pytest.raises(end):
        attempt(work, lambda _: None)


@pytest.mark.parametrize("end", [ValueError, KeyboardInterrupt, SystemExit])
def test_step_that_is_not_completed_is_undone_once_and_its_error_goes_on(end):
    undone = []
    with pytest.raises(end), undo_on_error(lambda: undone.append(1)):
        raise end
    assert undone == [1]


def test_completed_step_is_not_undone_also_when_it_returns():
    undone = []

    def step():
        with undo_on_error(lambda: undone.append(1)):
            return "done"

    assert step() == "done"
    with undo_on_error(lambda: undone.append(1)):
        pass
    assert undone == []
