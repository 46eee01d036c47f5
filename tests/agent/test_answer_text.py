"""How much of a log one answer has."""

from sp500.agent import answer_text


def test_log_of_an_answer_is_its_end_and_tells_what_is_left_out():
    lines, before = answer_text.limit_lines(f"line {number}" for number in range(250))
    assert (len(lines), lines[0], lines[-1], before) == (200, "line 50", "line 249", 50)


def test_log_of_long_lines_stays_under_its_length():
    lines, before = answer_text.limit_lines(["x" * 5000] * 100)
    assert {len(line) for line in lines} == {1000}
    assert sum(len(line) + 1 for line in lines) <= 20_000
    assert len(lines) + before == 100


def test_control_characters_of_a_log_are_left_out():
    assert answer_text.limit_lines(["\x1b[31mred\x1b[0m\x07\tend\r"]) == (["red\tend"], 0)
