"""Numbers as portals write them: `1,234.56`, `$130.51`, and `43.6M` where things are counted."""

from __future__ import annotations

import re

import pandas as pd

MISSING = {"", "-", "na", "n/a", "nan", "null", "none", "<na>"}
CURRENCIES = "$€£¥"
SCALES = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
THOUSANDS = r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?"
PLAIN = re.compile(r"[\d\s.,/:'$€£¥%+()KMBTkmbt-]{1,25}")
"""Texts that errors repeat. Those with other letters they do not: an agent may name a file with secrets."""


def parse_numbers(text: pd.Series, *, counts: bool) -> pd.Series:
    """Return the numbers [row] of texts without blanks around them; NaN for a text that is none, and for <NA>.

    A sign of currency is read if all texts have it, and commas if all of them can only separate thousands: in prices
    1,234 alone may be a decimal comma. `counts`: of a volume, which has no decimals and may end in K, M, B or T.
    """
    numbers = pd.to_numeric(text, errors="coerce").astype(float)
    if not (numbers.isna() & text.notna()).any():
        return numbers
    for sign in CURRENCIES:
        if (text.str.startswith(sign) | text.str.endswith(sign)).all():
            text = text.str.strip(f"{sign} ")
    scale = text.str[-1:].str.upper().map(SCALES).fillna(1.0) if counts else 1.0
    text = text.str.replace(r"(?<=\d) ?[KMBT]$", "", case=False, regex=True) if counts else text
    with_comma = text[text.str.contains(",", regex=False, na=False)]
    certain = counts or text.str.contains(r"\.|,.*,").any()
    if certain and with_comma.str.fullmatch(THOUSANDS).all():
        text = text.str.replace(",", "", regex=False)
    return (pd.to_numeric(text, errors="coerce") * scale).astype(float)


def advise_number(value: str) -> str:
    """Return advice about a text where a number was expected; empty if its characters give no hint."""
    if "," in value and PLAIN.fullmatch(value):
        return "use a decimal point and no separator of thousands"
    sign = re.search(r"[^\d\s.-]", value) if PLAIN.fullmatch(value) else None
    return f"write plain numbers such as 1234.5 in the whole column, without {sign[0]}" if sign else ""
