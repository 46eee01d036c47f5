"""What a search found, as tables."""

from __future__ import annotations

from sp500.report import scores, words
from sp500.report.search import Search, Side
from sp500.report.search_settings import Trial, ended
from sp500.report.tables import Table, table
from sp500.report.words import NOTHING, fixed, percent, seconds

TOP, REASONS = 5, 20
"""Rows of the best configs and of the reasons of failed ones."""


def tables(found: Search) -> list[Table]:
    """The best configs, the chosen one on validation and test, and why others failed."""
    made = (best_trials(found), by_dataset(found), both_splits(found), failed_trials(found))
    return [one for one in made if one is not None]


def key_figures(found: Search) -> Table:
    """The search in one row."""
    numbers = found.compared
    line = {
        "Configs": fixed(numbers["configs"], 0),
        "One after another": seconds(numbers["sequential_seconds"]),
        "Ray Tune": seconds(numbers["parallel_seconds"]),
        "Speed-up": words.ratio(numbers["speedup"]),
        "Cores": fixed(found.cores, 0),
        "Efficiency per core": percent(numbers["efficiency"], 0),
        "Same best config": {None: NOTHING, True: "yes", False: "no"}[numbers["same_best"]],
        "Gap of best losses": words.gap(numbers["metric_gap"]),
    }
    return table("Key figures of the search", [line], text=line, look="key")


def best_trials(found: Search) -> Table | None:
    """The configs with the lowest validation loss, with the seconds that each side took for them."""
    if not found.trials:
        return None
    top = sorted(ended(found.trials), key=lambda trial: (float(trial["loss"]), str(trial["id"])))[:TOP]
    traded = any(trial.get("valid_sharpe") is not None for trial in top)
    packed = any(trial.get("pack", 1) > 1 for side in found.sides for trial in side.trials.values())
    lines = []
    for trial in top:
        line = {"Config": words.config(trial["overrides"]), "Valid loss": fixed(trial["valid_loss"], 6)}
        line |= {"Of naive": percent(trial["loss"], 2)} if found.relative else {}
        line |= {"Valid daily Sharpe": fixed(trial.get("valid_sharpe"), 3)} if traded else {}
        line |= {"Best epoch": words.setting(trial["best_epoch"]), "Epochs": words.setting(trial["epochs"])}
        for side in found.sides:
            one = side.trials.get(trial["id"], {})
            line[f"Seconds, {side.name}"] = seconds(one.get("seconds"))
            line |= {f"Together, {side.name}": words.setting(one.get("pack", 1))} if packed else {}
        lines.append(line | {"Id": trial["id"]})
    caption = f"The {len(top)} best of {words.some(len(found.trials), 'config')}"
    note = "Together: configs that trained in one pack, whose seconds are shared." if packed else ""
    return table(caption, lines, text=("Config", "Id"), note=note)


def by_dataset(found: Search) -> Table | None:
    """The best config of each set of data, where the search had several."""
    alike = found.summary.get("by_dataset") or []
    lines = [
        {"Data": one["dataset"], "Best config": words.config(one["overrides"])}
        | {"Valid loss": fixed(one["valid_loss"], 6), "Of naive": percent(one.get("score"), 2), "Id": one["id"]}
        for one in alike
    ]
    note = "Of naive: validation loss over that of always answering zero."
    caption = "The best config of each set of data, best first"
    return table(caption, lines, text=("Data", "Best config", "Id"), note=note) if len(lines) > 1 else None


def both_splits(found: Search) -> Table | None:
    """The chosen config on the split that it was chosen by and on the one that was looked at once."""
    metrics = found.told.metrics if found.told else {}
    splits = [("validation, which chose it", metrics.get("valid")), ("test, looked at once", metrics.get("test"))]
    rows = [(name, row) for name, row in splits if row]
    if len(rows) < 2:
        return None
    shown = scores.columns([row for _, row in rows])
    lines = [{"Split": name} | {title: show(row.get(key)) for title, key, show in shown} for name, row in rows]
    caption = "The chosen config on validation and test"
    return table(caption, lines, text=("Split",), note="Validation flatters: the config is the best of many on it.")


def failed_trials(found: Search) -> Table | None:
    """Why configs failed, the commonest reason first; the same reason stands once."""
    failed: dict[str, list[tuple[Side, str, Trial]]] = {}
    for side in found.sides:
        for key, trial in side.trials.items():
            if trial["status"] != "ok":
                failed.setdefault(trial["reason"], []).append((side, key, trial))
    if not failed:
        return None
    counts = {reason: len({key for _, key, _ in alike}) for reason, alike in failed.items()}
    ranked = sorted(failed, key=lambda reason: -counts[reason])
    lines = [
        {
            "Reason": reason or "not known",
            "Configs": str(counts[reason]),
            "Side": words.listed(list(dict.fromkeys(side.name for side, _, _ in failed[reason]))),
            "Settings of the first": words.config(failed[reason][0][2]["overrides"]),
            "Its id": failed[reason][0][1],
        }
        for reason in ranked[:REASONS]
    ]
    left = ranked[REASONS:]
    more = f"{words.some(sum(counts[one] for one in left), 'config')} more failed for {len(left)} further reasons."
    every = {key for alike in failed.values() for _, key, _ in alike}
    caption = f"{words.some(len(every), 'failed config')}, by reason"
    text = ("Reason", "Side", "Settings of the first", "Its id")
    return table(caption, lines, text=text, kinds=["bad"] * len(lines), note=more if left else "")
