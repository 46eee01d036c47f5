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
# So slow a rate that each epoch is better than the one before: what is resumed decides the rest.
FLAGS = (
    *("--task", "synthetic", "--synthetic.samples", "16384", "--train.lr", "3e-5", "--model.hidden", "128"),
    *("--train.epochs", str(EPOCHS), "--train.early-stop-patience", "0"),
)


def epochs(run: Path) -> int:
    path = run / "epochs.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def until_epoch(process: subprocess.Popen[bytes], run: Path, number: int) -> None:
    deadline = time.monotonic() + 240
    while epochs(run) < number:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)


def numbers(run: Path) -> list[dict[str, object]]:
    """The epochs of a run without their times."""
    lines = [json.loads(line) for line in (run / "epochs.jsonl").read_text().splitlines()]
    return [{name: line[name] for name in ("epoch", "train_loss", "valid_loss", "samples")} for line in lines]


def last_weights(run: Path) -> bytes:
    return (run / "checkpoints" / "last" / "model.safetensors").read_bytes()


def measured(kills: int, seed: int, folder: Path) -> dict[str, object]:
    """Kill a run of its own at each of `kills` random epochs; how many ended with other epochs or weights."""
    script = [sys.executable, str(ROOT / "experiments" / "train.py"), "--runs-dir", str(folder), *FLAGS]
    subprocess.run([*script, "--name", "whole"], capture_output=True, check=True)
    chance, whole = random.Random(seed), folder / "whole"
    found = {"kills": 0, "other_epochs": 0, "other_weights": 0}
    for number in range(kills):
        cut = folder / f"cut-{number}"
        process = subprocess.Popen([*script, "--name", cut.name], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        until_epoch(process, cut, chance.randint(1, EPOCHS - 5))
        process.kill()
        assert process.wait() == -9, "the run ended before it was killed"
        assert not (cut / "record.json").exists()
        killed_after = len(numbers(cut))
        subprocess.run([*script, "--name", cut.name, "--resume"], capture_output=True, check=True)
        best = json.loads((cut / "record.json").read_text())["best_epoch"]
        assert best > killed_after, f"best epoch {best}: the kill after epoch {killed_after} could change nothing"
        found["kills"] += 1
        found["other_epochs"] += numbers(cut) != numbers(whole)
        found["other_weights"] += last_weights(cut) != last_weights(whole)
    return found


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
        assert process.wait() == -9, "the run ended before it was killed"
        kept = last_step(folder / "cut" / "checkpoints")
        lost.append(counted["cut"].stat().st_size - kept)
        os.truncate(counted["cut"], kept)
    subprocess.run([*script, "--name", "cut", "--resume"], capture_output=True, check=True, env=environments["cut"])
    differ = last_weights(folder / "whole") != last_weights(folder / "cut")
    return {"kills": len(lost), "most_steps_lost": max(lost), "other_weights": int(differ)}


def last_step(checkpoints: Path) -> int:
    """Step of the newest checkpoint; 0 where there is none."""
    manifest = checkpoints / "last" / "manifest.json"
    return int(json.loads(manifest.read_text())["progress"]["step"]) if manifest.exists() else 0
