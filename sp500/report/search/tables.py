"""Tables of a search."""

from __future__ import annotations

from sp500 import formatting
from sp500.formatting import fixed, percent, seconds
from sp500.report.models import scores
from sp500.report.search.hyperparameters import Trial, drop_failed
from sp500.report.search.results import Search, Side
from sp500.report.tables import Table, shorten, table
from sp500.runs.results import ChosenConfig

TOP, REASONS = 5, 20
"""Rows of the best configs and of the reasons of failed ones."""
CUT = "A reason that ends in \u2026 is cut; trials.jsonl in the run's folder has all of it."


def tables(search: Search) -> list[Table]:
    """Return the best configs, the chosen one on validation and test, and why others failed."""
    candidates = (best_trials(search), by_dataset(search), both_splits(search), failures(search))
    return [candidate for candidate in candidates if candidate is not None]


def best_trials(search: Search) -> Table | None:
    """Return the configs with the lowest validation loss, with the seconds that each arm spent on them."""
    if not search.trials:
        return None
    top = sorted(drop_failed(search.trials), key=lambda trial: (trial.loss, trial.id))[:TOP]
    traded = any(trial.valid_excess_sharpe is not None for trial in top)
    packed = any(trial.pack > 1 for side in search.sides for trial in side.trials.values())
    lines = []
    for trial in top:
        line = {"Config": formatting.config(trial.overrides)}
        line |= {search.measure: fixed(search.sign * trial.loss, 6)} if search.measure else {}
        line |= {} if search.metric else {"Valid loss": fixed(trial.valid_loss, 6)}
        line |= {"Of naive": percent(trial.loss, 2)} if search.relative else {}
        line |= {"Excess Sharpe": fixed(_annual(trial, search))} if traded else {}
        line |= {"Best epoch": formatting.setting(trial.best_epoch), "Epochs": formatting.setting(trial.epochs)}
        for side in search.sides:
            same = side.trials.get(trial.id)
            line[f"Seconds, {side.name}"] = seconds(same.seconds if same else None)
            line |= {f"Together, {side.name}": formatting.setting(same.pack if same else 1)} if packed else {}
        lines.append(line | {"Id": trial.id})
    arm = f", {search.shown.name}" if search.shown and len(search.sides) > 1 else ""
    caption = f"The {len(top)} best of {formatting.some(len(search.trials), 'config')}{arm}"
    notes = [f"Valid loss: {search.loss_definition}"] if search.loss_definition else []
    notes += ["Together: configs that trained in one pack, whose seconds are shared."] if packed else []
    if traded:
        notes.append(
            "Excess Sharpe: a year, of the validation returns over buy-and-hold, before costs; a dash: always long."
        )
    return table(caption, lines, text=("Config", "Id"), note=" ".join(notes))


def _annual(trial: Trial, search: Search) -> float | None:
    """Return a trial's Sharpe ratio per year."""
    each = trial.valid_excess_sharpe
    return None if each is None else each * search.trades_per_year**0.5


def by_dataset(search: Search) -> Table | None:
    """Return the best config of each set of data, if the search had several."""
    alike = search.summary["by_dataset"] if search.summary else []
    title = search.measure or "Of naive"
    note = "" if search.measure else "Of naive: validation loss over that of always answering zero."

    def score(config: ChosenConfig) -> str:
        """Return what the configs are ranked by."""
        if not search.measure or config["score"] is None:
            return percent(config["score"], 2)
        return fixed(search.sign * config["score"], 6)

    lines = [
        {"Data": config["dataset"], "Best config": formatting.config(config["overrides"])}
        | {"Valid loss": fixed(config["valid_loss"], 6)}
        | {title: score(config), "Id": config["id"]}
        for config in alike
    ]
    caption = "The best config of each set of data, best first"
    return table(caption, lines, text=("Data", "Best config", "Id"), note=note) if len(lines) > 1 else None


def both_splits(search: Search) -> Table | None:
    """Return the chosen config and buy-and-hold on the split that chose the config and on the test."""
    metrics = search.record.metrics if search.record else {}
    splits = [(name, metrics[key]) for name, key in (("validation", "valid"), ("test", "test")) if metrics.get(key)]
    if len(splits) < 2:
        return None
    rows = [
        (model, name, row)
        for name, split in splits
        for model, row in (("chosen config", split), (formatting.BUY_AND_HOLD, split.get("buy_and_hold")))
        if row
    ]
    shown = scores.columns([row for _, _, row in rows])
    lines = [
        {"Model": model, "Split": name} | {metric.title: metric.text(row) for metric in shown}
        for model, name, row in rows
    ]
    notes = ["The config was chosen as the best of many on validation, so its validation row flatters it."]
    if any(metric.key == "sharpe_after_cost" for metric in shown):
        notes.append(scores.sharpe_note(search.record.config if search.record else {}))
    kinds = ["naive" if model == formatting.BUY_AND_HOLD else "" for model, _, _ in rows]
    caption = "The chosen config on validation and test"
    return table(caption, lines, text=("Model", "Split"), kinds=kinds, note=" ".join(notes))


def failures(search: Search) -> Table | None:
    """Return why configs failed, the commonest reason first, each reason once."""
    failed: dict[str, list[tuple[Side, str, Trial]]] = {}
    for side in search.sides:
        for key, trial in side.trials.items():
            if trial.status != "ok":
                failed.setdefault(trial.reason, []).append((side, key, trial))
    if not failed:
        return None
    counts = {reason: len({key for _, key, _ in alike}) for reason, alike in failed.items()}
    ranked = sorted(failed, key=lambda reason: -counts[reason])
    lines = [
        {
            "Reason": shorten(reason) or "not known",
            "Configs": str(counts[reason]),
            "Arm": formatting.join(list(dict.fromkeys(side.name for side, _, _ in failed[reason]))),
            "Settings of the first": formatting.config(failed[reason][0][2].overrides),
            "Its id": failed[reason][0][1],
        }
        for reason in ranked[:REASONS]
    ]
    left = ranked[REASONS:]
    notes = [CUT] if any(shorten(reason) != reason for reason in ranked[:REASONS]) else []
    others = formatting.some(sum(counts[reason] for reason in left), "config")
    more = f"{others} more failed for {len(left)} further reasons."
    notes += [more] if left else []
    every = {key for alike in failed.values() for _, key, _ in alike}
    caption = f"{formatting.some(len(every), 'failed config')}, by reason"
    text = ("Reason", "Arm", "Settings of the first", "Its id")
    return table(caption, lines, text=text, kinds=["bad"] * len(lines), note=" ".join(notes))
