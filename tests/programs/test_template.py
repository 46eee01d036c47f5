"""Commands with places for values."""

from pathlib import Path

import pytest

from sp500.errors import ConfigError
from sp500.programs import template


@pytest.mark.parametrize(
    ("command", "values", "words"),
    [
        ("run --lr {lr}", {"lr": 1e-05}, ["run", "--lr", "1e-05"]),
        ("run --lr={lr}x{lr}", {"lr": 3}, ["run", "--lr=3x3"]),
        ("run '{a}' \"{a} b\"", {"a": "x y; touch z"}, ["run", "x y; touch z", "x y; touch z b"]),
        ("run {a}", {"a": "{b} '\"$HOME`id`"}, ["run", "{b} '\"$HOME`id`"]),
        ("run {{a}} {{{a}}}", {"a": 1}, ["run", "{a}", "{1}"]),
        ("run {a}", {"a": -0.5}, ["run", "-0.5"]),
        ("run --a={a}", {"a": "--evil"}, ["run", "--a=--evil"]),
        ("run {folder}/out {a}", {"a": True}, ["run", "/t/out", "true"]),
        ("run {model.hidden}", {"model.hidden": [1, 2]}, ["run", "[1, 2]"]),
    ],
)
def test_value_is_part_of_its_word(command, values, words):
    parsed = template.parse(command)
    parsed.check([*values])
    assert parsed.fill(values, Path("/t")) == words


@pytest.mark.parametrize("command", ["", "  ", "run 'a", "run {a", "run a}"])
def test_command_that_is_none_is_refused(command):
    with pytest.raises(ConfigError, match="command"):
        template.parse(command)


def test_unknown_name_unused_value_and_text_that_looks_like_a_flag_are_refused():
    parsed = template.parse("run --lr {learning_rate}")
    with pytest.raises(ConfigError, match=r"unknown name \{learning_rate\}; did you mean \{learning_rat\}"):
        parsed.check(["learning_rat"])
    with pytest.raises(ConfigError, match="for momentum"):
        parsed.check(["learning_rate", "momentum"])
    with pytest.raises(ConfigError, match="--evil"):
        parsed.fill({"learning_rate": "--evil"}, Path())


def test_script_is_the_program_itself_or_a_file_with_the_suffix_of_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("run", "train.py", "data.txt"):
        Path(name).touch()
    assert template.parse("python3 -u data.txt train.py").script == Path("train.py")
    assert template.parse("./run train.py").script == Path("run")
    assert template.parse("touch data.txt").script is None
