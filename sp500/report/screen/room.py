"""Does it fit? The memory that each arm needed at the largest size, against the budget."""

from __future__ import annotations

from sp500.formatting import TIMES, approx, join, size
from sp500.report.plot_style import SMALL
from sp500.report.scale import verdicts
from sp500.report.scale.figures import draw_memory
from sp500.report.scale.results import Row, Scale, needed_bytes
from sp500.report.screen.answer import FITS, Answer, name_size


def answer(scale: Scale) -> Answer | None:
    """Return the largest size that some arm trained on, and what each arm needed at the largest size of all."""
    rows = scale.rows
    trained = [row["multiplier"] for row in rows if row["status"] == "ok"]
    if not rows:
        return None
    largest = max(row["multiplier"] for row in rows)
    sized = [row for row in rows if row["multiplier"] == largest]
    budget = size(sized[0]["memory_limit_bytes"])
    parts = [f"{row['label']} {_describe(row)}" for row in sized]
    windows = next((row["windows"] for row in sized if row["windows"]), None)
    named = name_size(largest) + (f" ({approx(windows)} windows)" if windows else "")
    caption = f"{named}: {join(parts)}. The budget is {budget}."
    number = f"{max(trained):,}{TIMES} the data" if trained else "nothing fits"
    return Answer(FITS, number, caption, "scale", draw_memory("fits", sized, caption, width=SMALL))


def list_sizes_only_on_ray(scale: Scale) -> list[int]:
    """Return the sizes that Ray trained on and that no arm without it could hold."""
    ended = {(row["multiplier"], row["num_workers"] > 0) for row in scale.rows if row["status"] == "ok"}
    large = {row["multiplier"] for row in scale.rows if row["status"] == "out_of_memory" and not row["num_workers"]}
    return sorted(size for size in large if (size, True) in ended and (size, False) not in ended)


def find_largest_alone(scale: Scale) -> int | None:
    """Return the largest size that Ray trained on, if it and all others also fit one process."""
    alone = verdicts.find_baseline(scale.rows)
    sizes = {row["multiplier"] for row in scale.rows if row["num_workers"] and row["status"] == "ok"}
    return max(sizes) if sizes and sizes <= verdicts.ended(alone) else None


def _describe(row: Row) -> str:
    if row["status"] == "out_of_memory":
        needed = needed_bytes(row)
        return f"would need {size(needed)}" if needed else "ran out of memory"
    return f"{size(row['peak_memory_bytes'])}" if row["status"] == "ok" else str(row["status"])
