"""Faults of settings, by their key."""

from __future__ import annotations

from typing import Annotated, Literal

import pytest
from pydantic import Field

from sp500.config import Frozen
from sp500.errors import ConfigError
from sp500.schema import validate


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
def test_fault_has_its_key_path_and_no_name_of_a_type(data: dict[str, object], fault: str) -> None:
    with pytest.raises(ConfigError) as refused:
        validate(Table, data, "f")
    assert fault in str(refused.value)
    assert "[" not in str(refused.value).partition("got")[0]
