"""Comparison of the arms of a search: ratios of seconds from the start to the exit of one process each.

Every search is `experiments/tune.py` as a user calls it, one after the other in this run.

    python benchmarks/search.py --json
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sp500.errors import SP500Error
from sp500.runs.compare import ARMS

SCRIPT = Path(__file__).parents[1] / "experiments" / "tune.py"
# All epochs, as before searches stopped trials early: equal work in every arm.
WHOLE = ("--train.early-stop-patience", "0")
# Longer trials: about ten seconds each.
LSTM = ("--space", "lstm12", "--train.epochs", "12")
# A config of almost no work, so that what is left is the cost of a trial.
TINY = ("--data.start", "2015-01-01", "--model.hidden", "4", "--model.layers", "1", "--train.epochs", "2")


@dataclass(frozen=True)
class Search:
    """One search: seconds from start to exit, to its first finished trial, and of its trials alone."""

    seconds: float
    first_trial_seconds: float
    trials_seconds: float


def measure_ratios(folder: Path, say: Callable[[str], None]) -> dict[str, float]:
    """Return all ratios; `say` gets each as it is measured."""
    ratios: dict[str, float] = {}

    def keep(name: str, value: float) -> None:
        ratios[name] = value
        say(f"{name} {value:.3f}")

    def measure(name: str, *flags: str) -> Search:
        search = _search(folder, name, *flags)
        say(f"{name}: {search.seconds:.1f} s")
        return search

    def compare_arms(name: str, *flags: str) -> dict[str, Search]:
        arms = {arm: measure(f"{name}-{arm}", "--mode", arm, *flags) for arm in ARMS}
        keep(f"{name}_sequential_over_packed", arms["sequential"].seconds / arms["packed"].seconds)
        keep(f"{name}_packed_over_ray", arms["packed"].seconds / arms["ray"].seconds)
        return arms

    large = compare_arms("grid108", "--space", "grid108")
    unpacked = measure("grid108-unpacked", "--space", "grid108", "--mode", "packed", "--pack", "off")
    keep("grid108_unpacked_over_packed", unpacked.seconds / large["packed"].seconds)
    small = compare_arms("grid18", "--space", "grid18")
    keep("grid18_first_trial_seconds", small["packed"].first_trial_seconds)
    compare_arms("lstm12", *LSTM)
    few, many = (_tiny(folder, count, measure) for count in (100, 1000))
    keep("cost_per_trial_1000_over_100", many / few)
    return ratios


def _tiny(folder: Path, count: int, measure: Callable[..., Search]) -> float:
    """Return the seconds per trial of a search over that many tiny configs."""
    space = folder / f"tiny{count}.yaml"
    space.write_text(f"train.seed: {list(range(count))}\n")
    search = measure(f"tiny{count}", "--mode", "packed", "--space", str(space), *TINY)
    return search.trials_seconds / count


def _search(folder: Path, name: str, *flags: str) -> Search:
    of_run = ("--runs-dir", str(folder / "runs"), "--name", name, "--json", *WHOLE)
    command = [sys.executable, str(SCRIPT), *of_run, *flags]
    started = time.time()
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own argv
    seconds = time.time() - started
    if done.returncode:
        raise SP500Error(f"{name} ended with exit code {done.returncode}: {done.stderr[-500:]}")
    ledger = (folder / "runs" / name / "trials.jsonl").read_text().splitlines()
    first = min(_epoch_seconds(json.loads(line)["finished"]) for line in ledger)
    return Search(seconds, first - started, float(json.loads(done.stdout)["seconds"]["search"]))


def _epoch_seconds(stamp: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(stamp).timestamp()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from benchmarks.ratios import main

    sys.exit(main(measure_ratios, str(__doc__), sys.argv[1:]))
