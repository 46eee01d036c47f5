"""The last lines of a log, against those that Python splits off."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sp500.jobs.local import log_file


def told(path, tail):
    return list(log_file.lines(path, tail=tail, more=lambda: False))


@given(st.lists(st.text("ab\u00e9", max_size=5), max_size=12), st.booleans(), st.integers(0, 15) | st.none())
def test_last_lines_are_those_of_the_whole_text(words, ended, tail):
    text = "\n".join(words) + "\n" * ended
    expected = text.splitlines()
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setattr(log_file, "BLOCK", 3)
        path = Path(folder, "log")
        path.write_text(text)
        assert told(path, tail) == (expected if tail is None else expected[len(expected) - min(tail, len(expected)) :])


def test_tail_of_a_huge_log_reads_little_of_it(tmp_path):
    path = tmp_path / "log"
    with path.open("wb") as file:
        file.truncate(2**36)  # 64 GiB of zeros that lie on no disk
        file.seek(0, 2)
        file.write(b"\nlast but one\nlast\n")
    assert told(path, 2) == ["last but one", "last"]


def test_bytes_that_are_no_text_are_replaced_and_carriage_returns_of_line_ends_dropped(tmp_path):
    (tmp_path / "log").write_bytes(b"a\xffb\r\n10 %\r20 %\n")
    assert told(tmp_path / "log", None) == ["a\ufffdb", "10 %\r20 %"]


def test_line_without_end_comes_in_pieces(tmp_path):
    (tmp_path / "log").write_bytes(b"x" * (log_file.LONGEST + 1))
    assert [len(piece) for piece in told(tmp_path / "log", None)] == [log_file.LONGEST, 1]


def test_line_that_is_written_in_two_parts_comes_once(tmp_path):
    path = tmp_path / "log"
    parts = iter([b"be", b"gun\nend", b"ed"])

    def more():
        with path.open("ab") as file:
            part = next(parts, None)
            file.write(part or b"")
        return part is not None

    path.touch()
    assert list(log_file.lines(path, tail=None, more=more)) == ["begun", "ended"]


def test_missing_log_has_no_lines(tmp_path):
    assert told(tmp_path / "log", None) == []
