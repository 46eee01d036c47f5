"""Is it faster? The seconds of one task with Ray and without it, from a search, a dataset, a program or a training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from sp500.formatting import TIMES, join, seconds, some
from sp500.report.plot_style import COLORS, SMALL, Bar, draw_bars
from sp500.report.programs import speedup
from sp500.report.scale import verdicts
from sp500.report.scale.results import Scale
from sp500.report.screen.answer import FASTER, Answer, Facts, name_size
from sp500.report.search.arms import describe_break_even
from sp500.report.search.results import Search
from sp500.runs import compare
from sp500.runs.experiments import JUDGED
from sp500.runs.record import RunRecord

ALIKE = 2 * verdicts.SINGLE_RUN
"""Share within which two single runs are about as fast."""


@dataclass(frozen=True)
class Side:
    """One way to do the task, and its run."""

    label: str
    arm: str
    seconds: float
    run: str


@dataclass(frozen=True)
class Timing:
    """One task and what each way took from start to end."""

    task: str
    """What was timed: '18 configs'."""
    section: str
    sides: Sequence[Side]
    busy: bool
    """True if the seconds cannot be relied on."""
    margin: float = ALIKE
    more: str = ""
    """From where Ray pays."""

    @property
    def ray(self) -> Side | None:
        """The fastest way on Ray."""
        return min((side for side in self.sides if side.arm == "ray"), key=lambda side: side.seconds, default=None)

    @property
    def alone(self) -> Side | None:
        """The fastest way without Ray."""
        return min((side for side in self.sides if side.arm != "ray"), key=lambda side: side.seconds, default=None)

    @cached_property
    def times(self) -> float | None:
        """The speed of Ray over that of the fastest other way."""
        return self.alone.seconds / self.ray.seconds if self.alone and self.ray else None

    @property
    def verdict(self) -> str:
        """Faster | about as fast | slower; '' if that is not known."""
        if self.times is None or self.busy:
            return ""
        return verdicts.describe_speed(self.times, self.margin)

    def clause(self) -> str:
        """Return the seconds on Ray and without it, and which is faster."""
        assert self.ray
        assert self.alone
        ray, alone = seconds(self.ray.seconds), seconds(self.alone.seconds)
        if not self.verdict:
            return f"{self.task}: {ray} on Ray, {alone} without"
        return f"{self.task} {describe(self.times, self.verdict)} ({ray}, not {alone})"


def describe(times: float | None, verdict: str) -> str:
    """Return how many times as fast or slow."""
    if times is None or verdict == "about as fast":
        return verdict
    return f"{max(times, 1 / times):.1f}{TIMES} {verdict or ('faster' if times > 1 else 'slower')}"


def collect(facts: Facts) -> list[Timing]:
    """Return what was timed, first what ran with Ray and without it on a machine that was not busy."""
    timings = [*_search(facts.search), *time_sizes(facts.scale), *_programs(facts), *_trainings(facts.runs.records)]
    return sorted(timings, key=lambda timing: (timing.times is None, timing.busy))


def answer(timings: Sequence[Timing]) -> Answer | None:
    """Return the speed of Ray, or of packing where Ray did not run, with the seconds of every way."""
    if not timings:
        return None
    timing, *others = timings
    task = timing.task[0].upper() + timing.task[1:]
    sides = sorted(timing.sides, key=lambda side: -side.seconds)
    took = join([f"{side.label} {seconds(side.seconds)}" for side in sides])
    if timing.times is not None:
        number = describe(timing.times, timing.verdict)
        remarks = [f"{task}: {took}.", "" if timing.verdict == "faster" else timing.more]
        remarks += [f"Also: {other.clause()}." for other in others if other.verdict][:1]
    else:
        number = describe(sides[0].seconds / sides[-1].seconds, "faster")
        remarks = [f"{task}: {took}.", "Not run on Ray." if timing.ray is None else "Only run on Ray."]
    caption = " ".join(filter(None, [*remarks, describe_busy([timing])]))
    bars = [Bar(side.label, side.seconds, seconds(side.seconds), COLORS.get(side.arm, "")) for side in sides]
    return Answer(FASTER, number, caption, timing.section, draw_bars("faster", bars, caption, width=SMALL))


def describe_busy(timings: Sequence[Timing]) -> str:
    """Return whose seconds cannot be relied on."""
    tasks = [timing.task for timing in timings if timing.busy]
    return f"The machine was busy: the seconds of {join(tasks)} are not reliable." if tasks else ""


def _search(search: Search) -> Iterator[Timing]:
    """Yield the arms of the newest search."""
    rows = search.compared["arms"] or {}
    runs = {side.record.arm: side.record.name for side in search.sides}
    sides = [
        Side(search.arm_names[arm], arm, row["seconds"], runs.get(arm, ""))
        for arm, row in rows.items()
        if row["seconds"] is not None
    ]
    if len(sides) > 1:
        timing = Timing("", "", sides, busy=False)
        counted = {side.arm for side in (timing.ray, timing.alone) if side} if timing.times else set(rows)
        busy = any(compare.busy(row) for arm, row in rows.items() if arm in counted)
        task = some(search.compared["configs"] or 0, "program" if search.metric else "config")
        yield Timing(task, "search", sides, busy, more=describe_break_even(search.compared))


def time_sizes(scale: Scale) -> Iterator[Timing]:
    """Yield the largest size that one process and Ray both trained on."""
    alone, rays = verdicts.find_baseline(scale.rows), verdicts.find_rays(scale.rows)
    sized = [(multiplier, ray[multiplier]) for ray in rays for multiplier in verdicts.ended(alone, ray)]
    if not sized:
        return
    largest = max(multiplier for multiplier, _ in sized)
    base = alone[largest]
    rows = [base, *(row for multiplier, row in sized if multiplier == largest)]
    sides = [Side(row["label"], row["arm"], verdicts.count_seconds(row), row["run"]) for row in rows]
    margin = sum(map(verdicts.margin, rows[:2]))
    yield Timing(name_size(largest), "scale", sides, any(map(compare.busy, rows)), margin)


def _programs(facts: Facts) -> Iterator[Timing]:
    """Yield programs whose runs did the same work."""
    for program in facts.programs:
        base, *others = program.runs
        alike = [record for record in others if speedup(record, base) is not None]
        if alike and not base.num_workers:
            runs = [(record, record.program["seconds"]) for record in (base, *alike) if record.program]
            sides = [Side(*_name(record), took, record.name) for record, took in runs]
            yield Timing(program.command.split("/")[-1], "programs", sides, busy=False)


def _trainings(records: Sequence[RunRecord]) -> Iterator[Timing]:
    """Yield the newest training that ran both alone and on Ray's workers."""
    for group in reversed(pair_trainings(records)):
        sides = [Side(*_name(record), record.seconds.total, record.name) for record in group]
        if len({side.arm for side in sides}) > 1:
            yield Timing("one training", "models", sides, busy=False)
            return


def pair_trainings(records: Sequence[RunRecord]) -> list[list[RunRecord]]:
    """Return the newest training per arm and workers, for every fingerprint that has several."""
    alike: dict[tuple[str, object], dict[tuple[str, int], RunRecord]] = {}
    for record in records:
        if record.experiment in JUDGED and record.status == "ok" and not record.search and not record.elsewhere:
            by_arm = alike.setdefault((record.fingerprint, record.data.get("sha256")), {})
            by_arm[record.arm, record.num_workers] = record
    return [list(by_arm.values()) for by_arm in alike.values() if len(by_arm) > 1]


def _name(record: RunRecord) -> tuple[str, str]:
    """Return the label and the arm of a run of Ray or of one process."""
    workers = record.num_workers
    return (f"{some(workers, 'Ray worker')}", "ray") if workers else ("one process", "solo")
