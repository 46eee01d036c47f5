"""Price tables from CSV and Parquet files, long or wide.

Long: `date,ticker,close[,open,high,low,volume]`, `ticker` optional for one series; further columns of numbers are read
where they are asked for, and named where not. Wide: `date` and a column of closing
prices per ticker. Columns may be separated by commas, semicolons or tabs. A byte-order mark, CRLF line ends, upper-case
headings, two rows of them and `Symbol` for `ticker` are accepted. Where a long table has `Adj Close`, that is the
close, and the other prices of the day are scaled with it; dividends and splits, which it counts already, are left out.
So is a column without a name that holds no prices.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection
from pathlib import Path

import numpy as np
import pandas as pd
from pandas.api import types

from sp500.data.sources import headings
from sp500.data.sources.headings import ADJUSTED, FIELDS, UNUSED
from sp500.data.sources.notation import MISSING, PLAIN, advise_number, parse_numbers
from sp500.data.sources.plain_text import find_other_kind
from sp500.data.validation import Fault, Tables, refuse
from sp500.errors import DataError
from sp500.formatting import some

# New York's own offset changes twice a year: two offsets that are one zone.
NEW_YORK = {"-05:00", "-04:00", "-0500", "-0400"}
ZONE = r"\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?\s*(Z|[+-]\d{2}:?\d{2}|[A-Z]{3,4})$"
# What pandas calls columns without a name on the way through a file, and what it calls an index that becomes a column.
NAMELESS = re.compile(r"((Unnamed: \d+(_level_\d+)?|__index_level_\d+__)(\.\d+)*)?")
NAMELESS_INDEX = re.compile(r"(index|level_\d+)(\.\d+)*")
# Steps of row numbers that go one way: those of files put together begin again. Of prices about half fall.
ONE_WAY = 0.95
USUAL = {*FIELDS, ADJUSTED, *["ticker", "price", "day", "time", "datetime", "timestamp", "name", "last"]}
"""Headings that errors repeat. Others they do not: an agent may name a file with secrets."""
EXPECTED = "expected date,ticker,close[,open,high,low,volume], or date and one column of prices per ticker"


def to_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table of prices as a file has it: without an index, which may hold the dates."""
    if isinstance(table.index, pd.DatetimeIndex) and table.index.name is None:
        table = table.rename_axis(index="date")
    table = table.reset_index() if any(table.index.names) else table
    return table.set_axis([str(name) for name in table.columns], axis=1)


def read_table(path: Path, today: pd.Timestamp, columns: Collection[str] | None = ()) -> tuple[Tables, list[Fault]]:
    """Read tables [date, ticker] per field, dates in order and each once, and the faults repaired on the way.

    `columns` are further columns of a long file that have to be there; None: all that hold numbers. A date of two
    digits for the year is before `today`. Raises DataError that names the file, and rule, ticker and date of every
    fault refused.
    """
    frame = _read(path)
    if frame.empty:
        raise DataError(f"{path}: empty: the file has no rows; {EXPECTED}")
    faults: list[Fault] = []
    frame, is_long = _name_columns(_leave_out_nameless(frame, path, faults), path)
    frame["date"] = _dates(frame["date"], path, faults, today)
    _check_columns(columns, frame, path, is_long=is_long)
    long = (
        _long(frame, path, columns, faults)
        if is_long
        else frame.melt(id_vars="date", var_name="ticker", value_name="close")
    )
    own = [name for name in long.columns if name not in {"date", "ticker", ADJUSTED, *FIELDS}]
    if hidden := [ticker for ticker in long["ticker"].unique() if not str(ticker).isprintable()]:
        raise DataError(f"{path}: ticker {ascii(hidden[0])[:40]} has a character that cannot be seen; type it again")
    for name in [*{*FIELDS, ADJUSTED}.intersection(long.columns), *own]:
        long[name] = _numbers(long, name, path)
    if ADJUSTED in long.columns:
        long = _adjust(long, faults)
    long, more = in_order(long)
    try:
        refuse(faults + more)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    return tables_of(long), faults + more


def in_order(long: pd.DataFrame) -> tuple[pd.DataFrame, list[Fault]]:
    """Return long rows in order of date, each ticker and date once, and what was repaired or has to be refused."""
    faults: list[Fault] = []
    return _unique(_sort_rows(long, faults), faults), faults


def tables_of(long: pd.DataFrame) -> Tables:
    """Return tables [date, ticker] of long rows."""
    tables = {
        name: long.pivot(index="date", columns="ticker", values=name).sort_index()
        for name in long.columns
        if name not in {"date", "ticker"}
    }
    for table in tables.values():
        table.columns.name = None
    return tables


def _read(path: Path) -> pd.DataFrame:
    if not path.exists():
        raise DataError(
            f"data.source {path}: no such file; expected bundled, yfinance, or the path of a CSV or Parquet file"
        )
    try:
        if path.suffix.lower() in {".parquet", ".pq"}:
            return _with_date(pd.read_parquet(path), path)
        _refuse_damage(path)
        # All as text: a ticker may be NA or 0005, and pandas would rename a duplicate column.
        table = pd.read_csv(
            path,
            sep=_separator(path),
            encoding="utf-8-sig",
            header=None,
            dtype=str,
            keep_default_na=False,
            skipinitialspace=True,
        )
        return _with_headings(table, path)
    except pd.errors.EmptyDataError:
        raise DataError(f"{path}: empty: the file has no header and no rows; {EXPECTED}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not UTF-8 ({error.reason}); save it as CSV in UTF-8") from None
    except (pd.errors.ParserError, OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as a table ({error}); {EXPECTED}") from error


def _separator(path: Path) -> str:
    """Return the separator of the columns in the first line."""
    with path.open(encoding="utf-8-sig") as file:
        header = file.readline()
    return max(",;\t", key=header.count)


def _refuse_damage(path: Path) -> None:
    """Raise DataError for a file that is no text, or for a broken line, with its number."""
    with path.open("rb") as file:
        if kind := find_other_kind(file.read(8)):
            raise DataError(f"{path}: is {kind}; expected CSV in UTF-8 or Parquet: unpack it, or save it so")
    with path.open(encoding="utf-8-sig") as lines:
        for row, line in enumerate(lines, 1):
            if "\0" in line:
                raise DataError(f"{path}: row {row}: has a byte of 0, as after a power cut; restore the file")
            # Where a quote is not closed, all lines up to the next one are one value.
            if line.count('"') % 2:
                raise DataError(f"{path}: row {row}: has a quote that this row does not close; remove it")


def _with_headings(table: pd.DataFrame, path: Path) -> pd.DataFrame:
    """Return a CSV file's text by its headings; the index counts rows from 1, the first heading."""
    count = headings.count_headings(table)
    frame = table.iloc[count:].set_axis(range(count + 1, len(table) + 1))
    if count == 1:
        return frame.set_axis(table.iloc[0].str.strip(), axis=1)
    return _stack(frame.set_axis(pd.MultiIndex.from_frame(table.iloc[:2].T), axis=1), path)


def _with_date(frame: pd.DataFrame, path: Path) -> pd.DataFrame:
    """Return a Parquet file's frame with its index of dates, or of dates and tickers, if it has one, as columns."""
    index = frame.index
    levels = index.levels if isinstance(index, pd.MultiIndex) else [index]
    other = "ticker" if len(levels) == 2 else None
    usual = ["date" if isinstance(level, pd.DatetimeIndex) else other for level in levels]
    names = [own or name for own, name in zip(index.names, usual, strict=True)]
    if any(names):
        frame = frame.rename_axis(names).reset_index()
    frame = frame.set_axis(range(2, len(frame) + 2))
    return _stack(frame, path) if frame.columns.nlevels > 1 else frame


def _stack(frame: pd.DataFrame, path: Path) -> pd.DataFrame:
    """Return long rows of a frame with two rows of headings."""
    long = headings.stack_tickers(frame) if frame.columns.nlevels == 2 else None
    if long is None:
        raise DataError(f"{path}: has {frame.columns.nlevels} rows of headings; {EXPECTED}: write one row of them")
    return long


def _leave_out_nameless(frame: pd.DataFrame, path: Path, faults: list[Fault]) -> pd.DataFrame:
    """Return the frame without nameless columns that have no prices: row numbers, and empty ones after a last comma."""
    kept = []
    for number, name in enumerate(frame.columns):
        heading, column = str(name).strip(), frame.iloc[:, number]
        nameless = bool(NAMELESS.fullmatch(heading))
        holds = _without_prices(column) if nameless or NAMELESS_INDEX.fullmatch(heading) else ""
        if holds:
            detail = f"has no name and {holds}; left out"
            faults.append(Fault("nameless", "*", f"column {number + 1}", detail, repaired=True))
        elif nameless:
            raise DataError(f"{path}: column {number + 1} has no heading; write date or its ticker there, or delete it")
        else:
            kept.append(number)
    return frame.iloc[:, kept]


def _without_prices(column: pd.Series) -> str:
    """Return the reason that a column holds no prices; empty if it may."""
    text = column.astype("string").str.strip().fillna("")
    if (text == "").all():
        return "is empty"
    numbers = pd.to_numeric(text, errors="coerce").to_numpy(float)  # of dates: not a number
    steps = np.diff(numbers)
    one_way = max((steps > 0).sum(), (steps < 0).sum()) >= ONE_WAY * len(steps)
    return "counts rows" if one_way and (numbers % 1 == 0).all() else ""


def _name_columns(frame: pd.DataFrame, path: Path) -> tuple[pd.DataFrame, bool]:
    """Return the frame with plain column names, and whether it is long. In a wide one LOW and OPEN are tickers."""
    names = [str(name).strip() for name in frame.columns]
    names = [headings.name_usual(name) for name in names]
    lower = {name.lower() for name in names}
    if "close" not in lower:
        closes = {ADJUSTED, "price"} if {"open", "high", "low"} <= lower else {ADJUSTED}
        names = ["close" if name.lower() in closes else name for name in names]
    is_long = bool({"ticker", "close"} & {name.lower() for name in names})
    known = {"date", "ticker", ADJUSTED, *UNUSED, *FIELDS} if is_long else {"date"}
    names = [name.lower() if name.lower() in known else name for name in names]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DataError(f"{path}: duplicate column {', '.join(twice)}; keep one")
    if "date" not in names:
        raise DataError(f"{path}: no column is named date, only {_name_usual(names)}; {EXPECTED}")
    if not is_long and {"high", "low"} <= {name.lower() for name in names}:
        raise DataError(
            f"{path}: no column is named close, only {', '.join(names)}; name that of the closing prices close"
        )
    if len(names) < 2:
        raise DataError(f"{path}: wrong columns {', '.join(names)}; {EXPECTED}")
    return frame.set_axis(names, axis=1), is_long


def _name_usual(names: list[str]) -> str:
    """Return the usual names of headings that hold no prices, or of numbers in their place; others are only counted."""
    usual = [name for name in names if name.lower() in USUAL or PLAIN.fullmatch(name)]
    others = len(names) - len(usual)
    return ", ".join(usual + [f"{some(others, 'column')} with other names"] * (others > 0))


def _dates(column: pd.Series, path: Path, faults: list[Fault], today: pd.Timestamp) -> pd.Series:
    """Return calendar dates without a zone; one zone throughout is dropped, several are refused."""
    if (empty := column.isna() | (column.astype("string").str.strip() == "")).any():
        raise DataError(f"{path}: row {column.index[empty][0]}: date is empty")
    if isinstance(column.dtype, pd.DatetimeTZDtype):
        faults.append(_timezone(str(column.iloc[0])[:10], str(column.dt.tz), repaired=True))
        return _days(column.dt.tz_localize(None))
    if types.is_datetime64_dtype(column):
        return _days(column)
    text = column.astype("string").str.strip().str.removesuffix(".0")
    if (numbers := text.str.fullmatch(r"\d+") & ~text.str.fullmatch(r"\d{8}")).any():
        row = int(np.flatnonzero(numbers)[0])
        raise DataError(f"{path}: row {text.index[row]}: date {text.iloc[row]} is a number; write YYYY-MM-DD")
    _one_zone(text, path, faults)
    plain = text.where(~text.str.match(r"\d{4}-\d{2}-\d{2}"), text.str[:10])
    time_of_day = r"(?<=\d)(T\d{2}:?\d{2}|\s+\d{1,2}:\d{2}).*$"
    plain = plain.str.replace(time_of_day, "", regex=True)
    parsed = pd.to_datetime(plain, errors="coerce", format="mixed", dayfirst=_day_comes_first(plain, path))
    if parsed.isna().any():
        row = int(np.flatnonzero(parsed.isna())[0])
        value = repr(text.iloc[row]) if PLAIN.fullmatch(text.iloc[row]) else "a text with letters"
        raise DataError(f"{path}: row {text.index[row]}: {value} is not a date; write YYYY-MM-DD")
    if (late := (parsed > today) & ~plain.str.contains(r"\d{4}")).any():
        row = int(np.flatnonzero(late)[0])
        raise DataError(
            f"{path}: row {text.index[row]}: the year of {plain.iloc[row]!r} has two digits and would be "
            f"{parsed.iloc[row].year}; write YYYY-MM-DD"
        )
    return _days(parsed)


def _day_comes_first(dates: pd.Series, path: Path) -> bool:
    """Return whether dates such as 31/12/2019 begin with the day, decided once for the whole column."""
    parts = dates.str.extract(r"^(\d{1,2})[./-](\d{1,2})[./-]\d{2,4}$").astype(float)
    if parts[0].isna().all():
        return False
    day_first, month_first = np.flatnonzero(parts[0] > 12), np.flatnonzero(parts[1] > 12)
    if len(day_first) == len(month_first) == 0:
        row = dates.index[0]
        raise DataError(f"{path}: row {row}: date {dates.iloc[0]!r} may be day or month first; write YYYY-MM-DD")
    if len(day_first) and len(month_first):
        day, month = int(day_first[0]), int(month_first[0])
        raise DataError(
            f"{path}: row {dates.index[day]}: date {dates.iloc[day]!r} begins with the day, and "
            f"{dates.iloc[month]!r} in row {dates.index[month]} with the month; write YYYY-MM-DD"
        )
    return len(day_first) > 0


def _one_zone(text: pd.Series, path: Path, faults: list[Fault]) -> None:
    zones = text.str.extract(ZONE)[0].fillna("none")
    if zones.nunique() > 1 and not set(zones) <= NEW_YORK:
        usual = zones.mode()[0]
        odd = zones[zones != usual]
        fault = _timezone(str(text[zones != usual].iloc[0])[:10], f"{usual} and {odd.iloc[0]}", repaired=False)
        raise DataError(f"{path}: row {odd.index[0]}: {fault}")
    if (zones != "none").any():
        faults.append(_timezone(str(text.iloc[0])[:10], str(zones.iloc[0]), repaired=True))


def _days(times: pd.Series) -> pd.Series:
    return pd.Series(times.dt.normalize().astype("datetime64[us]"))


def _timezone(day: str, zones: str, *, repaired: bool) -> Fault:
    done = "dates used as written in that zone" if repaired else "mixed time zones; write plain dates"
    return Fault("timezone", "*", day, f"{zones}: {done}", repaired)


def _check_columns(columns: Collection[str] | None, frame: pd.DataFrame, path: Path, *, is_long: bool) -> None:
    """Raise DataError for a column that is asked for and not there."""
    missing = [name for name in columns or () if name not in frame.columns or not is_long]
    if missing and not is_long:
        raise DataError(
            f"{path}: data.features {missing[0]}: in a wide file every column is a ticker; write a long one: {EXPECTED}"
        )
    if missing:
        have = [name for name in frame.columns if name not in {"date", "ticker"}]
        near = difflib.get_close_matches(missing[0], have, n=1)
        hint = f"did you mean {near[0]}?" if near else f"it has {_name_usual(have)}"
        raise DataError(f"{path}: data.features: no column is named {missing[0]}; {hint}")


def _long(frame: pd.DataFrame, path: Path, columns: Collection[str] | None, faults: list[Fault]) -> pd.DataFrame:
    """Return a long table with its ticker column and those asked for, checked."""
    if "ticker" not in frame.columns:
        frame["ticker"] = path.stem.upper()
    if "close" not in frame.columns:
        raise DataError(f"{path}: wrong columns {', '.join(frame.columns)}; {EXPECTED}")
    usual = {"date", "ticker", ADJUSTED, *FIELDS}
    known = usual | ({name for name in frame.columns if _holds_numbers(frame[name])} if columns is None else {*columns})
    unused = [name for name in frame.columns if name not in known and name not in UNUSED]
    if unused:
        why = "without numbers" if columns is None else "not asked for with data.features"
        detail = f"{', '.join(unused)}: {why}; left out"
        faults.append(Fault("unused", "*", f"{some(len(unused), 'column')}", detail, repaired=True))
    frame = frame[[name for name in frame.columns if name in known]].copy()
    nameless = frame["ticker"].isna() | (frame["ticker"].astype(str).str.strip() == "")
    if nameless.any():
        raise DataError(f"{path}: row {frame.index[nameless][0]}: ticker is empty")
    frame["ticker"] = frame["ticker"].astype(str).str.strip()
    return frame


def _holds_numbers(column: pd.Series) -> bool:
    """Return whether a column holds numbers, at least one, and no other text."""
    if types.is_numeric_dtype(column):
        return bool(column.notna().any())
    text = column.astype("string").str.strip()
    text = text[~text.str.lower().isin(MISSING) & text.notna()]
    return bool(len(text)) and bool(parse_numbers(text, counts=False).notna().all())


def _adjust(long: pd.DataFrame, faults: list[Fault]) -> pd.DataFrame:
    """Return prices adjusted for splits and dividends: the close itself, the others of the day in proportion."""
    scalable = {"open", "high", "low"}.intersection(long.columns)
    scaled = {name: long[ADJUSTED] * (long[name] / long["close"]) for name in scalable}
    for ticker, rows in long.groupby("ticker"):
        detail = "Adj Close used as close, other prices scaled with it"
        faults.append(Fault("adjusted", str(ticker), f"{rows['date'].min():%Y-%m-%d}", detail, repaired=True))
    return long.assign(close=long[ADJUSTED], **scaled).drop(columns=ADJUSTED)


def _numbers(long: pd.DataFrame, name: str, path: Path) -> pd.Series:
    values = long[name]
    if not types.is_numeric_dtype(values):
        text = values.astype("string").str.strip()
        values = text.mask(text.str.lower().isin(MISSING))
    numbers = parse_numbers(values, counts=name == "volume")
    wrong = numbers.isna() & values.notna()
    if wrong.any():
        first = long[wrong].iloc[0]
        value = repr(first[name]) if PLAIN.fullmatch(str(first[name])) else "with letters"
        whole_column = bool(wrong[long["ticker"] == first["ticker"]].all())
        advice = advise_number(str(first[name])) or (EXPECTED if whole_column else "correct the row or leave it empty")
        where = f"{first['ticker']} {first['date']:%Y-%m-%d}"
        raise DataError(f"{path}: not_a_number: {where}: {name} {value} is not a number; {advice}")
    return numbers


def _sort_rows(long: pd.DataFrame, faults: list[Fault]) -> pd.DataFrame:
    """Return rows in order of ticker and date; for unordered ones the ticker and its first late date are reported."""
    for ticker, rows in long.groupby("ticker", sort=False):
        back = np.flatnonzero(np.diff(rows["date"].to_numpy()) < np.timedelta64(0))
        if len(back):
            day = f"{rows['date'].iloc[back[0] + 1]:%Y-%m-%d}"
            detail = f"{some(len(back), 'row')} after a later date; sorted"
            faults.append(Fault("unsorted", str(ticker), day, detail, repaired=True))
    return long.sort_values(["ticker", "date"], kind="stable")


def _unique(long: pd.DataFrame, faults: list[Fault]) -> pd.DataFrame:
    """Return each ticker and date once; rows that differ are refused."""
    repeated = long[long.duplicated(["ticker", "date"], keep=False)]
    for (ticker, day), rows in repeated.groupby(["ticker", "date"]):
        alike = len(rows.drop_duplicates()) == 1
        detail = f"{len(rows)} equal rows; one kept" if alike else f"{len(rows)} rows that differ; keep one"
        faults.append(Fault("duplicate", str(ticker), f"{day:%Y-%m-%d}", detail, alike))
    return long.drop_duplicates(["ticker", "date"])
