"""The line of a log that says how far a run is: what is written is what is read."""

import io
import time
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from sp500 import progress
from sp500.console import progress as console_progress
from sp500.console.progress import Progress
from sp500.progress import Meter, RunProgress, Unit

MOMENT = datetime(2026, 1, 2, 10, 0, 0, tzinfo=UTC)
NUMBERS = st.none() | st.floats(1e-9, 1e12)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("2026-01-02T10:00:00Z epoch 1/25", RunProgress("epoch", 1, 25, False, None, None, None, MOMENT.timestamp())),
        (
            "2026-01-02T10:00:00Z epoch 7 of at most 25, 1240 samples/s, best 0.981, 183 s left: train 1.01",
            RunProgress("epoch", 7, 25, True, 1240.0, 0.981, MOMENT.timestamp() + 183, MOMENT.timestamp()),
        ),
        (
            "2026-01-02T10:00:00Z trial 3/18, best -2.5e-06, 0 s left: 2 running; lr 0.1: no finite loss",
            RunProgress("trial", 3, 18, False, None, -2.5e-6, MOMENT.timestamp(), MOMENT.timestamp()),
        ),
    ],
)
def test_line_is_read_to_the_last_figure(line, expected):
    assert progress.parse([line]) == expected


@pytest.mark.parametrize(
    "line",
    ["", "epoch 1/25", "2026-01-02T10:00:00Z step 3/4", " 2026-01-02T10:00:00Z epoch 1/25", "2026-01-02 epoch 1/2"],
)
def test_other_lines_give_no_progress(line):
    assert progress.parse([line]) is None


def test_last_of_many_lines_counts():
    lines = [
        "2026-01-02T10:00:00Z epoch 1/25",
        "2026-01-02T10:00:01Z epoch 2/25",
        "Traceback",
        "ValueError: epoch 3/25",
    ]
    assert progress.parse(lines).done == 2


@given(NUMBERS, NUMBERS, st.none() | st.integers(0, 10**7), st.booleans(), st.text(), st.integers(0, 10**6))
def test_what_is_written_is_what_is_read(rate, best, left, at_most, text, done):
    now = MOMENT.timestamp()
    ends = None if left is None else now + left
    written = RunProgress("fold", done, done + 1, at_most, rate, best, ends, now)
    out = io.StringIO()
    text = "".join(sign for sign in text if sign.isprintable())  # as the console makes it
    Console(file=out, width=80).print(written.line(text), highlight=False, markup=False, soft_wrap=True)
    read = progress.parse([out.getvalue().removesuffix("\n")])
    assert (read.done, read.total, read.at_most, read.ends, read.updated) == (done, done + 1, at_most, ends, now)
    assert read.samples_per_second == (None if rate is None else pytest.approx(rate, rel=6e-3))
    assert read.best_loss == (None if best is None else pytest.approx(best, rel=1e-5))
    assert progress.load(written.dump()) == written


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"kind": "epoch", "later": 1}'])
def test_other_text_is_refused(text):
    with pytest.raises(ValueError):  # noqa: PT011 - json's own among them
        progress.load(text)


def test_line_of_the_console_is_one_that_can_be_read():
    out = io.StringIO()
    meter = Meter("trial", 9, since=MOMENT.timestamp(), parallel=True)
    with Progress("trial", 9, Console(file=out, force_terminal=False), done=4, meter=meter) as shown:
        ended = Unit(datetime.fromtimestamp(MOMENT.timestamp() + 8, UTC), 8.0, samples=80, loss=0.25)
        shown.advance("a name\nwith a line end", unit=ended)
    (line,) = out.getvalue().splitlines()
    read = progress.parse([line])
    assert (read.done, read.total, read.samples_per_second, read.best_loss) == (5, 9, 10.0, 0.25)
    assert read.eta_seconds(MOMENT.timestamp() + 8) == 32.0


@pytest.mark.parametrize("name", ["FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"])
def test_file_gets_lines_that_can_be_read_whatever_the_environment_says_of_terminals(name, monkeypatch, capsys):
    monkeypatch.setenv(name, "1")
    with Progress("epoch", 2) as shown:
        shown.advance("loss 0.5")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.isprintable()
    assert progress.parse([line]).done == 1


def test_call_from_python_writes_no_lines_into_a_file(capsys):
    with console_progress.watched_only(), Progress("epoch", 2) as shown:
        shown.advance("loss 0.5")
    assert capsys.readouterr().err == ""


def test_dumb_terminal_gets_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    out = io.StringIO()
    with Progress("epoch", 2, Console(file=out, force_terminal=True)) as shown:
        shown.advance("loss 0.5")
    assert progress.parse(out.getvalue().splitlines()).done == 1


def test_narrow_terminal_cuts_the_text_and_no_number():
    out = io.StringIO()
    with Progress("trial", 1008, Console(file=out, force_terminal=True, width=60, _environ={}), done=5) as shown:
        shown.advance("10 running, 0 failed; hidden 128, lr 0.001, dropout 0.2: 0.414992")
    assert "6/1008" in out.getvalue()
    assert "…" in out.getvalue()


def test_many_lines_of_one_second_are_the_first_each_new_best_each_failure_and_the_last():
    out = io.StringIO()
    with Progress("trial", 6, Console(file=out), meter=Meter("trial", 6, since=0.0)) as shown:
        for loss in (0.5, 0.6, 0.4, None, 0.7, 0.8):
            shown.advance("", unit=Unit(datetime.now(UTC), loss=loss), news=loss is None)
    assert [progress.parse([line]).done for line in out.getvalue().splitlines()] == [1, 3, 4, 6]


def test_last_line_of_a_burst_comes_when_its_second_is_over(monkeypatch):
    monkeypatch.setattr(console_progress, "BETWEEN", 0.1)
    out = io.StringIO()
    with Progress("trial", 99, Console(file=out), meter=Meter("trial", 99, since=0.0)) as shown:
        for end in (40, 80):
            for _ in range(40):
                shown.advance("", unit=Unit(datetime.now(UTC), loss=0.5))
            until = time.monotonic() + 20
            while progress.parse(out.getvalue().splitlines()).done < end and time.monotonic() < until:
                time.sleep(0.01)
            assert progress.parse(out.getvalue().splitlines()).done == end


def test_line_after_a_resume_keeps_the_best_of_the_earlier_attempt():
    earlier = [Unit(datetime(2026, 1, 1, tzinfo=UTC), 9.0, samples=900, loss=loss) for loss in (0.5, 0.25, 0.75)]
    out = io.StringIO()
    with Progress("epoch", 9, Console(file=out), done=3, earlier=earlier) as shown:
        shown.advance("", done=4, unit=Unit(datetime.now(UTC), loss=0.5))
    line = progress.parse([out.getvalue().rstrip("\n")])
    assert line is not None
    assert (line.done, line.best_loss) == (4, 0.25)


def test_units_that_still_run_count_half_in_the_time_that_is_left():
    meter = Meter("trial", 36, since=MOMENT.timestamp(), parallel=True)
    ended = datetime.fromtimestamp(MOMENT.timestamp() + 7, UTC)
    meter.add(Unit(ended, 7.0, running=18))
    # Ten of 36 in 7 s: 26 more take 18.2 s, and not 245 s as after 1 of 36.
    assert meter.progress(1).eta_seconds(ended.timestamp()) == pytest.approx(18.2)
    meter.add(Unit(ended, 7.0, running=0))
    assert meter.progress(36).eta_seconds(ended.timestamp()) == 0
