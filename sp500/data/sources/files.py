"""Price tables from CSV and Parquet files, long or wide.

Long: `date,ticker,close[,open,high,low,volume]`, `ticker` optional for one series. Wide: `date` and a column of closing
prices per ticker. Columns may be separated by commas, semicolons or tabs. A byte-order mark, CRLF line ends, upper-case
headings and `Symbol` for `ticker` are accepted. Where a long table has `Adj Close`, that is the close, and the other
prices of the day are scaled with it; dividends and splits, which it counts already, are left out. So is a column
without a name that holds no prices.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
from pandas.api import types

from sp500.data.sources.plain_text import find_other_kind
from sp500.data.validation import Fault, Tables, refuse
from sp500.errors import DataError
from sp500.formatting import some

FIELDS = ("open", "high", "low", "close", "volume")
ADJUSTED = "adj close"
ALIASES = {"symbol": "ticker", "adj close": ADJUSTED, "adjclose": ADJUSTED, "adjusted close": ADJUSTED}
UNUSED = {"dividends", "stock splits", "capital gains"}
"""Columns of downloads that hold no prices."""
# New York's own offset changes twice a year: two offsets that are one zone.
NEW_YORK = {"-05:00", "-04:00", "-0500", "-0400"}
ZONE = r"\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?\s*(Z|[+-]\d{2}:?\d{2}|[A-Z]{3,4})$"
# What pandas calls columns without a name on the way through a file, and what it calls an index that becomes a column.
NAMELESS = re.compile(r"((Unnamed: \d+(_level_\d+)?|__index_level_\d+__)(\.\d+)*)?")
NAMELESS_INDEX = re.compile(r"(index|level_\d+)(\.\d+)*")
# Steps of row numbers that go one way: those of files put together begin again. Of prices about half fall.
ONE_WAY = 0.95
MISSING = {"", "na", "n/a", "nan", "null", "none", "<na>"}
USUAL = {*FIELDS, ADJUSTED, *["ticker", "price", "day", "time", "datetime", "timestamp", "name", "last"]}
"""Headings that errors repeat. Others, and values with letters, they do not: an agent may name a file with secrets."""
PLAIN = re.compile(r"[\d\s.,/:'$€£¥%+()KMBTkmbt-]{1,25}")
EXPECTED = "expected date,ticker,close[,open,high,low,volume], or date and one column of prices per ticker"


def read_table(path: Path) -> tuple[Tables, list[Fault]]:
    """Tables [date, ticker] per field, dates in order and each once, and the faults repaired on the way.

    Raises DataError that names the file, and rule, ticker and date of every fault refused.
    """
    frame = _read(path)
    if frame.empty:
        raise DataError(f"{path}: empty: the file has no rows; {EXPECTED}")
    faults: list[Fault] = []
    frame, is_long = _name_columns(_leave_out_nameless(frame, path, faults), path)
    frame["date"] = _dates(frame["date"], path, faults)
    long = _long(frame, path) if is_long else frame.melt(id_vars="date", var_name="ticker", value_name="close")
    for name in {*FIELDS, ADJUSTED}.intersection(long.columns):
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
    """Long rows in order of date, each ticker and date once, and what was repaired or has to be refused."""
    faults: list[Fault] = []
    return _unique(_sort_rows(long, faults), faults), faults


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
            return _with_date(pd.read_parquet(path), path)
        with path.open("rb") as file:
            if kind := find_other_kind(file.read(8)):
                raise DataError(f"{path}: is {kind}; expected CSV in UTF-8 or Parquet: unpack it, or save it so")
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
        return table.iloc[1:].set_axis(table.iloc[0].str.strip(), axis=1).reset_index(drop=True)
    except pd.errors.EmptyDataError:
        raise DataError(f"{path}: empty: the file has no header and no rows; {EXPECTED}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not UTF-8 ({error.reason}); save it as CSV in UTF-8") from None
    except (pd.errors.ParserError, OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as a table ({error}); {EXPECTED}") from error


def _separator(path: Path) -> str:
    """What separates the columns of the first line."""
    with path.open(encoding="utf-8-sig") as file:
        header = file.readline()
    return max(",;\t", key=header.count)


def _with_date(frame: pd.DataFrame, path: Path) -> pd.DataFrame:
    """A Parquet file's frame with its index of dates, if it has one, as a column."""
    if frame.columns.nlevels > 1:
        raise DataError(
            f"{path}: has {frame.columns.nlevels} rows of headings, as yfinance writes them; {EXPECTED}: "
            "frame.stack(level=1).reset_index()"
        )
    if frame.index.name is None and isinstance(frame.index, pd.DatetimeIndex):
        frame = frame.rename_axis("date")
    return frame.reset_index() if frame.index.name else frame


def _leave_out_nameless(frame: pd.DataFrame, path: Path, faults: list[Fault]) -> pd.DataFrame:
    """The frame without columns that have no name and no prices: row numbers, and what follows a comma at line ends."""
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
    """Why a column holds no prices; empty where it may."""
    text = column.astype("string").str.strip().fillna("")
    if (text == "").all():
        return "is empty"
    numbers = pd.to_numeric(text, errors="coerce").to_numpy(float)  # of dates: not a number
    steps = np.diff(numbers)
    one_way = max((steps > 0).sum(), (steps < 0).sum()) >= ONE_WAY * len(steps)
    return "counts rows" if one_way and (numbers % 1 == 0).all() else ""


def _name_columns(frame: pd.DataFrame, path: Path) -> tuple[pd.DataFrame, bool]:
    """The frame with plain column names, and whether it is long. In a wide one LOW and OPEN are tickers."""
    names = [str(name).strip() for name in frame.columns]
    names = [ALIASES.get(re.sub(r"[_ ]+", " ", name.lower()), name) for name in names]
    if ADJUSTED in names and "close" not in {name.lower() for name in names}:
        names = ["close" if name == ADJUSTED else name for name in names]
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
    """Headings of a table that may hold no prices, or numbers that stand in their place; of others how many."""
    usual = [name for name in names if name.lower() in USUAL or PLAIN.fullmatch(name)]
    others = len(names) - len(usual)
    return ", ".join(usual + [f"{some(others, 'column')} with other names"] * (others > 0))


def _dates(column: pd.Series, path: Path, faults: list[Fault]) -> pd.Series:
    """Calendar dates without a zone; one zone throughout is dropped, several are refused."""
    if (empty := column.isna() | (column.astype("string").str.strip() == "")).any():
        raise DataError(f"{path}: row {int(np.flatnonzero(empty)[0]) + 2}: date is empty")
    if isinstance(column.dtype, pd.DatetimeTZDtype):
        faults.append(_timezone(str(column.iloc[0])[:10], str(column.dt.tz), repaired=True))
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
    parsed = pd.to_datetime(plain, errors="coerce", format="mixed", dayfirst=_day_comes_first(plain, path))
    if parsed.isna().any():
        row = int(np.flatnonzero(parsed.isna())[0])
        raise DataError(f"{path}: row {row + 2}: {text[row]!r} is not a date; write YYYY-MM-DD")
    return _days(parsed)


def _day_comes_first(dates: pd.Series, path: Path) -> bool:
    """Whether dates such as 31/12/2019 begin with the day, decided once for the whole column."""
    parts = dates.str.extract(r"^(\d{1,2})[./-](\d{1,2})[./-]\d{2,4}$").astype(float)
    if parts[0].isna().all():
        return False
    day_first, month_first = np.flatnonzero(parts[0] > 12), np.flatnonzero(parts[1] > 12)
    if len(day_first) == len(month_first) == 0:
        raise DataError(f"{path}: row 2: date {dates.iloc[0]!r} may be day or month first; write YYYY-MM-DD")
    if len(day_first) and len(month_first):
        day, month = int(day_first[0]), int(month_first[0])
        raise DataError(
            f"{path}: row {day + 2}: date {dates.iloc[day]!r} begins with the day, and {dates.iloc[month]!r} in row "
            f"{month + 2} with the month; write YYYY-MM-DD"
        )
    return len(day_first) > 0


def _one_zone(text: pd.Series, path: Path, faults: list[Fault]) -> None:
    zones = text.str.extract(ZONE)[0].fillna("none")
    if zones.nunique() > 1 and not set(zones) <= NEW_YORK:
        usual = zones.mode()[0]
        odd = zones[zones != usual]
        fault = _timezone(str(text[odd.index[0]])[:10], f"{usual} and {odd.iloc[0]}", repaired=False)
        raise DataError(f"{path}: row {odd.index[0] + 2}: {fault}")
    if (zones != "none").any():
        faults.append(_timezone(str(text.iloc[0])[:10], str(zones.iloc[0]), repaired=True))


def _days(times: pd.Series) -> pd.Series:
    return pd.Series(times.dt.normalize().astype("datetime64[us]"))


def _timezone(day: str, zones: str, *, repaired: bool) -> Fault:
    done = "dates taken as written in that zone" if repaired else "mixed time zones; write plain dates"
    return Fault("timezone", "*", day, f"{zones}: {done}", repaired)


def _long(frame: pd.DataFrame, path: Path) -> pd.DataFrame:
    """A long table with its ticker column, checked."""
    if "ticker" not in frame.columns:
        frame["ticker"] = path.stem.upper()
    frame = frame.drop(columns=[name for name in frame.columns if name in UNUSED])
    unknown = [name for name in frame.columns if name not in {"date", "ticker", ADJUSTED, *FIELDS}]
    if unknown or "close" not in frame.columns:
        wrong = unknown if "close" in frame.columns else frame.columns
        raise DataError(f"{path}: wrong columns {', '.join(wrong)}; {EXPECTED}")
    nameless = frame["ticker"].isna() | (frame["ticker"].astype(str).str.strip() == "")
    if nameless.any():
        raise DataError(f"{path}: row {int(np.flatnonzero(nameless)[0]) + 2}: ticker is empty")
    frame["ticker"] = frame["ticker"].astype(str).str.strip()
    return frame


def _adjust(long: pd.DataFrame, faults: list[Fault]) -> pd.DataFrame:
    """Prices adjusted for splits and dividends: the close itself, the others of the day in proportion."""
    scalable = {"open", "high", "low"}.intersection(long.columns)
    scaled = {name: long[ADJUSTED] * (long[name] / long["close"]) for name in scalable}
    for ticker, rows in long.groupby("ticker"):
        detail = "Adj Close taken as close, other prices scaled with it"
        faults.append(Fault("adjusted", str(ticker), f"{rows['date'].min():%Y-%m-%d}", detail, repaired=True))
    return long.assign(close=long[ADJUSTED], **scaled).drop(columns=ADJUSTED)


def _numbers(long: pd.DataFrame, name: str, path: Path) -> pd.Series:
    values = long[name]
    if not types.is_numeric_dtype(values):
        text = values.astype("string").str.strip()
        values = text.mask(text.str.lower().isin(MISSING))
    numbers = pd.to_numeric(values, errors="coerce").astype(float)
    wrong = numbers.isna() & values.notna()
    if wrong.any():
        first = long[wrong].iloc[0]
        value = repr(first[name]) if PLAIN.fullmatch(str(first[name])) else "with letters"
        whole_column = bool(wrong[long["ticker"] == first["ticker"]].all())
        raise DataError(
            f"{path}: not_a_number: {first['ticker']} {first['date']:%Y-%m-%d}: {name} {value} is not a "
            f"number; {_number_hint(first[name], whole_column)}"
        )
    return numbers


def _number_hint(value: object, whole_column: bool) -> str:
    """What to do about a text where a number was expected."""
    if re.fullmatch(r"-?[\d.]+,\d+", str(value)):
        return "use a decimal point and no separator of thousands"
    return EXPECTED if whole_column else "correct the row or leave it empty"


def _sort_rows(long: pd.DataFrame, faults: list[Fault]) -> pd.DataFrame:
    """Rows in order of ticker and date; a ticker whose rows were not is named with its first date that was late."""
    for ticker, rows in long.groupby("ticker", sort=False):
        back = np.flatnonzero(np.diff(rows["date"].to_numpy()) < np.timedelta64(0))
        if len(back):
            day = f"{rows['date'].iloc[back[0] + 1]:%Y-%m-%d}"
            detail = f"{some(len(back), 'row')} after a later date; sorted"
            faults.append(Fault("unsorted", str(ticker), day, detail, repaired=True))
    return long.sort_values(["ticker", "date"], kind="stable")


def _unique(long: pd.DataFrame, faults: list[Fault]) -> pd.DataFrame:
    """Each ticker and date once; rows that differ are refused."""
    repeated = long[long.duplicated(["ticker", "date"], keep=False)]
    for (ticker, day), rows in repeated.groupby(["ticker", "date"]):
        alike = len(rows.drop_duplicates()) == 1
        detail = f"{len(rows)} equal rows; one kept" if alike else f"{len(rows)} rows that differ; keep one"
        faults.append(Fault("duplicate", str(ticker), f"{day:%Y-%m-%d}", detail, alike))
    return long.drop_duplicates(["ticker", "date"])
