"""What streaming bought, and what the cluster, in sentences.

Two runs are compared once each, so a ratio that rounds to 1.0 is told as no difference. Every sentence is computed from
the rows, and says "slower", "did not fit" or "cannot be told" where that is so.
"""

from __future__ import annotations

from collections.abc import Sequence

from sp500.report import words
from sp500.report.scale import Scale, at, by_arm, label, share
from sp500.report.words import listed, ratio, rounded, seconds, size, some
from sp500.runs.scaling import Row

Sizes = dict[int, Row]
"""Rows of one arm by multiplier."""


def sentences(found: Scale) -> list[str]:
    """All that is to be said; nothing where no experiment ran."""
    if not found.rows:
        return []
    bought = [*streaming(found.rows), *cluster(found.rows)]
    return [*bought, *break_even(found), *budget(found.rows), *one_machine(found), *failed(found.rows)]


def streaming(rows: Sequence[Row]) -> list[str]:
    """Speed and memory against arrays, and the sizes that only streaming could train on."""
    arrays, streamed = _sizes(rows, "in_memory"), _sizes(rows, "streaming")
    if not arrays or not streamed:
        return ["What streaming buys cannot be told: that takes both arms, in memory and streaming."]
    said = []
    if both := [one for one in _ok(arrays) if one in _ok(streamed)]:
        first, second = streamed[max(both)], arrays[max(both)]
        memory = _compared(first["peak_memory_bytes"], second["peak_memory_bytes"], ("less", "about as much", "more"))
        peaks = f"{size(first['peak_memory_bytes'])} against {size(second['peak_memory_bytes'])}"
        told = f"{memory[0]} memory, {memory[1]} the peak ({peaks})" if memory else "memory was not measured"
        said.append(f"Streaming at {at(max(both))}, against arrays in memory: {_speed(first, second)}; {told}.")
    else:
        said.append("How fast streaming is cannot be told: at no size did it and arrays in memory both end well.")
    return said + _fitted(arrays, streamed)


def cluster(rows: Sequence[Row]) -> list[str]:
    """Speed and seconds against streaming in one process, per number of workers, and what that says of memory."""
    streamed = _sizes(rows, "streaming")
    rays = [sizes for count in _workers(rows) if (sizes := _sizes(rows, "ray", count))]
    if not streamed or not rays:
        return ["What the cluster buys cannot be told: that takes both arms, streaming and Ray."]
    said = []
    for sizes in rays:
        both = [one for one in _ok(sizes) if one in _ok(streamed)]
        name = label(next(iter(sizes.values())))
        if not both:
            said.append(f"What {name} bought cannot be told: at no size did this arm and streaming both end well.")
            continue
        one, other = sizes[max(both)], streamed[max(both)]
        said.append(
            f"{name} at {at(max(both))}, against streaming in one process: {_speed(one, other)}; {_sooner(one, other)}."
        )
    return said + _kept_to_one(streamed, rays)


def break_even(found: Scale) -> list[str]:
    """From how many windows on more workers are sooner, and the two lines that cross there."""
    if not found.break_even:
        return []
    never = [law for law in found.break_even if law["windows"] is None]
    lines = [law["ray"] | {"workers": law["workers"]} for law in found.break_even]
    told = [f"{_line(one)} on {some(one['workers'], 'worker')}" for one in lines]
    alone = found.break_even[0]["alone"]
    first = f"{_line(alone)} in one process ({words.arm(alone['arm'])})"
    laws = f"Here seconds are taken as fixed + windows / rate: {first}, {listed(told)}."
    return [*_never(never), *_turning(found), laws]


def budget(rows: Sequence[Row]) -> list[str]:
    """Whether every run that ended well stayed within its memory."""
    ended = [row for row in rows if row["status"] == "ok" and row["memory_limit_bytes"]]
    shares = [(found, row) for row in ended if (found := share(row)) is not None]
    if not shares:
        return []
    limit = f"the budget of {size(ended[0]['memory_limit_bytes'])} per node"
    which = "that ended well" if len(ended) == len(shares) else "whose peak was measured"
    if over := [row for found, row in shares if found > 1]:
        named = listed([f"{label(row)} at {at(row['multiplier'])} ({_peak(row)})" for row in over])
        rest = "no" if len(over) == len(shares) else "every other"
        return [f"Over {limit}: {named}; {rest} run {which} stayed within it."]
    most = max(shares, key=lambda pair: pair[0])[1]
    where = f"{label(most)} at {at(most['multiplier'])}"
    return [f"Every run {which} stayed within {limit}; the most was {_peak(most)} ({where})."]


def one_machine(found: Scale) -> list[str]:
    """What one machine cannot show."""
    rays = [row for row in found.rows if row["num_workers"] and row["status"] == "ok"]
    if found.nodes != 1 or not rays:
        return []
    most = max(rays, key=lambda row: int(row["num_workers"]))
    cores, workers = f"the {some(found.cores, 'core')} of one machine", some(most["num_workers"], "worker")
    nodes = most["simulated_nodes"]
    where = f"{some(nodes, 'simulated node')}, processes on {cores}," if nodes else cores
    verb = "is" if most["num_workers"] == 1 else "are"
    shown = "this shows what distributing costs, not what more machines would buy"
    return [f"{workers} on {where} {verb} no cluster: {shown}."]


def failed(rows: Sequence[Row]) -> list[str]:
    """Arms that did not end well, and why."""
    said = []
    for name, sized in by_arm(rows).items():
        for status in dict.fromkeys(row["status"] for row in sized if row["status"] != "ok"):
            sizes = [
                at(row["multiplier"]) + (f" ({row['reason']})" if row["reason"] else "")
                for row in sized
                if row["status"] == status
            ]
            said.append(f"{name[0].upper()}{name[1:]} ended as {words.ended(status)} at {listed(sizes)}.")
    return said


def _sizes(rows: Sequence[Row], arm: str, workers: int = 0) -> Sizes:
    return {row["multiplier"]: row for row in rows if (row["arm"], row["num_workers"]) == (arm, workers)}


def _ok(sizes: Sizes) -> Sizes:
    return {multiplier: row for multiplier, row in sizes.items() if row["status"] == "ok"}


def _workers(rows: Sequence[Row]) -> list[int]:
    return sorted({row["num_workers"] for row in rows if row["arm"] == "ray"})


def _compared(value: float | None, other: float | None, told: tuple[str, str, str]) -> tuple[str, str] | None:
    """Which of three words fits (below, alike, above), and how many times the other the value is."""
    if not value or not other:
        return None
    times = value / other
    return told[1 if f"{times:.1f}" == "1.0" else 0 if times < 1 else 2], ratio(times)


def _speed(row: Row, other: Row) -> str:
    """Windows per second against another row's, both warm or neither."""
    warm = row["warm_samples_per_second"] and other["warm_samples_per_second"]
    first, second = (one["warm_samples_per_second" if warm else "samples_per_second"] for one in (row, other))
    compared = _compared(first, second, ("slower", "about as fast", "faster"))
    if compared is None:
        return "speed cannot be told"
    return f"{compared[0]}, {compared[1]} the windows/s ({rounded(first)} against {rounded(second)})"


def _sooner(row: Row, other: Row) -> str:
    """Seconds from start to end; what wrote shards is left out, since whoever comes later finds them written."""
    if row["seconds"] is None or other["seconds"] is None:
        return "seconds cannot be told"
    first, second = (one["seconds"] - one["writing_seconds"] for one in (row, other))
    compared = _compared(first, second, ("sooner", "about as soon", "later"))
    left_out = ", writing shards left out" if row["writing_seconds"] or other["writing_seconds"] else ""
    told = f"{seconds(first)} against {seconds(second)} from start to end{left_out}"
    return f"{compared[0]}, {told}" if compared else told


def _peak(row: Row) -> str:
    """Memory, and of what: of a node where nodes were measured, else of a process."""
    of = "simulated node" if row["simulated_nodes"] else "process"
    return f"{size(row['peak_memory_bytes'])} per {of}"


def _within(rows: Sequence[Row]) -> str:
    peaks = [row["peak_memory_bytes"] for row in rows]
    return f" within {size(max(peaks))}" if all(peaks) else ""


def _fitted(arrays: Sizes, streamed: Sizes) -> list[str]:
    """Sizes that arrays were too large for."""
    large = [one for one, row in arrays.items() if row["status"] == "out_of_memory"]
    if not large:
        every = all(row["status"] == "ok" for row in arrays.values())
        return ["Arrays fit at every size tried: memory did not call for streaming here."] if every else []
    limit = arrays[large[0]]["memory_limit_bytes"]
    place = f"{size(limit)} as arrays" if limit else "memory as arrays"
    kept, lost = [one for one in large if one in _ok(streamed)], [one for one in large if one not in _ok(streamed)]
    said = []
    if kept:
        verb, them = ("does", "it") if len(kept) == 1 else ("do", "them")
        within = _within([streamed[one] for one in kept])
        said.append(
            f"{listed([at(one) for one in kept])} {verb} not fit in {place}; streaming trained on {them}{within}."
        )
    if lost:
        verb, them = ("does", "it") if len(lost) == 1 else ("do", "them")
        sizes = listed([at(one) for one in lost])
        said.append(f"{sizes} {verb} not fit in {place}, and streaming did not train on {them} either.")
    return said


def _kept_to_one(streamed: Sizes, rays: Sequence[Sizes]) -> list[str]:
    """Whether the cluster trained on what one process could not."""
    trained = [(one, row) for sizes in rays for one, row in _ok(sizes).items()]
    beyond = [(one, row) for one, row in trained if one in streamed and streamed[one]["status"] == "out_of_memory"]
    if beyond:
        told = listed([f"{label(row)} trained on {at(one)} within {_peak(row)}" for one, row in beyond])
        return [f"{told}, where streaming in one process ran out of memory."]
    if trained and all(one in _ok(streamed) for one, _ in trained):
        return ["The cluster made no further size fit: streaming in one process trained on every size that Ray did."]
    return []


def _never(laws: Sequence[Row]) -> list[str]:
    """Numbers of workers whose rate does not exceed that of one process."""
    small = [law for law in laws if law["ray"]["fixed_seconds"] < law["alone"]["fixed_seconds"]]
    counts = [str(law["workers"]) for law in laws if law not in small]
    said = []
    if counts:
        verb = "worker is" if counts == ["1"] else "workers are"
        said.append(f"On these machines {listed(counts)} {verb} never sooner than one process.")
    for law in small:
        saved = law["alone"]["fixed_seconds"] - law["ray"]["fixed_seconds"]
        lost = 1 / law["ray"]["samples_per_second"] - 1 / law["alone"]["samples_per_second"]
        workers = some(law["workers"], "worker")
        said.append(f"One process is sooner than {workers} above about {rounded(saved / lost)} windows trained.")
    return said


def _turning(found: Scale) -> list[str]:
    """Numbers of workers that become sooner somewhere, or are so from the start."""
    per_size = next((row["windows"] / row["multiplier"] for row in found.rows if row["windows"]), None)
    largest = max((row["samples"] or 0 for row in found.rows if row["status"] == "ok"), default=0)
    turns, said = [], []
    for law in found.break_even:
        workers, windows = some(law["workers"], "worker"), law["windows"]
        if windows:
            facts = [f"one pass over {at(float(f'{windows / per_size:.2g}'))}"] if per_size else []
            facts += ["extrapolated"] if windows > largest else []
            told = f" ({'; '.join(facts)})" if facts else ""
            turns.append(f"than {workers} below about {rounded(windows)} windows trained{told}")
        elif windows is not None:
            verb = "is" if law["workers"] == 1 else "are"
            said.append(f"On these machines {workers} {verb} sooner than one process from the first window on.")
    return [*([f"One process is sooner {listed(turns)}."] if turns else []), *said]


def _line(law: Row) -> str:
    return f"{seconds(law['fixed_seconds'])} + windows / {rounded(law['samples_per_second'])}"
