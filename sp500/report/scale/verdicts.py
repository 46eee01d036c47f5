"""Verdicts on streaming and the cluster, in sentences.

Every sentence is computed from the rows. Differences within the margin of repeated runs are called "about as fast".
"""

from __future__ import annotations

from collections.abc import Sequence

from sp500.formatting import METRIC, approx, join, outcome, percent, ratio, seconds, size, some
from sp500.report.scale.results import Row, Scale, at, compare_errors, rate, share
from sp500.report.tables import shorten
from sp500.runs.compare import MOST_OTHERS, busy
from sp500.runs.scaling import BASELINES, PLACES
from sp500.suspicion import warn

Sizes = dict[int, Row]
"""Rows of one arm by multiplier."""
SINGLE_RUN = 0.1
"""Share by which a run's speed differs from that of a repeated run: 0.96 to 1.08 of it on a quiet machine
(docs/LOG.md)."""


def sentences(scale: Scale) -> list[str]:
    """Return all sentences on the experiment; nothing if no experiment ran."""
    if not scale.rows:
        return []
    warnings = [*suspect(scale.rows), *busy_rows(scale.rows)]
    gains = [*cluster(scale.rows), *streaming(scale.rows), *break_even(scale), *errors(scale.rows)]
    return [*warnings, *gains, *over_budget(scale.rows), *failures(scale.rows), *one_machine(scale)]


def suspect(rows: Sequence[Row]) -> list[str]:
    """Return the warning before all else if the test metrics of some run are too good to be true."""
    signs = [(row, sign) for row in rows if (sign := row.get("suspicious"))]
    return [warn(f"{_name(row)}: {sign}").strip() for row, sign in signs[:1]]


def busy_rows(rows: Sequence[Row]) -> list[str]:
    """Return the warning that the seconds of some runs are not reliable, before them."""
    named = [f"{_name(row)} ({percent(row.get('others_share'), 0)})" for row in rows if busy(row)]
    if not named:
        return []
    return [
        "The machine was busy: times and speeds are not reliable where other programs took more than "
        f"{percent(MOST_OTHERS, 0)} of the cores, and the break-even leaves them out: {join(named)}."
    ]


def cluster(rows: Sequence[Row]) -> list[str]:
    """Return each number of Ray's workers against one process, at the largest size that both trained on."""
    alone, rays = find_baseline(rows), find_rays(rows)
    if not alone or not rays:
        return ["The gain from the cluster is not known: it needs the arms streaming and ray."]
    return [_compare(sizes, alone) for sizes in rays]


def streaming(rows: Sequence[Row]) -> list[str]:
    """Return streaming against arrays in the same place, at the largest size that both trained on."""
    pairs = [(_sizes(rows, "streaming", place), _sizes(rows, "in_memory", place)) for place in PLACES]
    return [_compare(*pair) for pair in pairs if all(pair)][:1]


def break_even(scale: Scale) -> list[str]:
    """Return from how many windows on more workers are sooner than one process."""
    lines = []
    for law in scale.break_even:
        where = " on the cluster" if law["place"] == "cluster" else ""
        head = f"{some(law['workers'], 'Ray worker')}{where}"
        if law["windows"] is None:
            lines.append(f"{head}: not sooner than one process as the data grows.")
        else:
            first = f"from about {approx(law['windows'])} windows trained" if law["windows"] else "at every size"
            lines.append(f"{head}: sooner than one process {first}.")
    return lines


def errors(rows: Sequence[Row]) -> list[str]:
    """Return how far the test errors of trained models are apart at one size; nothing if no two were trained."""
    gaps = compare_errors(rows)
    if not gaps:
        return []
    largest = max(gaps, key=lambda multiplier: gaps[multiplier])
    metric = METRIC.get(rows[0]["metric"], "test error")
    apart = percent(gaps[largest], 2)
    return [f"The {metric} of the arms differs by up to {apart} (at {at(largest)})."]


def over_budget(rows: Sequence[Row]) -> list[str]:
    """Return the runs that ended well but took more than their memory."""
    over = [row for row in rows if row["status"] == "ok" and (share(row) or 0) > 1]
    named = [f"{_name(row)} ({size(row['peak_memory_bytes'])})" for row in over]
    return [f"Over the memory budget: {join(named)}."] if named else []


def failures(rows: Sequence[Row]) -> list[str]:
    """Return the runs that did not end well, and why."""
    endings = [
        f"{_name(row)} ({outcome(row['status'], shorten(row['reason']))})" for row in rows if row["status"] != "ok"
    ]
    return [f"Did not end well: {'; '.join(endings)}."] if endings else []


def one_machine(scale: Scale) -> list[str]:
    """Return what one machine cannot show."""
    rays = [row for row in scale.rows if row["num_workers"] and (row["status"], row["place"]) == ("ok", "machine")]
    if not rays:
        return []
    row = max(rays, key=lambda row: row["num_workers"])
    workers, cores = some(row["num_workers"], "worker"), some(row["cores"], "core")
    nodes = f" on {some(row['simulated_nodes'], 'simulated node')}" if row["simulated_nodes"] else ""
    return [
        f"{workers}{nodes} shared the {cores} of one machine. This shows what distributing costs, not what more "
        "machines would gain."
    ]


def margin(row: Row) -> float:
    """Return the share by which the speed of a run is uncertain: half of its epochs' range, and SINGLE_RUN at least."""
    rates = row["rates"]
    return max(SINGLE_RUN, (max(rates) - min(rates)) / (max(rates) + min(rates)) if rates else 0.0)


def find_baseline(rows: Sequence[Row]) -> Sizes:
    """Return rows of one process: of the user's machine before the cluster's, streaming before arrays."""
    series = (_sizes(rows, arm, place) for place in PLACES for arm in BASELINES)
    return next((sizes for sizes in series if sizes), {})


def find_rays(rows: Sequence[Row]) -> list[Sizes]:
    """Return the rows of Ray per place and number of workers."""
    kinds = sorted({(row["place"], row["num_workers"]) for row in rows if row["num_workers"]})
    return [sizes for place, workers in kinds if (sizes := _sizes(rows, "ray", place, workers))]


def ended(*arms: Sizes) -> set[int]:
    """Return the sizes at which all of these arms ended well."""
    return set.intersection(
        *({multiplier for multiplier, row in sizes.items() if row["status"] == "ok"} for sizes in arms)
    )


def count_seconds(row: Row) -> float:
    """Return the seconds from start to end, without writing shards, since the next run finds them written."""
    return row["seconds"] - row["writing_seconds"]


def describe_speed(times: float, within: float) -> str:
    """Return whether something is faster, by its speed over another's and the margin of both."""
    alike = 1 / (1 + within) <= times <= 1 + within
    return "about as fast" if alike else "faster" if times > 1 else "slower"


def _compare(arm: Sizes, base: Sizes) -> str:
    """Return seconds, rate and peak memory of an arm against another's, at the largest size that both trained on."""
    if not (both := ended(arm, base)):
        name, against = (next(iter(sizes.values()))["label"] for sizes in (arm, base))
        return f"Not compared, since no size completed with both: {name} and {against}."
    row, other = arm[max(both)], base[max(both)]
    times = count_seconds(other) / count_seconds(row)
    verdict = describe_speed(times, margin(row) + margin(other))
    values = [
        (seconds(count_seconds(each)), approx(rate(each) or 0), each["peak_memory_bytes"]) for each in (row, other)
    ]
    own, theirs = (f"{took}, {per_second} windows/s, peak {size(peak)}" for took, per_second, peak in values)
    against = f"{row['label']} ({own}) against {other['label']} ({theirs})"
    return f"At {at(max(both))}, {against}: {verdict}, {ratio(times)} the speed."


def _name(row: Row) -> str:
    return f"{row['label']} at {at(row['multiplier'])}"


def _sizes(rows: Sequence[Row], arm: str, place: str, workers: int = 0) -> Sizes:
    key = arm, place, workers
    return {row["multiplier"]: row for row in rows if (row["arm"], row["place"], row["num_workers"]) == key}
