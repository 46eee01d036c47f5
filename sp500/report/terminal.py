"""A run's record as a few lines in a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sp500.report import folds, scale, scale_verdicts
from sp500.report.words import NOTHING, against_naive, fixed, seconds, size
from sp500.runs.record import RunRecord

VERDICTS = {"better": "beats", "worse": "is worse than", "unclear": "cannot be told from", NOTHING: "against"}
MOMENTS = ("daily_sharpe", "skew", "kurtosis")
"""What the deflated Sharpe ratio is made of, and nobody reads."""


def text(record: RunRecord) -> str:
    """What the run found, for a reader."""
    lines = [f"{record.name}: {record.status}" + (f" ({record.reason})" if record.reason else "")]
    lines += _data(record.data)
    if record.search:
        lines += _search(record.search)
    if record.scale is not None:
        lines += _scale(record)
    if record.folds is not None:
        lines += folds.lines(record)
    elif record.metrics:
        lines += _metrics(record.metrics)
    lines.append(f"{record.seconds.total:.1f} s; folder {record.config['io']['save_dir']}/{record.name}")
    return "\n".join(lines)


def _data(card: dict[str, Any]) -> Iterator[str]:
    if "first_date" in card:
        tickers = card["tickers"]
        shown = ", ".join(tickers[:6]) + (f" and {len(tickers) - 6} more" if len(tickers) > 6 else "")
        yield f"data: {shown}, {card['first_date']} to {card['last_date']}, {card['rows']} rows"
    for name, count in card.get("windows", {}).items():
        span = card.get("splits", {}).get(name)
        yield f"  {name}: {count} windows" + (f", {span[0]} to {span[1]}" if span else "")
    for name, row in card.get("feature_summary", {}).items():
        yield f"  {name}: " + ", ".join(f"{key} {value:.4g}" for key, value in row.items())
    yield from (f"  mended: {fault}" for fault in card.get("faults_mended", []))
    yield from (f"  note: {note}" for note in card.get("notes", []))


def _search(search: dict[str, Any]) -> Iterator[str]:
    best = search["best"]
    yield f"best of {search['configs']} configs: {best['overrides']}, validation loss {best['valid_loss']:.6f}"
    if search.get("speedup"):
        yield (
            f"sequential {search['sequential_seconds']:.1f} s, parallel {search['parallel_seconds']:.1f} s on "
            f"{search['cores']} cores: speed-up {search['speedup']:.2f}, same best: {search['same_best']}"
        )


def _scale(record: RunRecord) -> Iterator[str]:
    found = scale.newest([record])
    for row in found.rows:
        head = f"{row['multiplier']:>4}x {scale.label(row):<13} {row['status']}"
        if row["status"] != "ok":
            yield f"{head} {row['reason']}"
            continue
        of = "simulated node" if row["simulated_nodes"] else "process"
        yield (
            f"{head}  {row['samples']} windows in {seconds(row['train_seconds'])} of {seconds(row['seconds'])}, "
            f"{fixed(scale.rate(row), 0)} windows/s, peak {size(row['peak_memory_bytes'])} per {of}"
        )
    yield from scale_verdicts.break_even(found)


def _metrics(metrics: dict[str, Any]) -> Iterator[str]:
    test = metrics["test"]
    for name, row in {
        "test": test,
        **{f"naive {name}": row for name, row in metrics["naive"].items()},
    }.items():
        told = {key: value for key, value in row.items() if isinstance(value, float) and key not in MOMENTS}
        numbers = [f"{key} {value:.6g}" for key, value in told.items()]
        yield f"  {name}: {', '.join(numbers)}"
    if better := test.get("improvement"):
        interval = "" if better["low"] is None else f" (95 % interval {better['low']:+.2%} to {better['high']:+.2%})"
        verdict = VERDICTS[against_naive(better)]
        gain = f"{better['metric']} better by {better['value']:+.2%}{interval}"
        yield f"{verdict} the naive forecast {better['over']!r}: {gain}"
