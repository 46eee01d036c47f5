"""Share of further runs that lie in the range of the scaling forecast.

Seconds are made by known laws (Gunther's, with and without contention, coherency and a start that grows) and vary from
run to run by a log-normal factor. Each law is fitted to a few runs; a run with 8 workers is then drawn.

    python benchmarks/forecast_range.py [--draws 200] [--json]

The nominal coverage is 90%. From one number of workers, or if a start grows by less than the law fits, it covers far
less. Without repeated runs the range assumes that runs vary by 10%; if they vary by more it
covers less, and the report names the assumption in place of a percentage.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy import stats

ROOT = Path(__file__).parent.parent
LAWS = {
    "start, work divides": (20.0, 0.0, 100.0, 0.0, 0.0),
    "5% waits": (20.0, 0.0, 95.0, 5.0, 0.1),
    "30% waits": (20.0, 0.0, 70.0, 30.0, 0.0),
    "each worker adds 2 s of start": (20.0, 2.0, 95.0, 5.0, 0.1),
}
"""Seconds: start, joining, parallel, serial, sync."""
DESIGNS = {
    "2, twice": (2, 2),
    "1 2": (1, 2),
    "1 2 4": (1, 2, 4),
    "1 2, twice": (1, 1, 2, 2),
    "1 2 4, twice": (1, 1, 2, 2, 4, 4),
}
VARIES = (0.03, 0.1)
AHEAD = 8


def count_covered(law: tuple[float, ...], counts: Sequence[int], varies: float, draws: int) -> int:
    """Return how many of so many further runs lay in the range."""
    from sp500.runs import usl

    truth, inside = usl.Law(*law), 0
    for seed in range(draws):
        generator = np.random.default_rng(seed)
        noise = np.exp(varies * generator.standard_normal((2, len(counts) + 1)))
        start = [truth.start_seconds(count) * factor for count, factor in zip(counts, noise[0], strict=False)]
        work = [truth.work_seconds(count) * factor for count, factor in zip(counts, noise[1], strict=False)]
        low, high = usl.fit(counts, start, work, seed=seed).interval(AHEAD)
        inside += low <= truth.start_seconds(AHEAD) * noise[0, -1] + truth.work_seconds(AHEAD) * noise[1, -1] <= high
    return inside


def main(arguments: Sequence[str]) -> int:
    """Print the coverage of each design, law and variation with its Clopper-Pearson interval."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=200, help="further runs per cell (default: 200)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    asked = parser.parse_args(arguments)
    rows = []
    for design, counts in DESIGNS.items():
        for varies in VARIES:
            for name, law in LAWS.items():
                inside = count_covered(law, counts, varies, asked.draws)
                ends = stats.binomtest(inside, asked.draws).proportion_ci(method="exact")
                row = {"runs": design, "varies": varies, "law": name, "coverage": inside / asked.draws}
                rows.append(row | {"low": float(ends.low), "high": float(ends.high)})
                if not asked.json:
                    print(
                        f"{design:14} runs vary by {varies:4.0%}  {name:30} {row['coverage']:.2f} "
                        f"({ends.low:.2f} to {ends.high:.2f})",
                        flush=True,
                    )
    if asked.json:
        print(json.dumps(rows))
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main(sys.argv[1:]))
