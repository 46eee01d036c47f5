"""A run's record as a few lines in a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sp500.report.words import NOTHING, against_naive
from sp500.runs.record import RunRecord

VERDICTS = {"better": "beats", "worse": "is worse than", "unclear": "cannot be told from", NOTHING: "against"}


def text(record: RunRecord) -> str:
    """What the run found, for a reader."""
    lines = [f"{record.name}: {record.status}" + (f" ({record.reason})" if record.reason else "")]
    lines += _data(record.data)
    if record.search:
        lines += _search(record.search)
    if record.scale is not None:
        lines += [_scale_row(row) for row in record.scale]
    if record.metrics:
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


def _scale_row(row: dict[str, Any]) -> str:
    head = f"{row['multiplier']:>4}x {row['arm']:<10} {row['status']}"
    if not row["samples_per_second"]:
        return f"{head} {row['reason']}"
    of = "simulated node" if row.get("simulated_nodes") else "process"
    return (
        f"{head}  {row['samples']} windows in {row['train_seconds']:.1f} s of {row['seconds']:.1f} s, "
        f"{row['samples_per_second']:.0f} windows/s, peak {row['peak_memory_bytes'] / 2**20:.0f} MiB per {of}"
    )


def _metrics(metrics: dict[str, Any]) -> Iterator[str]:
    test = metrics["test"]
    for name, row in {
        "test": test,
        **{f"naive {name}": row for name, row in metrics["naive"].items()},
    }.items():
        numbers = [f"{key} {value:.6g}" for key, value in row.items() if isinstance(value, float)]
        yield f"  {name}: {', '.join(numbers)}"
    if better := test.get("improvement"):
        interval = "" if better["low"] is None else f" (95 % interval {better['low']:+.2%} to {better['high']:+.2%})"
        verdict = VERDICTS[against_naive(better)]
        gain = f"{better['metric']} better by {better['value']:+.2%}{interval}"
        yield f"{verdict} the naive forecast {better['over']!r}: {gain}"
