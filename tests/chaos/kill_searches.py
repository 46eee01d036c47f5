"""A search killed with SIGKILL at random moments, and resumed each time: what ran twice, what was lost."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import doomed
import optuna

from sp500.runs.trials import Ledger

ROOT = Path(__file__).parents[2]
FLAGS = ("--data.tickers", "AAPL", "--data.start", "2014-01-01", "--data.window", "10", "--pack", "4")


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def kill(argv: list[str], ledger: Path, chance: random.Random) -> bool:
    """Start a search and kill it after a few more results: at once after one, or up to a second later.

    Whether it was killed: it may have ended before.
    """
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wanted, started = lines(ledger) + chance.randint(1, 6), time.monotonic()
    while lines(ledger) < wanted and process.poll() is None:
        assert time.monotonic() - started < 240
        time.sleep(0.01)
    time.sleep(chance.choice([0.0, 0.02, chance.random()]))
    process.kill()
    return process.wait() == -signal.SIGKILL


def measured(mode: str, kills: int, trials: int, seed: int, folder: Path) -> dict[str, object]:
    """Kill the search of `trials` configs that often, then let it end. `kept`: no line of its ledger changed."""
    (folder / "space.yaml").write_text(f"train.seed: {list(range(trials))}\ntrain.epochs: [12]\n")
    script = [sys.executable, str(ROOT / "experiments" / "tune.py")]
    argv = [*script, *FLAGS, "--space", str(folder / "space.yaml"), "--mode", mode]
    argv += ["--runs-dir", str(folder), "--name", "s"]
    ledger, chance, before, kept, killed = folder / "s" / "trials.jsonl", random.Random(seed), "", True, 0
    # The first dies with a result in its ledger that Optuna's study does not have yet.
    hits = doomed.killed("after", "sp500.runs.trials:Ledger.add", chance.randint(1, 6), argv[1:])
    for _ in range(kills):
        killed += kill([*argv, "--resume"], ledger, chance)
        now = ledger.read_text() if ledger.exists() else ""
        kept = kept and now.startswith(before[: before.rfind("\n") + 1])
        before = now
    done = len(Ledger(folder / "s").results)
    ended = subprocess.run([*argv, "--resume", "--json"], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    search, found = json.loads(ended.stdout)["search"], Ledger(folder / "s")
    study = optuna.load_study(study_name="s", storage=f"sqlite:///{folder / 's' / 'optuna.db'}")
    best = found.best()
    return {
        "mode": mode,
        "kills": killed,
        "kills_between_ledger_and_study": int(hits),
        "before_the_last_start": done,
        "resumed": search["resumed"],
        "lost": trials - len(found.results),
        "run_twice": found.rerun,
        "failed": search["failed"],
        "kept": kept,
        "same_best": best is not None and search["best"]["id"] == best.id and study.best_value == best.score,
        "in_optuna": len(study.trials),
    }


def wrong(found: dict[str, object], trials: int) -> bool:
    """Whether a trial was lost, failed or ran twice, none was killed where it matters, or the best is another one."""
    killed = found["kills"] and found["kills_between_ledger_and_study"]
    whole = killed and found["in_optuna"] == trials and found["resumed"] == found["before_the_last_start"]
    spoiled = found["lost"] or found["run_twice"] or found["failed"]
    return bool(spoiled or not (whole and found["resumed"] and found["kept"] and found["same_best"]))
