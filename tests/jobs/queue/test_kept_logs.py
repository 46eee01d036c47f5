"""Logs of ended jobs are kept in bounds, however much a job printed."""

import json

import pytest

from sp500.jobs.executor import Line
from sp500.jobs.log_lines import LONGEST
from sp500.jobs.queue import kept_logs
from sp500.jobs.state import Role


def printed(source, count, size):
    return (Line(Role.WORKER, source, f"{number:<{size}}") for number in range(count))


@pytest.mark.parametrize(("count", "size"), [(kept_logs.LINES + 5, 8), (400, LONGEST), (40, 20 * LONGEST)])
def test_end_of_a_large_log_is_kept_within_its_lines_and_characters(tmp_path, count, size):
    kept_logs.keep(tmp_path / "a", printed("w", count, size))
    lines = list(kept_logs.read(tmp_path / "a"))
    assert len(lines) <= kept_logs.LINES
    assert sum(len(line.text) for line in lines) <= kept_logs.CHARACTERS
    assert max(len(line.text) for line in lines) <= LONGEST
    numbers = [int(line.text) for line in lines]
    assert numbers == list(range(count - len(numbers), count))
    assert len(numbers) >= min(count, kept_logs.LINES, kept_logs.CHARACTERS // (LONGEST + 1))


def test_process_that_prints_much_takes_no_lines_of_another(tmp_path):
    kept_logs.keep(tmp_path / "a", [Line(Role.HEAD, "h", "ready"), *printed("w", 400, LONGEST)])
    rows = [json.loads(row) for row in (tmp_path / "a" / kept_logs.FILE).read_text().splitlines()]
    assert rows[0] == {"role": "head", "source": "h", "text": "ready"}
