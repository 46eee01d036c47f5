"""Training runs killed with SIGKILL at random epochs and steps, and resumed to the numbers of an undisturbed one."""

from __future__ import annotations

import json
import os
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


EVERY, STEPS = 50, 1200
# A model that leaves a byte for each step, so that what a kill lost can be counted.
COUNTED = """
import os
from torch import nn
from sp500.models.dropout import Dropout

class Counted(nn.Module):
    def __init__(self, config, dataset):
        super().__init__()
        first = nn.Linear(dataset.window * dataset.features, 64)
        self.layers = nn.Sequential(nn.Flatten(), first, nn.ReLU(), Dropout(0.2), nn.Linear(64, dataset.outputs))

    def forward(self, x):
        if self.training and len(x):
            with open(os.environ["COUNTED_STEPS"], "ab") as file:
                file.write(b".")
        return self.layers(x)
"""


def measured_steps(kills: int, seed: int, folder: Path) -> dict[str, object]:
    """Kill one run at `kills` random steps; the most steps that a kill lost, and whether it ended in other weights."""
    model = folder / "counted.py"
    model.write_text(COUNTED)
    flags = [
        "--model.kind",
        f"{model}:Counted",
        "--train.max-steps",
        str(STEPS),
        "--train.checkpoint-steps",
        str(EVERY),
    ]
    flags += ["--train.batch-size", "16", "--train.early-stop-patience", "0", "--train.schedule", "cosine"]
    script = [sys.executable, str(ROOT / "experiments" / "train.py"), "--runs-dir", str(folder), *flags]
    chance, lost = random.Random(seed), list[int]()
    counted = {name: folder / f"{name}.steps" for name in ("whole", "cut")}
    environments = {name: {**os.environ, "COUNTED_STEPS": str(path)} for name, path in counted.items()}
    subprocess.run([*script, "--name", "whole"], capture_output=True, check=True, env=environments["whole"])
    for step in sorted(chance.sample(range(1, STEPS), kills)):
        quiet = {"stderr": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "env": environments["cut"]}
        process = subprocess.Popen([*script, "--name", "cut", *(["--resume"] if lost else [])], **quiet)
        while counted["cut"].stat().st_size < step if counted["cut"].exists() else True:
            assert process.poll() is None
            time.sleep(0.0005)
        process.kill()
        process.wait()
        kept = last_step(folder / "cut" / "checkpoints")
        lost.append(counted["cut"].stat().st_size - kept)
        os.truncate(counted["cut"], kept)
    subprocess.run([*script, "--name", "cut", "--resume"], capture_output=True, check=True, env=environments["cut"])
    weights = [(folder / name / "checkpoints" / "last" / "model.safetensors").read_bytes() for name in counted]
    return {"kills": kills, "most_steps_lost": max(lost), "other_weights": int(weights[0] != weights[1])}


def last_step(checkpoints: Path) -> int:
    """Step of the newest checkpoint; 0 where there is none."""
    manifest = checkpoints / "last" / "manifest.json"
    return int(json.loads(manifest.read_text())["progress"]["step"]) if manifest.exists() else 0
