"""Faults in daily prices: each is named by rule, ticker and date, and then repaired by a stated rule or refused.

Repaired, and listed in the data card:
    nameless        a column without a name that is empty or counts rows is left out
    unsorted        rows are put in order of date
    duplicate       of equal rows one is kept (rows that differ are refused)
    timezone        all dates have one time zone: the calendar date in that zone is used
    non_session     a row on a day without trading is dropped
    unfinished      a last row of a session that had not closed when the prices were read off is dropped
    missing         up to 5 sessions in a row without a value take the last one, which looks at the past only; an open,
                    high or low of 0 and, after days with volume, a volume of 0 count as none

Refused, all faults at once in one DataError:
    duplicate       rows that differ, or tickers that differ only in case
    missing         a longer gap, more than 2% of a ticker's sessions (and more than 5), or fewer than two prices
    stale           the same closing price on 10 sessions in a row
    split           a one-day move within 12% of 2:1, 3:1, ... 20:1
    jump            a larger move; one above 1.77:1 that is undone within five sessions; or one of any size above 15
                    of the ticker's own daily standard deviations that is undone in one day within five sessions
    not_positive, not_a_number, high_low, future, too_short, calendar

Real moves that large are rare; those known are listed here, others (and real runs of equal prices) are confirmed with
`data.real_moves`. In the bundled prices the largest move that was undone within five sessions has 10.6 standard
deviations, and the longest run of equal prices has 5 sessions. An unadjusted 3:2 split cannot be distinguished from a
bad day by its size and is not looked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime

import numpy as np
import pandas as pd

from sp500.data import sessions
from sp500.errors import DataError
from sp500.formatting import some

MAX_CARRIED = 5
MAX_REPAIRED = 0.02
MANY_GAPS = 10  # of one ticker, some of them too long: monthly prices
STALE_SESSIONS = 10
# Repairs of one rule and ticker that the data card lists one by one.
LISTED = 3
# What was done about more of them, and why.
GROUPED = {
    "non_session": ("rows dropped", "no trading on these days"),
    "missing": ("gaps filled", "last values carried forward"),
    "duplicate": ("dates with equal rows", "one of each kept"),
}
EARLIEST = pd.Timestamp("1900-01-01")
SPLIT_RATIOS = np.array([2.0, 3, 4, 5, 6, 7, 8, 10, 15, 20])
SPLIT_TOLERANCE = 0.12
JUMP = np.log(2.0)
UNITS = np.log([100.0, 1000.0])  # a coin and its hundredth, as of London and Johannesburg, or thousandth, as of Kuwait
# A price is back when it is within 20% of the one before the move.
BACK = 0.2
# A bad tick: a move of so many daily standard deviations, of which at most a quarter is left after it was undone.
TICK_DEVIATIONS = 15.0
TICK_LEFT = 0.25
# The deviation of a day is that of the sessions within a quarter of a year of it.
TICK_WINDOW = 127
# Median absolute deviation of a normal distribution to its standard deviation (Rousseeuw and Croux 1993).
MAD_TO_DEVIATION = 1.4826
# One-day moves that happened and look like a fault. Apple's warning of lower earnings on 28 September 2000 took half
# of its value the next day (closing prices 53.50 and 25.75 dollars, unadjusted).
REAL_MOVES = frozenset({("AAPL", "2000-09-29")})

Tables = dict[str, pd.DataFrame]


@dataclass(frozen=True)
class Fault:
    """One fault: which rule, where, and what was done about it."""

    rule: str
    ticker: str
    """* if it is a fault of the dates, which all tickers share."""
    date: str
    detail: str
    repaired: bool = False

    def __str__(self) -> str:
        return f"{self.rule}: {_of(self.ticker)}{self.date}: {self.detail}"


class FaultyPrices(DataError):
    """Prices with faults that no rule repairs, each in `faults`."""

    def __init__(self, message: str, faults: list[Fault]) -> None:
        super().__init__(message)
        self.faults = faults


def validate(
    raw: Tables,
    *,
    real_moves: Iterable[str] = (),
    seen: datetime | None = None,
    start: date | None = None,
    end: date | None = None,
) -> tuple[Tables, list[Fault]]:
    """Return tables [date, ticker] over NYSE sessions without faults, and the faults that were repaired.

    `raw` maps field names to tables that share columns and an index of dates in order, each once; at `seen`
    (default: now) they were read off. Raises DataError that lists every fault refused.
    """
    seen = seen or datetime.now(UTC)
    close = raw["close"]
    if close.empty:
        raise DataError("empty: no rows of prices")
    first, last = (pd.Timestamp(day) if day else None for day in (start, end))
    raw = {name: frame.loc[first:last] for name, frame in raw.items()}
    if raw["close"].empty:
        raise DataError(
            f"empty: no prices from {start or 'the first date'} to {end or 'the last'}; the source has "
            f"{close.index.min():%Y-%m-%d} to {close.index.max():%Y-%m-%d}"
        )
    faults = _names(raw["close"]) + _dates(raw["close"], seen.astimezone(UTC).date())
    raw, unfinished = _drop_unfinished(_mask_zeros(raw), seen)
    faults += unfinished
    faults += _values(raw)
    refuse(faults)
    raw, calendar_faults = _on_sessions(raw)
    faults += calendar_faults
    carried, missing = _carry_forward(raw)
    faults += missing
    real = {*REAL_MOVES, *((move[:-11], move[-10:]) for move in real_moves)}  # TICKER:YYYY-MM-DD
    known = carried["close"].drop(columns=[fault.ticker for fault in missing if not fault.repaired], errors="ignore")
    faults += _stale(known, real)
    faults += _moves(known, real)
    refuse(faults)
    return carried, faults


def refuse(faults: Iterable[Fault]) -> None:
    """Raise DataError that lists the faults that were not repaired, if there are any."""
    fatal = [fault for fault in faults if not fault.repaired]
    if not fatal:
        return
    shown = [f"  {fault}" for fault in fatal[:20]]
    more = [f"  (and {len(fatal) - 20} more)"] if len(fatal) > 20 else []
    raise FaultyPrices("\n".join([f"{some(len(fatal), 'fault')} in the prices:", *shown, *more]), fatal)


def summarize(faults: Iterable[Fault]) -> list[str]:
    """Return the faults in lines: up to LISTED of one rule and ticker each, more of them as a count."""
    groups: dict[tuple[str, str], list[Fault]] = {}
    for fault in faults:
        groups.setdefault((fault.rule, fault.ticker), []).append(fault)
    lines = []
    for (rule, ticker), group in groups.items():
        if len(group) <= LISTED:
            lines += [str(fault) for fault in group]
        else:
            days = sorted(fault.date for fault in group)
            done, why = GROUPED.get(rule, ("faults repaired", group[0].detail))
            lines.append(f"{rule}: {_of(ticker)}{len(group):,} {done}, {days[0]} to {days[-1]}: {why}")
    return lines


def _of(ticker: str) -> str:
    return "" if ticker == "*" else f"{ticker} "


def _names(close: pd.DataFrame) -> list[Fault]:
    """Return faults for tickers that differ only in case: two halves of one series, as a rule."""
    spelled: dict[str, list[str]] = {}
    for ticker in map(str, close.columns):
        spelled.setdefault(ticker.casefold(), []).append(ticker)
    day = f"{close.index[0]:%Y-%m-%d}"
    return [
        Fault("duplicate", names[0], day, f"tickers {', '.join(names)} differ only in case; use one spelling")
        for names in spelled.values()
        if len(names) > 1
    ]


def _dates(close: pd.DataFrame, today: date) -> list[Fault]:
    index = pd.DatetimeIndex(close.index)
    if index[0] >= EARLIEST and index[-1] <= pd.Timestamp(today):
        return []
    early = [
        Fault("calendar", "*", f"{day.year:04}-{day:%m-%d}", f"is before {EARLIEST.year}; correct the year")
        for day in index[index < EARLIEST]
    ]
    late = [
        Fault("future", str(ticker), f"{day:%Y-%m-%d}", f"is after today ({today}); remove the row")
        for day in index[index > pd.Timestamp(today)]
        for ticker in close.columns
        if close.loc[[day], ticker].notna().any()
    ]
    return early + late


def _drop_unfinished(raw: Tables, seen: datetime) -> tuple[Tables, list[Fault]]:
    """Drop a last row of a session that had not closed: its prices are those of some minute of it."""
    index = pd.DatetimeIndex(raw["close"].index)
    if len(index) < 2 or not sessions.closes_after(index[-1], seen):
        return raw, []
    detail = "the session had not closed when these prices were read off; row dropped"
    fault = Fault("unfinished", "*", f"{index[-1]:%Y-%m-%d}", detail, repaired=True)
    return {name: frame[:-1] for name, frame in raw.items()}, [fault]


def _values(raw: Tables) -> list[Fault]:
    faults = []
    for name, frame in raw.items():
        values = frame.to_numpy(float)
        bad = (values < 0) if name == "volume" else (values <= 0)
        for rule, mask, problem in (
            ("not_positive", bad, "is negative" if name == "volume" else "is not above zero"),
            ("not_a_number", np.isinf(values), "is infinite"),
        ):
            faults += [
                _at(rule, frame, row, column, f"{name} {values[row, column]:g} {problem}; correct it or leave it empty")
                for row, column in np.argwhere(mask).tolist()
            ]
    if {"high", "low"} <= raw.keys():
        high, low = raw["high"].to_numpy(float), raw["low"].to_numpy(float)
        wrong = high < low
        for name in ("open", "close"):
            if name in raw:
                # Vendors round adjusted fields apart: half a basis point is not a fault.
                price = raw[name].to_numpy(float)
                wrong |= (price > high * 1.00005) | (price < low * 0.99995)
        faults += [
            _at("high_low", raw["close"], row, column, f"high {high[row, column]:g}, low {low[row, column]:g} do "
                "not enclose open and close; correct the row")
            for row, column in np.argwhere(wrong).tolist()
        ]  # fmt: skip
    return faults


def _on_sessions(raw: Tables) -> tuple[Tables, list[Fault]]:
    """Put the tables on the NYSE's sessions; other days are dropped and named."""
    index = raw["close"].index
    first, last = index[0], index[-1]
    nyse = sessions.between(first, last)
    if len(nyse) > 1 and nyse.equals(index):
        return {name: frame.set_axis(nyse) for name, frame in raw.items()}, []
    extra = index.difference(nyse)
    if len(nyse) < 2:
        raise DataError(f"too_short: {first:%Y-%m-%d} to {last:%Y-%m-%d} holds {some(len(nyse), 'NYSE session')}")
    if len(extra) > max(5, len(index) // 20):
        raise DataError(
            f"calendar: {len(extra)} of {len(index)} dates are not NYSE sessions (first {extra[0]:%Y-%m-%d}, read as "
            "year-month-day); expected daily prices of New York"
        )
    faults = [
        Fault("non_session", "*", f"{day:%Y-%m-%d}", "no trading on that day; row dropped", repaired=True)
        for day in extra
    ]
    return {name: frame.reindex(nyse) for name, frame in raw.items()}, faults


def _carry_forward(raw: Tables) -> tuple[Tables, list[Fault]]:
    """Fill short gaps inside each ticker's life with the last values before them."""
    faults: list[Fault] = []
    close = raw["close"]
    if not any(np.isnan(frame.to_numpy(float)).any() for frame in raw.values()):
        return raw, []
    for ticker in close.columns:
        life = np.flatnonzero(close[ticker].notna())
        if len(life) < 2:
            faults.append(Fault("missing", str(ticker), f"{close.index[0]:%Y-%m-%d}", "has fewer than two prices"))
            continue
        alive = slice(life[0], life[-1] + 1)
        lacking = pd.DataFrame({name: frame[ticker].isna().iloc[alive] for name, frame in raw.items()})
        gaps = [
            _gap(str(ticker), lacking.iloc[first : first + length])
            for first, length in _runs(lacking.any(axis=1).to_numpy())
        ]
        faults += _judge(str(ticker), gaps, lacking)
    lives = close.ffill().notna() & close.bfill().notna()  # from a ticker's first price to its last
    return {name: frame.ffill(limit=MAX_CARRIED).where(lives) for name, frame in raw.items()}, faults


def _mask_zeros(raw: Tables) -> Tables:
    """Return the tables with zeros as missing values: Yahoo has them for an open, high or low that it does not know.

    So is a volume of 0 after one above it: in logarithms they are a hundred daily changes apart.
    """
    zeros = {name: frame == 0 for name, frame in raw.items() if name != "close"}
    if "volume" in zeros:
        zeros["volume"] &= (raw["volume"] > 0).cumsum() > 0
    return raw | {name: raw[name].mask(zero) for name, zero in zeros.items()}


def _runs(mask: np.ndarray) -> list[tuple[int, int]]:
    """Return the first place and length of each run of True."""
    edges = np.flatnonzero(np.diff(np.r_[False, mask, False]))
    return [(int(first), int(end - first)) for first, end in zip(edges[::2], edges[1::2], strict=True)]


def _gap(ticker: str, lacking: pd.DataFrame) -> Fault:
    """Return the fault of a run of sessions on which a field is missing [session, field]."""
    what, advice = _describe(lacking)
    count, day = some(len(lacking), "session"), f"{lacking.index[0]:%Y-%m-%d}"
    if len(lacking) <= MAX_CARRIED:
        return Fault("missing", ticker, day, f"{count} without {what}; last values carried forward", repaired=True)
    last = f"{lacking.index[-1]:%Y-%m-%d}"
    ways = "give another company after them a ticker of its own, " if lacking["close"].all() else ""
    advice = f"{advice}, {ways}or choose the dates before or after with data.start and data.end"
    return Fault(
        "missing", ticker, day, f"{count} to {last} without {what}; at most {MAX_CARRIED} are filled; {advice}"
    )


def _describe(lacking: pd.DataFrame) -> tuple[str, str]:
    """Return a description of what is missing, and what to do about it."""
    if lacking["close"].any():
        return "a value", "supply daily prices"
    return " or ".join(lacking.columns[lacking.any()]), "supply them, or leave that column out"


def _judge(ticker: str, gaps: list[Fault], lacking: pd.DataFrame) -> list[Fault]:
    """Return the gaps; or one fault, if short or very many ones add up to prices invented rather than repaired."""
    filled = int(lacking.any(axis=1).sum())
    several = all(gap.repaired for gap in gaps) or len(gaps) > MANY_GAPS
    if not several or filled <= max(MAX_CARRIED, MAX_REPAIRED * len(lacking)):
        return gaps
    what, advice = _describe(lacking)
    share = f"{filled} of {len(lacking)} sessions ({filled / len(lacking):.0%})"
    detail = f"{share} are without {what}, in {len(gaps)} gaps; at most {MAX_REPAIRED:.0%} are filled; {advice}"
    return [Fault("missing", ticker, gaps[0].date, detail)]


def _stale(close: pd.DataFrame, real: set[tuple[str, str]]) -> list[Fault]:
    """Return runs of the same closing price: a feed that stopped, or a series that is not a price."""
    faults = []
    for name in close.columns:
        ticker, values = str(name), close[name].to_numpy(float)
        for first, length in _runs(values[1:] == values[:-1]):
            day = f"{close.index[first]:%Y-%m-%d}"
            if length + 1 >= STALE_SESSIONS and (ticker, day) not in real:
                detail = f"the close is {values[first]:g} on {length + 1} sessions in a row; supply the missing prices"
                faults.append(Fault("stale", ticker, day, f"{detail}, {_confirm(ticker, day)}"))
    return faults


def _confirm(ticker: str, day: str) -> str:
    return f"or, if it happened, confirm it with --data.real-moves {ticker}:{day}"


def _moves(close: pd.DataFrame, real: set[tuple[str, str]]) -> list[Fault]:
    """Return one-day moves that look like an unadjusted split or a wrong price."""
    faults = []
    for name in close.columns:
        ticker, log = str(name), np.log(close[name].to_numpy(float))
        ticks = _ticks(log)
        large = set((np.flatnonzero(np.abs(np.diff(log)) > JUMP - SPLIT_TOLERANCE) + 1).tolist())
        wrong_until = -1
        for row in sorted(large | ticks.keys()):
            day = f"{close.index[row]:%Y-%m-%d}"
            if (ticker, day) in real or row <= wrong_until:
                continue
            back = np.flatnonzero(np.abs(log[row + 1 : row + 6] - log[row - 1]) < BACK)
            undone = ticks.get(row) or (row + 1 + int(back[0]) if len(back) else 0)
            wrong_until = undone or wrong_until
            if suspect := _suspect(float(log[row] - log[row - 1]), undone=undone > 0):
                rule, detail = suspect
                faults.append(Fault(rule, ticker, day, f"{detail}, {_confirm(ticker, day)}"))
    return faults


def _ticks(log: np.ndarray) -> dict[int, int]:
    """Return rows of log prices [session] with an unusual move that is undone, and the row that undid it."""
    moves = np.diff(log, prepend=np.nan)
    usual = pd.Series(np.abs(moves)).rolling(TICK_WINDOW, center=True, min_periods=20).median().to_numpy()
    undone = {}
    for row in np.flatnonzero(np.abs(moves) > TICK_DEVIATIONS * MAD_TO_DEVIATION * usual).tolist():
        remainder = TICK_LEFT * abs(moves[row])
        after = slice(row + 1, row + 1 + MAX_CARRIED)
        back = (np.abs(moves[after] + moves[row]) < remainder) & (np.abs(log[after] - log[row - 1]) < remainder)
        if back.any():
            undone[row] = row + 1 + int(back.argmax())
    return undone


def _suspect(move: float, *, undone: bool) -> tuple[str, str] | None:
    """Return rule and detail for a log move that is a fault, or None."""
    nearest = SPLIT_RATIOS[np.abs(np.log(SPLIT_RATIOS) - abs(move)).argmin()]
    if not undone and abs(np.log(nearest) - abs(move)) < SPLIT_TOLERANCE:
        kind = "split" if move < 0 else "reverse split"
        detail = f"moves by {np.exp(move):.3g}x, like an unadjusted {nearest:g}:1 {kind}; adjust the prices before it"
        return "split", detail
    if undone or abs(move) > JUMP:
        is_unit = (np.abs(UNITS - abs(move)) < SPLIT_TOLERANCE).any()
        advice = "write all prices in one unit, such as pence or pounds" if is_unit else "correct the price"
        return "jump", f"moves by {np.exp(move):.3g}x in a day; {advice}"
    return None


def _at(rule: str, frame: pd.DataFrame, row: int, column: int, detail: str) -> Fault:
    return Fault(rule, str(frame.columns[column]), f"{frame.index[row]:%Y-%m-%d}", detail)
