"""A training run killed with SIGKILL at random epochs, and resumed each time to the numbers of an undisturbed one."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
EPOCHS = 40
FLAGS = ("--train.epochs", str(EPOCHS), "--train.early-stop-patience", "0", "--model.hidden", "128")


def epochs(run: Path) -> int:
    path = run / "epochs.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def until_epoch(process: subprocess.Popen[bytes], run: Path, number: int) -> None:
    deadline = time.monotonic() + 240
    while epochs(run) < number:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)


def measured(kills: int, seed: int, folder: Path) -> dict[str, object]:
    """Kill a run of its own at each of `kills` random epochs; how many ended with other metrics."""
    script = [sys.executable, str(ROOT / "experiments" / "train.py"), "--runs-dir", str(folder), *FLAGS]
    whole = subprocess.run([*script, "--name", "whole", "--json"], capture_output=True, text=True, check=True)
    metrics, chance, differing = json.loads(whole.stdout)["metrics"], random.Random(seed), 0
    for number in range(kills):
        name = f"cut-{number}"
        process = subprocess.Popen([*script, "--name", name], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        until_epoch(process, folder / name, chance.randint(1, EPOCHS - 1))
        process.kill()
        process.wait()
        assert not (folder / name / "record.json").exists()
        resume = [*script, "--name", name, "--resume", "--json"]
        done = subprocess.run(resume, capture_output=True, text=True, check=True)
        differing += json.loads(done.stdout)["metrics"] != metrics
    return {"kills": kills, "other_metrics": differing}
