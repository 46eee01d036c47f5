"""Lines of a text that comes in pieces, against those of the whole text."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sp500.jobs import log_lines
from sp500.jobs.log_lines import LineSplitter, Tail, last_message


@given(st.lists(st.text("ab\r\n", max_size=6), max_size=8))
def test_pieces_of_any_size_give_the_lines_of_the_whole(pieces):
    splitter = LineSplitter()
    found = [line for piece in pieces for line in splitter.add(piece)] + splitter.rest()
    whole = re.split("\r\n|\n|\r", "".join(pieces))
    assert found == (whole[:-1] if whole[-1] == "" else whole)


def test_long_line_comes_in_pieces_however_it_arrives():
    text = "x" * (2 * log_lines.LONGEST) + "y\nz"
    for size in (1, 7, 9_999, 30_000):
        splitter = LineSplitter()
        found = [line for at in range(0, len(text), size) for line in splitter.add(text[at : at + size])]
        assert [len(line) for line in found] == [log_lines.LONGEST, log_lines.LONGEST, 1]
        assert splitter.rest() == ["z"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ""),
        ("a\nb\n\n", "b"),
        ("Traceback:\n  File x\nValueError: no\n", "ValueError: no"),
        (
            "epoch 1\nSP500Error: rank 1 ended with exit code 3\n  epoch 2\n",
            "SP500Error: rank 1 ended with exit code 3",
        ),
        ("  all\n  indented", "  indented"),
        (
            "RuntimeError: Error(s) for Linear:\n\tsize mismatch for weight\n\tsize mismatch for bias\n",
            "RuntimeError: Error(s) for Linear: size mismatch for weight",
        ),
    ],
)
def test_last_message_is_the_last_line_that_is_no_detail_of_one_above(text, message):
    assert last_message(text) == message


def test_last_lines_are_bounded_in_number_and_in_characters():
    tail = Tail(5)
    tail.add(str(number) for number in range(9))
    assert list(tail) == ["4", "5", "6", "7", "8"]
    tail = Tail(10**9)
    tail.add("x" * log_lines.LONGEST for _ in range(1000))
    assert sum(map(len, tail)) <= log_lines.TAIL
