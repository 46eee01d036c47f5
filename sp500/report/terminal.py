"""A run's record as a few lines in a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sp500 import formatting
from sp500.config.task import TaskKind, of_record
from sp500.formatting import KEPT, NOTHING, against_naive, approx, fixed, seconds, shorten, size, some
from sp500.programs.results import ProgramSummary
from sp500.report import folds
from sp500.report.models import scores
from sp500.report.models import verdicts as verdicts_of_models
from sp500.report.scale import verdicts
from sp500.report.scale.results import collect, rate
from sp500.report.search import arms
from sp500.runs.record import RunRecord, Throughput
from sp500.runs.results import DataCard, Improvement, SearchSummary
from sp500.suspicion import find_signs, warn

VERDICTS = {
    "better": "beats",
    "worse": "is worse than",
    "unclear": "cannot be told apart from",
    KEPT: "against",
    NOTHING: "against",
}
SCALES = {"rsi_14": " (-1 to 1: an RSI of 70 is 0.4)"}
"""Meaning of a feature's values, if others use another scale."""


def text(record: RunRecord, runs_dir: Path) -> str:
    """Return what a run of that folder of runs found, for a reader."""
    lines = [f"{record.name}: {record.status}" + (f" ({record.reason})" if record.reason else "")]
    lines += _data(record.data)
    if record.search:
        lines += _search(record.search)
    if record.program:
        lines += _program(record.program)
    if record.scale is not None:
        lines += _scale(record)
    if record.folds is not None:
        lines += folds.lines(record)
    elif record.elsewhere:
        lines += [*_metrics(record), verdicts_of_models.tries(record.elsewhere["file"], record.elsewhere)]
    elif record.metrics:
        lines += [*_training(record), *_metrics(record), *_seeds(record)]
    if record.throughput:
        lines += _throughput(record.throughput)
    lines.append(f"{record.seconds.total:.1f} s; folder {runs_dir / record.name}")
    return "\n".join(lines)


def _data(card: DataCard) -> Iterator[str]:
    if "first_date" in card:
        tickers = card["tickers"]
        shown = ", ".join(tickers[:6]) + (f" and {len(tickers) - 6} more" if len(tickers) > 6 else "")
        yield f"data: {shown}, {card['first_date']} to {card['last_date']}, {card['rows']} rows"
    for name, count in card.get("windows", {}).items():
        span = card.get("splits", {}).get(name)
        yield f"  {name}: {count} windows" + (f", {span[0]} to {span[1]}" if span else "")
    for name, row in card.get("feature_summary", {}).items():
        yield f"  {name}{SCALES.get(name, '')}: " + ", ".join(f"{key} {value:.4g}" for key, value in row.items())
    yield from (f"  repaired: {repair}" for repair in card.get("repairs", []))
    yield from (f"  note: {note}" for note in card.get("notes", []))


def _training(record: RunRecord) -> Iterator[str]:
    """Yield why training ended, which epoch was chosen, and what a refit trained on."""
    train, best = record.config["train"], record.best_epoch
    if record.stages:
        if record.stages > 1:
            yield f"{record.stages} stages were fitted, and the first {best} are used"
        yield from _refit(record, "stages" if record.stages > 1 else "")
        return
    patience, chosen = train["early_stop_patience"], "valid" in record.metrics and best is not None
    if chosen and not record.search and not train["max_steps"] and 0 < patience < train["epochs"] - best:
        ended = f"stopped after epoch {best + patience}: {some(patience, 'epoch')} without a lower validation loss"
        yield f"{ended} (--train.early-stop-patience)" + (f"; the best, {best}, is used" if best else "")
    if best == 0:
        start = "naive forecast" if _starts_naive(record) else "untrained model"
        loss = "" if record.untrained_loss is None else f" ({record.untrained_loss:.6f})"
        yield f"no epoch had a lower validation loss than the {start} that training starts from{loss}, which is used"
    elif chosen and best == train["epochs"]:
        yield f"the last epoch, {best}, was the best: more epochs (--train.epochs) may help"
    yield from _refit(record, "epochs")


def _refit(record: RunRecord, what: str) -> Iterator[str]:
    if record.refit and record.refit["epochs"]:
        dates = record.refit["splits"].get("train", ())
        span = f", {' to '.join(dates)}" if dates else ""
        length = f" for {record.refit['epochs']} {what}" if what else ""
        yield f"refit{length} on {record.refit['windows']} windows{span}"


def _seeds(record: RunRecord) -> Iterator[str]:
    """Yield how far the metrics spread over several seeds."""
    if spread := scores.seeds_table([record]):
        titles = [column.title for column in spread.columns]
        cells = dict(zip(titles, spread.rows[0].cells, strict=True))
        shown = [
            f"{title} {cell}" for title, cell in cells.items() if title not in {"Run", "Seeds"} and cell != NOTHING
        ]
        yield f"over {cells['Seeds']} seeds: {', '.join(shown)}; the figures above are the first one's"


def _throughput(speed: Throughput) -> Iterator[str]:
    reached = f"{speed.mfu:.1%} of the speed of a matrix product on the same device"
    known = f", {speed.data_sheet_mfu:.1%} of its data sheet" if speed.data_sheet_mfu else ""
    yield f"{approx(speed.per_second)} {speed.unit}/s in training, {speed.parameters:,} parameters: {reached}{known}"


def _starts_naive(record: RunRecord) -> bool:
    return of_record(record.config).from_prices


def _search(search: SearchSummary) -> Iterator[str]:
    best = search["best"]
    shown = {key: shorten(value) if isinstance(value, str) else value for key, value in best["overrides"].items()}
    yield f"best of {some(search['configs'], 'config')}: {shown}, {_loss(search)}"
    yield from arms.halving(search)
    yield from arms.describe_stopped(search)
    if search.get("arms"):
        yield from arms.sentences(search)


def _loss(search: SearchSummary) -> str:
    """Return the best value with its name: of a program of the user's its metric."""
    sign = -1 if search.get("maximize") else 1
    return f"{search.get('metric', 'validation loss')} {sign * search['best']['valid_loss']:.6f}"


def _program(found: ProgramSummary) -> Iterator[str]:
    value = f"printed no {found['metric']}"
    if found["value"] is not None:
        samples = "" if found["samples"] is None else f", {found['samples']:,} samples"
        value = f"{found['metric']} {found['value']:.6g} at epoch {found['epochs']}{samples}"
    yield f"{value}; peak {size(max(found['memory_bytes']))} per process tree"


def _scale(record: RunRecord) -> Iterator[str]:
    scale = collect([record])
    yield from (*verdicts.suspect(scale.rows), *verdicts.busy_rows(scale.rows))
    for row in scale.rows:
        head = f"{row['multiplier']:>4}x {row['label']:<13} {row['status']}"
        if row["status"] != "ok":
            yield f"{head} {row['reason']}"
            continue
        of = "simulated node" if row["simulated_nodes"] else "process"
        yield (
            f"{head}  {row['samples']} windows in {seconds(row['train_seconds'])} of {seconds(row['seconds'])}, "
            f"{fixed(rate(row), 0)} windows/s, peak {size(row['peak_memory_bytes'])} per {of}"
        )
    yield from verdicts.break_even(scale)


def _metrics(record: RunRecord) -> Iterator[str]:
    test, naive, kind = record.metrics["test"], record.metrics["naive"], of_record(record.config)
    rows = {"test": test, **{f"naive, {kind.name_naive(name)}": row for name, row in naive.items()}}
    rows |= {formatting.BUY_AND_HOLD: test["buy_and_hold"]} if test.get("buy_and_hold") else {}
    columns = scores.columns(list(rows.values()))
    for name, row in rows.items():
        yield f"  {name}: {', '.join(f'{metric.title} {metric.text(row)}' for metric in columns if metric.key in row)}"
    if better := test.get("improvement"):
        verdict = _improvement(better, kind, record.best_epoch)
        warning = warn(find_signs(record.config, record.data, test, naive.values()))
        yield f"{warning}The model {verdict}" if warning else verdict


def _improvement(improvement: Improvement, kind: TaskKind, best_epoch: int | None) -> str:
    rival = f"the naive forecast ({kind.name_naive(improvement['over'])})"
    if improvement["value"] is None:
        return f"no improvement to compute: {rival} is never wrong on the test dates"
    interval = (
        ""
        if improvement["low"] is None
        else f" (95% interval for this test set {improvement['low']:+.2%} to {improvement['high']:+.2%})"
    )
    metric = formatting.METRIC.get(improvement["metric"], improvement["metric"])
    gain = f"improvement in {metric} {improvement['value']:+.2%}{interval}"
    return f"{VERDICTS[against_naive(improvement, best_epoch)]} {rival}: {gain}"
