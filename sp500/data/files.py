"""Price tables from CSV and Parquet files, long or wide.

Long: `date,ticker,close[,open,high,low,volume]`, `ticker` optional for one series. Wide: `date` and a column of closing
prices per ticker. A byte-order mark, CRLF line ends and upper-case headings are read without a word.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from pandas.api import types

from sp500.data.validation import Fault, Tables, refuse
from sp500.errors import DataError

FIELDS = ("open", "high", "low", "close", "volume")
# New York's own offset changes twice a year: two offsets that are one zone.
NEW_YORK = {"-05:00", "-04:00", "-0500", "-0400"}
ZONE = r"\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?\s*(Z|[+-]\d{2}:?\d{2}|[A-Z]{3,4})$"
MISSING = {"", "na", "n/a", "nan", "null", "none", "<na>"}
EXPECTED = "expected date,ticker,close[,open,high,low,volume], or date and one column of prices per ticker"


def read_table(path: Path) -> tuple[Tables, list[Fault]]:
    """Tables [date, ticker] per field, dates in order and each once, and the faults mended on the way.

    Raises DataError that names the file, and rule, ticker and date of every fault refused.
    """
    frame = _read(path)
    if frame.empty:
        raise DataError(f"{path}: empty: the file has no rows; {EXPECTED}")
    frame, is_long = _named(frame, path)
    faults: list[Fault] = []
    frame["date"] = _dates(frame["date"], path, faults)
    long = _long(frame, path) if is_long else frame.melt(id_vars="date", var_name="ticker", value_name="close")
    for name in set(FIELDS).intersection(long.columns):
        long[name] = _numbers(long, name, path)
    long, more = in_order(long)
    try:
        refuse(faults + more)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    return tables_of(long), faults + more


def in_order(long: pd.DataFrame) -> tuple[pd.DataFrame, list[Fault]]:
    """Long rows in order of date, each ticker and date once, and what was mended or has to be refused."""
    faults: list[Fault] = []
    return _unique(_ordered(long, faults), faults), faults


def tables_of(long: pd.DataFrame) -> Tables:
    """Tables [date, ticker] of long rows."""
    tables = {
        name: long.pivot(index="date", columns="ticker", values=name).sort_index()
        for name in FIELDS
        if name in long.columns
    }
    for table in tables.values():
        table.columns.name = None
    return tables


def _read(path: Path) -> pd.DataFrame:
    if not path.exists():
        raise DataError(
            f"data.source {path}: no such file; give bundled, yfinance, or the path of a CSV or Parquet file"
        )
    try:
        if path.suffix.lower() in {".parquet", ".pq"}:
            frame = pd.read_parquet(path)
            return frame.reset_index() if frame.index.name else frame
        # All as text: a ticker may be NA or 0005, and pandas would rename a column that stands there twice.
        table = pd.read_csv(
            path, encoding="utf-8-sig", header=None, dtype=str, keep_default_na=False, skipinitialspace=True
        )
        return table.iloc[1:].set_axis(table.iloc[0].str.strip(), axis=1).reset_index(drop=True)
    except pd.errors.EmptyDataError:
        raise DataError(f"{path}: empty: the file has no header and no rows; {EXPECTED}") from None
    except (pd.errors.ParserError, UnicodeDecodeError, OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as a table ({error}); {EXPECTED}") from error


def _named(frame: pd.DataFrame, path: Path) -> tuple[pd.DataFrame, bool]:
    """The frame with plain column names, and whether it is long. In a wide one LOW and OPEN are tickers."""
    names = [str(name).strip() for name in frame.columns]
    is_long = bool({"ticker", "close"} & {name.lower() for name in names})
    known = {"date", "ticker", *FIELDS} if is_long else {"date"}
    names = [name.lower() if name.lower() in known else name for name in names]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DataError(f"{path}: column {', '.join(twice)} stands there twice; keep one")
    if "date" not in names or len(names) < 2:
        raise DataError(f"{path}: wrong columns {', '.join(names)}; {EXPECTED}")
    return frame.set_axis(names, axis=1), is_long


def _dates(column: pd.Series, path: Path, faults: list[Fault]) -> pd.Series:
    """Calendar dates without a zone; one zone throughout is dropped, several are refused."""
    if (empty := column.isna() | (column.astype("string").str.strip() == "")).any():
        raise DataError(f"{path}: row {int(np.flatnonzero(empty)[0]) + 2}: date is empty")
    if isinstance(column.dtype, pd.DatetimeTZDtype):
        faults.append(_timezone(str(column.iloc[0])[:10], str(column.dt.tz), mended=True))
        return _days(column.dt.tz_localize(None))
    if types.is_datetime64_dtype(column):
        return _days(column)
    text = column.astype("string").str.strip().str.removesuffix(".0")
    if (numbers := text.str.fullmatch(r"\d+") & ~text.str.fullmatch(r"\d{8}")).any():
        row = int(np.flatnonzero(numbers)[0])
        raise DataError(f"{path}: row {row + 2}: date {text[row]} is a number; write YYYY-MM-DD")
    _one_zone(text, path, faults)
    plain = text.where(~text.str.match(r"\d{4}-\d{2}-\d{2}"), text.str[:10])
    time_of_day = r"(?<=\d)(T\d{2}:?\d{2}|\s+\d{1,2}:\d{2}).*$"
    plain = plain.str.replace(time_of_day, "", regex=True)
    parsed = pd.to_datetime(plain, errors="coerce", format="mixed", dayfirst=False)
    if parsed.isna().any():
        row = int(np.flatnonzero(parsed.isna())[0])
        raise DataError(f"{path}: row {row + 2}: date {text[row]!r} is not a date; write YYYY-MM-DD")
    return _days(parsed)


def _one_zone(text: pd.Series, path: Path, faults: list[Fault]) -> None:
    zones = text.str.extract(ZONE)[0].fillna("none")
    if zones.nunique() > 1 and not set(zones) <= NEW_YORK:
        usual = zones.mode()[0]
        odd = zones[zones != usual]
        fault = _timezone(str(text[odd.index[0]])[:10], f"{usual} and {odd.iloc[0]}", mended=False)
        raise DataError(f"{path}: row {odd.index[0] + 2}: {fault}")
    if (zones != "none").any():
        faults.append(_timezone(str(text.iloc[0])[:10], str(zones.iloc[0]), mended=True))


def _days(times: pd.Series) -> pd.Series:
    return pd.Series(times.dt.normalize().astype("datetime64[us]"))


def _timezone(day: str, zones: str, *, mended: bool) -> Fault:
    done = "dates taken as written in that zone" if mended else "mixed time zones; write plain dates"
    return Fault("timezone", "*", day, f"{zones}: {done}", mended)


def _long(frame: pd.DataFrame, path: Path) -> pd.DataFrame:
    """A long table with its ticker column, checked."""
    if "ticker" not in frame.columns:
        frame["ticker"] = path.stem.upper()
    unknown = [name for name in frame.columns if name not in {"date", "ticker", *FIELDS}]
    if unknown or "close" not in frame.columns:
        wrong = unknown if "close" in frame.columns else frame.columns
        raise DataError(f"{path}: wrong columns {', '.join(wrong)}; {EXPECTED}")
    nameless = frame["ticker"].isna() | (frame["ticker"].astype(str).str.strip() == "")
    if nameless.any():
        raise DataError(f"{path}: row {int(np.flatnonzero(nameless)[0]) + 2}: ticker is empty")
    frame["ticker"] = frame["ticker"].astype(str).str.strip()
    return frame


def _numbers(long: pd.DataFrame, name: str, path: Path) -> pd.Series:
    values = long[name]
    if not types.is_numeric_dtype(values):
        text = values.astype("string").str.strip()
        values = text.mask(text.str.lower().isin(MISSING))
    numbers = pd.to_numeric(values, errors="coerce").astype(float)
    wrong = numbers.isna() & values.notna()
    if wrong.any():
        first = long[wrong].iloc[0]
        raise DataError(
            f"{path}: not_a_number: {first['ticker']} {first['date']:%Y-%m-%d}: {name} {first[name]!r} is no number; "
            "correct the row or leave it empty"
        )
    return numbers


def _ordered(long: pd.DataFrame, faults: list[Fault]) -> pd.DataFrame:
    """Rows in order of ticker and date; a ticker whose rows were not is named with its first date that was late."""
    for ticker, rows in long.groupby("ticker", sort=False):
        back = np.flatnonzero(np.diff(rows["date"].to_numpy()) < np.timedelta64(0))
        if len(back):
            day = f"{rows['date'].iloc[back[0] + 1]:%Y-%m-%d}"
            detail = f"{len(back)} row(s) stand after a later date; put in order"
            faults.append(Fault("unsorted", str(ticker), day, detail, mended=True))
    return long.sort_values(["ticker", "date"], kind="stable")


def _unique(long: pd.DataFrame, faults: list[Fault]) -> pd.DataFrame:
    """Each ticker and date once; rows that differ are refused."""
    repeated = long[long.duplicated(["ticker", "date"], keep=False)]
    for (ticker, day), rows in repeated.groupby(["ticker", "date"]):
        alike = len(rows.drop_duplicates()) == 1
        detail = f"{len(rows)} rows alike; one kept" if alike else f"{len(rows)} rows that differ; keep one"
        faults.append(Fault("duplicate", str(ticker), f"{day:%Y-%m-%d}", detail, alike))
    return long.drop_duplicates(["ticker", "date"])
