"""The report of a folder of thousands of runs: seconds, peak memory and size of the page.

The runs are copies of the trainings of another folder, such as the demo's, with other names, seeds and results. One in
a hundred is a copy of one of its other runs. They are tested on `--tests` sets of dates, as when the data grows.

    python benchmarks/many_runs.py runs/demo-20261126-223000 --runs 10000
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import timedelta
from itertools import cycle
from pathlib import Path

from sp500.runs import checksums
from sp500.runs.record import RunRecord
from sp500.runs.store import RunStore

FILES = ("epochs.jsonl", "trials.jsonl")
RARE = 100


def write_runs(source: Path, folder: Path, runs: int, tests: int) -> None:
    """Write `runs` copies of the runs of `source`."""
    records = RunStore(source).scan().records
    trainings = cycle(record for record in records if record.experiment == "train")
    others = cycle(record for record in records if record.experiment != "train")
    draw = random.Random(0)  # noqa: S311 - no secret
    for number in range(runs):
        record = next(trainings) if number % RARE else next(others)
        path = folder / f"{record.name}-{number:05}"
        path.mkdir(parents=True)
        for name in filter(lambda name: (source / record.name / name).exists(), FILES):
            shutil.copy(source / record.name / name, path / name)
        (path / "record.json").write_text(checksums.seal(_vary(record, path.name, number, number % tests, draw)))


def _vary(record: RunRecord, name: str, number: int, test: int, draw: random.Random) -> RunRecord:
    """Return a run of its own: another seed, another result, and one of several tests."""
    copy = record.model_copy(deep=True, update={"name": name, "seed": number, "fingerprint": f"{number:016x}"})
    if train := copy.config.get("train"):
        train["seed"] = number
    if splits := copy.data.get("splits"):
        splits["test"] = [splits["test"][0], f"{splits['test'][1]}+{test}"]
    if gain := (copy.metrics.get("test") or {}).get("improvement"):
        shift = draw.gauss(0, 0.05)
        gain |= {key: gain[key] + shift for key in ("value", "low", "high") if gain.get(key) is not None}
    later = timedelta(minutes=number)
    return copy.model_copy(update={"started": copy.started + later, "finished": copy.finished + later})


def measure(folder: Path) -> dict[str, float]:
    """Return seconds, memory and sizes of one report of the folder."""
    script = Path(__file__).parents[1] / "experiments" / "compare.py"
    began = time.monotonic()
    subprocess.run([sys.executable, script, "--runs-dir", folder], check=True, capture_output=True)  # noqa: S603
    seconds, used = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    sizes = {path.suffix: path.stat().st_size / 1e6 for path in (folder / "report").glob("*.*")}
    return {
        "seconds": seconds,
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "peak_mib": used.ru_maxrss / 1024,
        "page_mb": sizes[".html"],
        "json_mb": sizes[".json"],
    }


def main(argv: Sequence[str]) -> None:
    """Write the runs, report on them, and print the measurements."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("like", type=Path, help="folder of runs to copy")
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--tests", type=int, default=1, help="sets of dates that the models are tested on")
    parser.add_argument("--keep", type=Path, help="write the runs here, or use those that are here")
    flags = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as scratch:
        folder = flags.keep or Path(scratch) / "runs"
        if not folder.exists():
            write_runs(flags.like, folder, flags.runs, flags.tests)
        print(json.dumps({name: round(value, 2) for name, value in measure(folder).items()}))


if __name__ == "__main__":
    main(sys.argv[1:])
