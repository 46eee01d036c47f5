"""Logs of ended jobs are kept in bounds, however much a job printed."""

import json

import pytest

from sp500.jobs.executor import Line
from sp500.jobs.log_lines import LONGEST
from sp500.jobs.queue import log_archive
from sp500.jobs.state import Role


def printed(source, count, size):
    return (Line(Role.WORKER, source, f"{number:<{size}}") for number in range(count))


@pytest.mark.parametrize(("count", "size"), [(log_archive.LINES + 5, 8), (400, LONGEST), (40, 20 * LONGEST)])
def test_end_of_a_large_log_is_kept_within_its_lines_and_characters(tmp_path, count, size):
    log_archive.keep(tmp_path / "a", printed("w", count, size))
    lines = list(log_archive.read(tmp_path / "a"))
    assert len(lines) <= log_archive.LINES
    assert sum(len(line.text) for line in lines) <= log_archive.CHARACTERS
    assert max(len(line.text) for line in lines) <= LONGEST
    numbers = [int(line.text) for line in lines]
    assert numbers == list(range(count - len(numbers), count))
    assert len(numbers) >= min(count, log_archive.LINES, log_archive.CHARACTERS // (LONGEST + 1))


def test_process_that_prints_much_takes_no_lines_of_another(tmp_path):
    log_archive.keep(tmp_path / "a", [Line(Role.HEAD, "h", "ready"), *printed("w", 400, LONGEST)])
    rows = [json.loads(row) for row in (tmp_path / "a" / log_archive.FILE).read_text().splitlines()]
    assert rows[0] == {"role": "head", "source": "h", "text": "ready"}
