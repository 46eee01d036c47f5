"""How a search's ways of running compare: ratios of seconds from the start to the exit of one process each.

Every side is `experiments/tune.py` as a user calls it, one after the other in this run.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sp500.errors import SP500Error

SCRIPT = Path(__file__).parents[2] / "experiments" / "tune.py"
# Longer trials: about ten seconds each.
LSTM = ("--space", "lstm12", "--train.epochs", "12")
# A config of almost no work, so that what is left is the cost of a trial.
TINY = ("--data.start", "2015-01-01", "--model.hidden", "4", "--model.layers", "1", "--train.epochs", "2")


@dataclass(frozen=True)
class Side:
    """One search: seconds from start to exit, seconds to its first finished trial, and its record."""

    seconds: float
    first_trial_seconds: float
    record: dict[str, Any]


def ratios(folder: Path, say: Callable[[str], None]) -> dict[str, float]:
    """All ratios; `say` hears each as it comes."""
    found: dict[str, float] = {}

    def keep(name: str, value: float) -> None:
        found[name] = value
        say(f"{name} {value:.3f}")

    def measured(name: str, *flags: str) -> Side:
        side = _search(folder, name, *flags)
        say(f"{name}: {side.seconds:.1f} s")
        return side

    alone = measured("grid108-sequential", "--space", "grid108", "--mode", "sequential")
    packed = measured("grid108-packed", "--space", "grid108")
    keep("grid108_sequential_over_parallel", alone.seconds / packed.seconds)
    unpacked = measured("grid108-unpacked", "--space", "grid108", "--pack", "off")
    keep("grid108_unpacked_over_packed", unpacked.seconds / packed.seconds)
    alone, parallel = measured("grid18-sequential", "--mode", "sequential"), measured("grid18-packed")
    keep("grid18_sequential_over_parallel", alone.seconds / parallel.seconds)
    keep("grid18_first_trial_seconds", parallel.first_trial_seconds)
    alone = measured("lstm12-sequential", "--mode", "sequential", *LSTM)
    keep("lstm12_sequential_over_parallel", alone.seconds / measured("lstm12-parallel", *LSTM).seconds)
    few, many = (_tiny(folder, count, measured) for count in (100, 1000))
    keep("cost_per_trial_1000_over_100", many / few)
    return found


def _tiny(folder: Path, count: int, measured: Callable[..., Side]) -> float:
    """Seconds per trial of a search over that many tiny configs."""
    space = folder / f"tiny{count}.yaml"
    space.write_text(f"train.seed: {list(range(count))}\n")
    side = measured(f"tiny{count}", "--space", str(space), *TINY)
    return float(side.record["seconds"]["search"]) / count


def _search(folder: Path, name: str, *flags: str) -> Side:
    command = [sys.executable, str(SCRIPT), "--runs-dir", str(folder / "runs"), "--name", name, "--json", *flags]
    started = time.time()
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own argv
    seconds = time.time() - started
    if done.returncode:
        raise SP500Error(f"{name} ended with exit code {done.returncode}: {done.stderr[-500:]}")
    ledger = (folder / "runs" / name / "trials.jsonl").read_text().splitlines()
    first = min(_epoch_seconds(json.loads(line)["finished"]) for line in ledger)
    return Side(seconds, first - started, json.loads(done.stdout))


def _epoch_seconds(stamp: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(stamp).timestamp()
