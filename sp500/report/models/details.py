"""The best model of a group in detail, as tables: tickers, years, portfolios, forecast against outcome, importance.

report.json has the same of every model, with the monthly curves.
"""

from __future__ import annotations

from collections.abc import Mapping

from sp500 import formatting
from sp500.formatting import fixed, percent
from sp500.report.models.results import Group
from sp500.report.models.scores import MODELS, cut_models
from sp500.report.plot_style import Figure
from sp500.report.tables import Table, table
from sp500.runs.details import Breakdown, Importance, Part, Score, Strategy

TICKERS = 100
"""Tickers in a table: the best and the worst half of so many; report.json has all."""
PARTS = 10
"""Features and lags in a table, the most important ones."""
SURVIVORS = (
    "Where the source lists companies of today, those that failed are missing, and every portfolio looks better than "
    "it was."
)


def list_parts(group: Group, importance: Mapping[str, Importance]) -> list[Table | Figure]:
    """Return tables and drawings of the group's best model, all models by what they earned, and importances."""
    # matplotlib takes a second to load, which a terminal need not wait for.
    from sp500.report.models import figures

    shown: list[Table | Figure | None] = [_compare_earnings(group)]
    # The naive forecast is the same for all tickers and dates.
    row = next((row for row in group.models if row["breakdown"] and row["best_epoch"] != 0), None)
    if row and row["breakdown"] and (details := row["breakdown"]()):
        scores = {score["ticker"]: score for score in details["tickers"]}
        shown += [
            figures.tickers(row["name"], scores, group.name),
            by_ticker(f"{row['name']} by ticker", scores),
            figures.portfolios(row["name"], details, group.name),
            _list_portfolios(group, row["name"], details),
            _list_years(row["name"], details),
            _list_bins(row["name"], details),
        ]
    runs = {row["run"]: row["name"] for row in group.models if row["run"] in importance}
    for run, name in runs.items():
        shown += [figures.importance(name, importance[run], run), rank_parts(name, importance[run])]
    return [part for part in shown if part is not None]


def by_ticker(caption: str, scores: Mapping[str, Score]) -> Table | None:
    """Return a table with a row per ticker, largest improvement first; None for one ticker."""
    if len(scores) < 2:
        return None
    ranked = sorted(scores, key=lambda ticker: -(scores[ticker]["improvement"]["value"] or 0.0))
    kept = ranked if len(ranked) <= TICKERS else [*ranked[: TICKERS // 2], *ranked[-TICKERS // 2 :]]
    cut = "" if len(kept) == len(ranked) else f" The first and last {TICKERS // 2} of {len(ranked):,} tickers."
    note = (
        "IC: rank correlation of forecast and outcome over the dates of the ticker. By luck alone one interval in 40 "
        f"lies above zero, and one in 40 below.{cut}"
    )
    lines = [{"Ticker": ticker, **_score_cells(scores[ticker])} for ticker in kept]
    return table(caption, lines, text=("Ticker",), note=note)


def _score_cells(score: Score) -> dict[str, str]:
    return {
        "Windows": f"{score['samples']:,}",
        "Against naive": percent(score["improvement"]["value"], 2, sign=True),
        "95% interval, %": formatting.bounds_percent(score["improvement"]),
        "IC": fixed(score["information_coefficient"], 3),
        "Right direction": percent(score["hit_rate"]),
    }


def _compare_earnings(group: Group) -> Table | None:
    """Return what every model earned by the sign of its forecasts and by its portfolios."""
    lines = []
    for row in group.models[:MODELS]:
        details = row["breakdown"]() if row["breakdown"] else None
        rules = {strategy["name"]: strategy for strategy in details["strategies"]} if details else {}
        if "model" not in rules:
            continue
        line = {"Model": row["name"], **_earning_cells(rules["model"])}
        if spread := rules.get("long_short"):
            line |= {
                "Long-short net Sharpe": _sharpe(spread),
                "Long-short drawdown": percent(spread["max_drawdown"]),
            }
        lines.append(line)
    note = (
        "Net: after costs. Return: mean of a year, not compounded. Drawdown: largest fall of the compounded value from "
        "a peak."
    )
    caption = f"{group.subject}: what trading the sign of each model's forecasts earned"
    return table(caption, lines, text=("Model",), note=" ".join([note, *cut_models(group)])) if lines else None


def _list_portfolios(group: Group, name: str, details: Breakdown) -> Table | None:
    if not details["groups"]:
        return None
    titles = {"group 1": " (lowest forecasts)", f"group {details['groups']}": " (highest)"}
    lines = [
        {"Portfolio": strategy["name"].replace("_", "-") + titles.get(strategy["name"], ""), **_earning_cells(strategy)}
        for strategy in details["strategies"]
        if strategy["name"] != "model"
    ]
    cost = formatting.setting(group.newest.config.get("eval", {}).get("cost_bps"))
    note = (
        f"The tickers of each date, ordered by their forecasts, in {details['groups']} portfolios of equal number and "
        f"weight, after {cost} bp per unit of turnover. Long-short: the highest less the lowest. {SURVIVORS}"
    )
    return table(f"Portfolios by the forecasts of {name}", lines, text=("Portfolio",), note=note)


def _earning_cells(strategy: Strategy) -> dict[str, str]:
    return {
        "Return": percent(strategy["annual_return"], sign=True),
        "Net return": percent(strategy["annual_return_after_cost"], sign=True),
        "Net Sharpe": _sharpe(strategy),
        "Turnover": fixed(strategy["turnover"]),
        "Drawdown": percent(strategy["max_drawdown"]),
    }


def _sharpe(strategy: Strategy) -> str:
    ends = strategy["sharpe_after_cost_interval"]
    return fixed(strategy["sharpe_after_cost"]) + (f" ({formatting.interval(ends)})" if ends else "")


def _list_years(name: str, details: Breakdown) -> Table | None:
    titles = {"model": "Traded, net", "buy_and_hold": "Buy-and-hold, net", "long_short": "Long-short, net"}
    earned = {strategy["name"]: strategy["years"] for strategy in details["strategies"]}
    lines = [
        {
            "Year": str(score["year"]),
            **_score_cells(score),
            **{
                title: percent(earned[rule].get(str(score["year"])), sign=True)
                for rule, title in titles.items()
                if rule in earned
            },
        }
        for score in details["years"]
    ]
    return table(f"{name} by year", lines, text=("Year",)) if len(lines) > 1 else None


def _list_bins(name: str, details: Breakdown) -> Table | None:
    if not details["bins"]:
        return None
    lines = [
        {
            "Forecasts": f"group {number} of {len(details['bins'])}",
            "Windows": f"{part['samples']:,}",
            "Mean forecast": f"{part['forecast']:+.3g}".replace("-", formatting.MINUS),
            "Mean outcome": f"{part['realised']:+.3g}".replace("-", formatting.MINUS),
            "95% interval": formatting.NOTHING
            if part["low"] is None or part["high"] is None
            else f"{part['low']:.3g} to {part['high']:.3g}".replace("-", formatting.MINUS),
        }
        for number, part in enumerate(details["bins"], 1)
    ]
    rest = details["residuals"]
    note = (
        f"Slope of the outcome on the forecast: {fixed(details['slope'], 3)}; 1 where forecasts are of the right size. "
        f"Outcome less forecast: mean {rest['mean']:.3g}, deviation {rest['deviation']:.3g}, skew "
        f"{fixed(rest['skew'])}, kurtosis {fixed(rest['kurtosis'], 1)} (3: normal), correlation of a day's mean with "
        f"that of the day before {fixed(rest['autocorrelation'])}."
    ).replace("-", formatting.MINUS)
    return table(f"Forecast and outcome of {name}", lines, text=("Forecasts",), note=note)


def rank_parts(name: str, importance: Importance) -> Table:
    """Return the table of the most important features and lags of a model."""
    ranked = [
        (kind, part)
        for kind, parts in (("feature", importance["features"]), ("lag", importance["lags"]))
        for part in sorted(parts, key=lambda part: -part["increase"])[:PARTS]
    ]
    lines = [{"Input": f"{kind} {part['name']}", **_part_cells(part)} for kind, part in ranked]
    note = (
        f"Increase of the loss ({importance['metric']}) on "
        f"{importance['windows']:,} validation windows when the input is shuffled among them, mean of "
        f"{importance['repeats']} shuffles, as a share of the loss as it is. Lag 0: the day of the forecast. Inputs "
        "that say the same share their importance."
    )
    return table(f"What {name} uses", lines, text=("Input",), note=note)


def _part_cells(part: Part) -> dict[str, str]:
    return {
        "Increase of the loss": percent(part["share"], 3, sign=True),
        "95% interval, %": formatting.bounds_percent(part),
    }
