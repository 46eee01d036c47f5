"""Faults of settings, by their key."""

from __future__ import annotations

from typing import Annotated, Literal

import pytest
from pydantic import Field

from sp500.config import Frozen
from sp500.errors import ConfigError
from sp500.schema import read_value, read_yaml, validate


class Rate(Frozen):
    price: float = 1.0


class Table(Frozen):
    types: dict[str, Rate] = Field({})
    places: dict[Literal["here", "there"], Rate] = Field({})
    keep: Literal["best", "all"] | Annotated[int, Field(gt=1)] = 2
    sizes: tuple[Annotated[int, Field(gt=0)], ...] = Field((1,), min_length=1)


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        ({"types": {"a": {"prise": 1}}}, "f: unknown key types.a.prise; did you mean types.a.price?"),
        ({"types": {2024: {"prise": 1}}}, "f: unknown key types.2024.prise; did you mean types.2024.price?"),
        ({"places": {"her": {}}}, "f: places.her: Input should be 'here' or 'there', got 'her'"),
        ({"keep": 0}, "f: keep: Input should be 'best' or 'all'; or: Input should be greater than 1, got 0"),
        ({"sizes": [1, 0]}, "f: sizes.1: Input should be greater than 0, got 0"),
        ({"sizes": []}, "f: sizes: Tuple should have at least 1 item"),
    ],
)
def test_fault_has_its_key_path_and_no_name_of_a_type(data, fault):
    with pytest.raises(ConfigError) as refused:
        validate(Table, data, "f")
    assert fault in str(refused.value)
    assert "[" not in str(refused.value).partition("got")[0]


@pytest.mark.parametrize(
    "text",
    ["16:9", "1:1:1", "1_000", "0123", "no", "on", "y", "Off", "2024-01-02", "0x1f", "# 3", "a: b", "x # y", "- 1"],
)
def test_text_stays_text(text):
    assert read_value(text) == text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12), ("-0.5", -0.5), (".5", 0.5), ("1.", 1.0), ("1e-4", 1e-4), ("+1.5E3", 1500.0), ("true", True),
        ("False", False), ("null", None), ('"12"', "12"), ("[1", "[1"),
        ("[1, no, {a: 16:9}]", [1, "no", {"a": "16:9"}]),
    ],
)  # fmt: skip
def test_numbers_constants_and_brackets_are_values(text, value):
    read = read_value(text)
    assert (read, type(read)) == (value, type(value))


def test_settings_files_read_as_the_command_line_does():
    text = "ratio: 16:9\ntickers: [ON, NO, 'TRUE']\nlr: 1e-3\nday: 2024-01-02\nold: 0123"
    assert read_yaml(text + "\nboth: &b {a: 1}\nin: {<<: *b, c: ~}") == {
        "ratio": "16:9",
        "tickers": ["ON", "NO", "TRUE"],
        "lr": 1e-3,
        "day": "2024-01-02",
        "old": "0123",
        "both": {"a": 1},
        "in": {"a": 1, "c": None},
    }
