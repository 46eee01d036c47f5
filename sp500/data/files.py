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
EXPECTED = "expected date,ticker,close[,open,high,low,volume], or date and one column of prices per ticker"


def read_table(path: Path) -> tuple[Tables, list[Fault]]:
    """Tables [date, ticker] per field, dates in order and each once, and the faults mended on the way.

    Raises DataError that names the file, and rule, ticker and date of every fault refused.
    """
    frame = _read(path)
    if frame.empty:
        raise DataError(f"{path}: empty: the file has no rows; {EXPECTED}")
    frame.columns = [str(name).strip().removeprefix("\ufeff") for name in frame.columns]
    lower = {name: name.lower() for name in frame.columns if name.lower() in {"date", "ticker", *FIELDS}}
    frame = frame.rename(columns=lower)
    if "date" not in frame.columns:
        raise DataError(f"{path}: wrong columns {', '.join(frame.columns)}; {EXPECTED}")
    faults: list[Fault] = []
    frame["date"] = _dates(frame["date"], path, faults)
    long = _long(frame, path)
    for name in set(FIELDS).intersection(long.columns):
        long[name] = _numbers(long, name, path)
    try:
        long = _unique(_ordered(long, faults), faults)
        refuse(faults)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    tables = {
        name: long.pivot(index="date", columns="ticker", values=name).sort_index()
        for name in FIELDS
        if name in long.columns
    }
    for table in tables.values():
        table.columns.name = None
    return tables, faults


def _read(path: Path) -> pd.DataFrame:
    if not path.exists():
        raise DataError(
            f"data.source {path}: no such file; give bundled, yfinance, or the path of a CSV or Parquet file"
        )
    try:
        if path.suffix.lower() in {".parquet", ".pq"}:
            frame = pd.read_parquet(path)
            return frame.reset_index() if frame.index.name else frame
        return pd.read_csv(path, encoding="utf-8-sig", dtype={"ticker": str, "Ticker": str}, skipinitialspace=True)
    except pd.errors.EmptyDataError:
        raise DataError(f"{path}: empty: the file has no header and no rows; {EXPECTED}") from None
    except (pd.errors.ParserError, UnicodeDecodeError, OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as a table ({error}); {EXPECTED}") from error


def _dates(column: pd.Series, path: Path, faults: list[Fault]) -> pd.Series:
    """Calendar dates without a zone; one zone throughout is dropped, several are refused."""
    if isinstance(column.dtype, pd.DatetimeTZDtype):
        faults.append(_timezone(str(column.iloc[0])[:10], str(column.dt.tz), mended=True))
        return _days(column.dt.tz_localize(None))
    if types.is_datetime64_dtype(column):
        return _days(column)
    if types.is_numeric_dtype(column) and not (column.dropna().between(1_00_00_000, 9999_12_31)).all():
        raise DataError(f"{path}: row 2: date {column.iloc[0]!r} is a number; write YYYY-MM-DD")
    text = column.astype("string").str.strip().str.removesuffix(".0")
    zones = text.str.extract(r"\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?\s*(Z|[+-]\d{2}:?\d{2})$")[0].fillna("none")
    if zones.nunique() > 1:
        usual = zones.mode()[0]
        odd = text[zones != usual]
        # New York's own offset changes twice a year: that is one zone, told apart by nothing else here.
        if not set(zones) <= {"-05:00", "-04:00", "-0500", "-0400"}:
            fault = _timezone(str(odd.iloc[0])[:10], f"{usual} and {zones[odd.index[0]]}", mended=False)
            raise DataError(f"{path}: row {odd.index[0] + 2}: {fault}")
    if (zones != "none").any():
        faults.append(_timezone(str(text.iloc[0])[:10], str(zones.iloc[0]), mended=True))
    parsed = pd.to_datetime(text.str[:10].str.strip(), errors="coerce", format="mixed", dayfirst=False)
    if parsed.isna().any():
        row = int(np.flatnonzero(parsed.isna())[0])
        raise DataError(f"{path}: row {row + 2}: date {column.iloc[row]!r} is not a date; write YYYY-MM-DD")
    return _days(parsed)


def _days(times: pd.Series) -> pd.Series:
    return pd.Series(times.dt.normalize().astype("datetime64[us]"))


def _timezone(day: str, zones: str, *, mended: bool) -> Fault:
    done = "dates taken as written in that zone" if mended else "mixed time zones; write plain dates"
    return Fault("timezone", "*", day, f"{zones}: {done}", mended)


def _long(frame: pd.DataFrame, path: Path) -> pd.DataFrame:
    """Either layout as date, ticker, close and what else there is."""
    if "close" in frame.columns:
        if "ticker" not in frame.columns:
            frame["ticker"] = path.stem.upper()
        unknown = [name for name in frame.columns if name not in {"date", "ticker", *FIELDS}]
        if unknown:
            raise DataError(f"{path}: wrong columns {', '.join(unknown)}; {EXPECTED}")
        if frame["ticker"].isna().any():
            row = int(np.flatnonzero(frame["ticker"].isna())[0])
            raise DataError(f"{path}: row {row + 2}: ticker is empty")
        return frame
    if "ticker" in frame.columns or len(frame.columns) < 2:
        raise DataError(f"{path}: wrong columns {', '.join(frame.columns)}; {EXPECTED}")
    return frame.melt(id_vars="date", var_name="ticker", value_name="close")


def _numbers(long: pd.DataFrame, name: str, path: Path) -> pd.Series:
    numbers = pd.to_numeric(long[name], errors="coerce").astype(float)
    wrong = numbers.isna() & long[name].notna()
    if wrong.any():
        first = long[wrong].iloc[0]
        raise DataError(
            f"{path}: not_a_number: {first['ticker']} {first['date']:%Y-%m-%d}: {name} {first[name]!r} is no number; "
            "correct the row or leave it empty"
        )
    return numbers


def _ordered(long: pd.DataFrame, faults: list[Fault]) -> pd.DataFrame:
    """Rows in order of date, the first of each ticker's rows that was not being named."""
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
