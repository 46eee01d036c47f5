"""Verdicts on streaming and the cluster, in sentences.

Every sentence is computed from the rows. Differences within the margin of repeated runs are called "about as fast".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sp500 import formatting
from sp500.formatting import METRIC, TIMES, approx, join, percent, ratio, seconds, size, some
from sp500.report.scale.results import Row, Scale, at, by_arm, share
from sp500.report.tables import shorten
from sp500.runs.compare import MOST_OTHERS, busy
from sp500.runs.results import BreakEven, Law
from sp500.runs.scaling import BASELINES, PLACES
from sp500.suspicion import warn

Sizes = dict[int, Row]
"""Rows of one arm by multiplier."""
CostOf = Callable[[str], str]
"""Cost of a run, by its name, with its currency; '' if it is not known."""
SINGLE_RUN = 0.1
"""Share by which a run's speed differs from that of a repeated run: 0.96 to 1.08 of it on a quiet machine
(docs/LOG.md)."""
SAME_MEMORY = 0.05
SAME_ERROR = 1e-6
SMALL_MISS = 0.01


def no_cost(_run: str) -> str:
    """Return no cost: no rates are known."""
    return ""


def sentences(scale: Scale, cost_of: CostOf = no_cost) -> list[str]:
    """Return all sentences on the experiment; nothing if no experiment ran."""
    if not scale.rows:
        return []
    gains = [*cluster(scale.rows, cost_of), *streaming(scale.rows), *break_even(scale)]
    rest = [*budget(scale.rows), *one_machine(scale), *failures(scale.rows)]
    return [*suspect(scale.rows), *busy_rows(scale.rows), *gains, *numbers(scale.rows), *rest]


def suspect(rows: Sequence[Row]) -> list[str]:
    """Return the warning before all else if the test metrics of some run are too good to be true."""
    signs = [(row, sign) for row in rows if (sign := row.get("suspicious"))]
    return [warn(f"{row['label']} at {at(row['multiplier'])}: {sign}").strip() for row, sign in signs[:1]]


def busy_rows(rows: Sequence[Row]) -> list[str]:
    """Return the warning that the seconds of some runs are not reliable, before them."""
    named = [
        f"{row['label']} at {at(row['multiplier'])} ({percent(row.get('others_share'), 0)})"
        for row in rows
        if busy(row)
    ]
    if not named:
        return []
    return [
        "The machine was busy: times and speeds are not reliable where other programs took more than "
        f"{percent(MOST_OTHERS, 0)} of the cores, and the break-even leaves them out: {join(named)}."
    ]


def cluster(rows: Sequence[Row], cost_of: CostOf = no_cost) -> list[str]:
    """Return seconds, speed and cost of Ray against one process, at the largest size that both trained on."""
    alone, rays = find_baseline(rows), find_rays(rows)
    if not alone or not rays:
        missing = [arm for arm, ran in (("streaming", alone), ("ray", rays)) if not ran]
        return [f"The gain from the cluster is unknown: run the {join([f'arm {arm}' for arm in missing])}."]
    lines = []
    for sizes in rays:
        name = next(iter(sizes.values()))["label"]
        if both := ended(alone, sizes):
            lines.append(_against(alone[max(both)], sizes[max(both)], cost_of))
        else:
            lines.append(f"The gain from {name} is unknown: no size completed both there and in one process.")
    return lines + _beyond(alone, rays, cost_of)


def streaming(rows: Sequence[Row]) -> list[str]:
    """Return speed and memory against arrays in the same place, and the sizes that only streaming could train on."""
    pairs = [(_sizes(rows, "in_memory", place), _sizes(rows, "streaming", place)) for place in PLACES]
    arrays, streamed = next((pair for pair in pairs if all(pair)), ({}, {}))
    if not arrays:
        return ["The gain from streaming is unknown: run the arms in_memory and streaming."]
    both = ended(arrays, streamed)
    if not both:
        return [
            "The speed of streaming is unknown: no size completed with both arms.",
            *_too_large(arrays, streamed),
        ]
    first, second = streamed[max(both)], arrays[max(both)]
    peak, other = first["peak_memory_bytes"], second["peak_memory_bytes"]
    memory = "memory was not measured"
    if peak and other:
        verdict = _choose(peak / other, SAME_MEMORY, ("less", "about the same", "more"))
        memory = f"{verdict} memory, {ratio(peak / other)} the peak ({size(peak)} compared with {size(other)})"
    return [
        f"Streaming at {at(max(both))}, compared with arrays in memory: {_speed(first, second)}; {memory}.",
        *_too_large(arrays, streamed),
    ]


def break_even(scale: Scale) -> list[str]:
    """Return the number of windows above which more workers finish sooner, and the two lines that cross there."""
    if not scale.break_even:
        return []
    per_size = next((row["windows"] / row["multiplier"] for row in scale.rows if row["windows"]), None)
    ended = [row for row in scale.rows if row["status"] == "ok"]
    trained = max((row["samples"] for row in ended), default=0)
    largest = max((row["multiplier"] for row in ended), default=1)
    crossings = [_crossing(law, per_size, trained, largest) for law in scale.break_even]
    alone = scale.break_even[0]["alone"]
    lines = [f"{_line(alone)} in one process ({formatting.arm(alone['arm'])})"]
    lines += [f"{_line(law['ray'])} on {some(law['workers'], 'worker')}" for law in scale.break_even]
    basis = f"with the median fixed seconds of all sizes and the rate at {at(largest)}"
    miss = max(line["largest_miss"] for law in scale.break_even for line in (law["alone"], law["ray"]))
    off = f" It misses the seconds of these runs by up to {percent(miss, 0)}." if miss >= SMALL_MISS else ""
    return [
        *crossings,
        f"Estimated by seconds = fixed + windows {TIMES} epochs / rate, {basis}: {join(lines)}.{off}",
    ]


def numbers(rows: Sequence[Row]) -> list[str]:
    """Return whether the arms ended in the same model, by the test error at every size that several arms trained on."""
    sized: dict[int, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row["multiplier"]):
        if row["status"] == "ok" and row["test_error"]:
            sized.setdefault(row["multiplier"], []).append(row)
    several = {multiplier: group for multiplier, group in sized.items() if len(group) > 1}
    kept = [at(multiplier) for multiplier, group in several.items() if all(row["best_epoch"] == 0 for row in group)]
    lines = [_spread(multiplier, group) for multiplier, group in several.items() if at(multiplier) not in kept]
    if kept:
        metric = METRIC.get(rows[0]["metric"], "test error")
        lines.append(
            f"All runs at {join(kept)} kept the naive forecast that training starts from, so their {metric} is the "
            "same by construction."
        )
    return lines


def _spread(multiplier: int, group: Sequence[Row]) -> str:
    """Return how far the test errors of a size are apart, if not all are the naive forecast's."""
    metric, errors = METRIC.get(group[0]["metric"], "test error"), [row["test_error"] or 0.0 for row in group]
    spread, kept = max(errors) / min(errors) - 1, sum(row["best_epoch"] == 0 for row in group)
    if spread <= SAME_ERROR:
        return f"The {metric} at {at(multiplier)} is the same in all {len(errors)} runs."
    between = f"{min(errors):.4g} and {max(errors):.4g}"
    naive = f", of which {kept} kept the naive forecast" if kept else ""
    return (
        f"The {metric} at {at(multiplier)} is between {between}, {percent(spread, 2)} apart in {len(errors)} "
        f"runs{naive}."
    )


def budget(rows: Sequence[Row]) -> list[str]:
    """Return whether every run that ended well stayed within its memory."""
    measured = [(part, row) for row in rows if row["status"] == "ok" and (part := share(row)) is not None]
    if not measured:
        return []
    if over := [row for part, row in measured if part > 1]:
        named = [f"{row['label']} at {at(row['multiplier'])} ({_peak(row)})" for row in over]
        rest = len(measured) - len(over)
        return [f"Over the memory budget: {join(named)}; {some(rest, 'other run')} stayed within it."]
    part, row = max(measured, key=lambda pair: pair[0])
    most = f"{row['label']} at {at(row['multiplier'])}, {_peak(row)}"
    return [f"All {len(measured)} measured runs stayed within the memory budget; the largest peak was {most}."]


def one_machine(scale: Scale) -> list[str]:
    """Return what one machine cannot show."""
    rays = [row for row in scale.rows if row["num_workers"] and (row["status"], row["place"]) == ("ok", "machine")]
    if not rays:
        return []
    row = max(rays, key=lambda row: int(row["num_workers"]))
    workers, cores = some(row["num_workers"], "worker"), some(row["cores"], "core")
    nodes = f" on {some(row['simulated_nodes'], 'simulated node')}" if row["simulated_nodes"] else ""
    return [
        f"{workers}{nodes} shared the {cores} of one machine. This shows what distributing costs, not what more "
        "machines would gain."
    ]


def failures(rows: Sequence[Row]) -> list[str]:
    """Return the arms that did not end well, and why."""
    endings = []
    for name, sized in by_arm(rows).items():
        for status in dict.fromkeys(row["status"] for row in sized if row["status"] != "ok"):
            sizes = [
                at(row["multiplier"]) + (f" ({shorten(row['reason'])})" if row["reason"] else "")
                for row in sized
                if row["status"] == status
            ]
            endings.append(
                f"{name[0].upper()}{name[1:]} ended with status {formatting.outcome(status)} at {join(sizes)}."
            )
    return endings


def margin(row: Row) -> float:
    """Return the share by which the speed of a run is uncertain: half of its epochs' range, and SINGLE_RUN at least."""
    rates = row["rates"]
    return max(SINGLE_RUN, (max(rates) - min(rates)) / (max(rates) + min(rates)) if rates else 0.0)


def _against(alone: Row, ray: Row, cost_of: CostOf) -> str:
    """Return the comparison of one process and Ray at one size: seconds, speed, cost."""
    windows = f" ({approx(alone['windows'])} windows)" if alone["windows"] else ""
    here = "one machine" if alone["place"] == "machine" else "the cluster"
    there = "the same machine" if ray["place"] == "machine" else "the cluster"
    on = some(ray["simulated_nodes"], "simulated node") if ray["simulated_nodes"] else ray["hardware"]
    first, second = count_seconds(alone), count_seconds(ray)
    verdict = _choose(first / second, margin(alone) + margin(ray), ("slower", "about as fast", "faster"))
    lines = [
        f"At {at(alone['multiplier'])}{windows}, {formatting.arm(alone['arm'])} in one process took {seconds(first)} "
        f"on {here} ({alone['hardware']}).",
        f"On {there}, {some(ray['num_workers'], 'Ray worker')} ({on}) took {seconds(second)}: {verdict}, "
        f"{ratio(first / second)} the speed from start to end.",
        f"In training, after the first batch: {_speed(ray, alone)}.",
    ]
    if paid := cost_of(ray["run"]):
        lines.append(f"That cost {paid}.")
    if alone["writing_seconds"] or ray["writing_seconds"]:
        lines.append("Writing shards is not counted.")
    return " ".join(lines)


def _beyond(alone: Sizes, rays: Sequence[Sizes], cost_of: CostOf) -> list[str]:
    """Return whether the cluster trained on what one process could not."""
    trained = [row for sizes in rays for row in _ok(sizes).values()]
    large = {multiplier for multiplier, row in alone.items() if row["status"] == "out_of_memory"}
    beyond = [row for row in trained if row["multiplier"] in large]
    if beyond:
        reached = []
        for row in beyond:
            cost = cost_of(row["run"])
            reached.append(
                f"{row['label']} trained on {at(row['multiplier'])} ({_peak(row)}{f', {cost}' if cost else ''})"
            )
        return [f"{join(reached)}, where one process ran out of memory."]
    if trained and all(row["multiplier"] in _ok(alone) for row in trained):
        return ["Every size that Ray trained on also fit one process."]
    return []


def _too_large(arrays: Sizes, streamed: Sizes) -> list[str]:
    """Return the sizes that arrays were too large for."""
    large = [multiplier for multiplier, row in arrays.items() if row["status"] == "out_of_memory"]
    if not large:
        fits = all(row["status"] == "ok" for row in arrays.values())
        return ["Arrays fit in memory at every size, so memory gave no reason to stream."] if fits else []
    lines = []
    for trained, outcome in ((True, "streaming trained on {}{}"), (False, "streaming did not train on {} either{}")):
        sizes = [multiplier for multiplier in large if (multiplier in _ok(streamed)) == trained]
        if sizes:
            verb, them = ("does", "it") if len(sizes) == 1 else ("do", "them")
            peaks = [peak for multiplier in sizes if trained and (peak := streamed[multiplier]["peak_memory_bytes"])]
            within = f" within {size(max(peaks))}" if len(peaks) == len(sizes) else ""
            named = join([at(multiplier) for multiplier in sizes])
            lines.append(f"{named} {verb} not fit in memory as arrays; {outcome.format(them, within)}.")
    return lines


def _crossing(law: BreakEven, per_size: float | None, trained: int, largest: int) -> str:
    """Return where one process and some workers need the same time."""
    count = some(law["workers"], "worker")
    workers = f"a run with {count}" + (" on the cluster" if law["place"] == "cluster" else "")
    windows, saved = law["windows"], law["alone"]["fixed_seconds"] - law["ray"]["fixed_seconds"]
    if windows:
        notes = [f"one pass over {at(float(f'{windows / per_size:.2g}'))}"] if per_size else []
        notes += ["extrapolated"] if windows > trained else []
        note = f" ({'; '.join(notes)})" if notes else ""
        return f"One process is sooner than {workers} below about {approx(windows)} windows trained{note}."
    if windows is not None:
        return f"{workers[0].upper()}{workers[1:]} is sooner than one process at every size."
    if saved > 0:
        lost = 1 / law["ray"]["samples_per_second"] - 1 / law["alone"]["samples_per_second"]
        return f"One process is sooner than {workers} above about {approx(saved / lost)} windows trained."
    nowhere = "and the estimate has no break-even"
    return f"At no size up to {at(largest)} was {workers} faster than one process, {nowhere}."


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
    return set.intersection(*(set(_ok(sizes)) for sizes in arms))


def _sizes(rows: Sequence[Row], arm: str, place: str, workers: int = 0) -> Sizes:
    key = arm, place, workers
    return {row["multiplier"]: row for row in rows if (row["arm"], row["place"], row["num_workers"]) == key}


def _ok(sizes: Sizes) -> Sizes:
    return {multiplier: row for multiplier, row in sizes.items() if row["status"] == "ok"}


def _choose(value: float, within: float, verdicts: tuple[str, str, str]) -> str:
    """Choose which of three verdicts fits: below, alike within a margin, above."""
    return verdicts[0 if value < 1 / (1 + within) else 2 if value > 1 + within else 1]


def _speed(row: Row, other: Row) -> str:
    """Return windows per second against another row's, both warm or neither."""
    warm = row["warm_samples_per_second"] and other["warm_samples_per_second"]
    first, second = (each["warm_samples_per_second" if warm else "samples_per_second"] for each in (row, other))
    if not first or not second:
        return "the speed is unknown"
    verdict = _choose(first / second, margin(row) + margin(other), ("slower", "about as fast", "faster"))
    return f"{verdict}, {ratio(first / second)} the windows/s ({approx(first)} compared with {approx(second)})"


def count_seconds(row: Row) -> float:
    """Return the seconds from start to end, without writing shards, since the next run finds them written."""
    return row["seconds"] - row["writing_seconds"]


def _peak(row: Row) -> str:
    """Return the peak memory, of a node if nodes were measured, otherwise of a process."""
    of = "simulated node" if row["simulated_nodes"] else "process"
    return f"{size(row['peak_memory_bytes'])} per {of}"


def _line(law: Law) -> str:
    return f"{seconds(law['fixed_seconds'])} + windows {TIMES} epochs / {approx(law['samples_per_second'])}"
