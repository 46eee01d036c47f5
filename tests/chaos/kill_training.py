"""Training runs killed with SIGKILL at random epochs and steps, and inside a checkpoint, and resumed to the numbers of
an undisturbed one."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import doomed

ROOT = Path(__file__).parents[2]
EPOCHS = 40
# So slow a rate that each epoch is better than the one before: what is resumed decides the rest.
FLAGS = (
    *("--task", "synthetic", "--synthetic.samples", "16384", "--train.lr", "3e-5", "--model.hidden", "128"),
    *("--train.epochs", str(EPOCHS), "--train.early-stop-patience", "0"),
)
# Where a kill leaves a checkpoint that nothing leads to, and an epoch that is in the checkpoint alone.
PLACES = (("before", "sp500.runs.versions:link"), ("after", "sp500.training.checkpoint:Checkpoints.save"))


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


def measured(kills: int, seed: int, folder: Path) -> dict[str, int]:
    """Kill a run of its own at each of `kills` random epochs, and at the lines of PLACES; how many ended otherwise."""
    script = [str(ROOT / "experiments" / "train.py"), "--runs-dir", str(folder), *FLAGS]
    subprocess.run([sys.executable, *script, "--name", "whole"], capture_output=True, check=True)
    chance, whole = random.Random(seed), folder / "whole"
    found = {"kills": 0, "kills_in_a_checkpoint": 0, "other_epochs": 0, "other_weights": 0}
    for number in range(kills + len(PLACES)):
        cut = folder / f"cut-{number}"
        argv = [*script, "--name", cut.name]
        if number < len(PLACES):
            found["kills_in_a_checkpoint"] += doomed.killed(*PLACES[number], chance.randint(2, EPOCHS // 2), argv)
        else:
            kill_at_epoch(cut, chance.randint(1, EPOCHS - 5), argv)
            found["kills"] += 1
        assert not (cut / "record.json").exists()
        killed_after = len(numbers(cut))
        subprocess.run([sys.executable, *argv, "--resume"], capture_output=True, check=True)
        best = json.loads((cut / "record.json").read_text())["best_epoch"]
        assert best > killed_after, f"best epoch {best}: the kill after epoch {killed_after} could change nothing"
        found["other_epochs"] += numbers(cut) != numbers(whole)
        found["other_weights"] += last_weights(cut) != last_weights(whole)
    return found


def kill_at_epoch(run: Path, number: int, argv: list[str]) -> None:
    """Kill a training after that many epochs."""
    quiet = {"stderr": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    process = subprocess.Popen([sys.executable, *argv], **quiet)
    until_epoch(process, run, number)
    process.kill()
    assert process.wait() == -9, "the run ended before it was killed"


def wrong(found: dict[str, int]) -> bool:
    """Whether a run ended otherwise, or one was not killed where it matters."""
    killed = found["kills"] and found["kills_in_a_checkpoint"] == len(PLACES)
    return bool(found["other_epochs"] or found["other_weights"] or not killed)


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


def measured_steps(kills: int, seed: int, folder: Path) -> dict[str, int]:
    """Kill one run before a checkpoint's manifest is there, and at `kills` random steps later; the most steps that a
    kill lost, and whether it ended in other weights."""
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
    script = [str(ROOT / "experiments" / "train.py"), "--runs-dir", str(folder), *flags, "--name"]
    chance, lost, cut = random.Random(seed), list[int](), [*script, "cut"]
    counted = {name: folder / f"{name}.steps" for name in ("whole", "cut")}
    environments = {name: {**os.environ, "COUNTED_STEPS": str(path)} for name, path in counted.items()}

    def count_lost() -> None:
        kept = last_step(folder / "cut" / "checkpoints")
        lost.append(counted["cut"].stat().st_size - kept - 1)  # each start takes a step to try the model
        os.truncate(counted["cut"], kept)

    subprocess.run([sys.executable, *script, "whole"], capture_output=True, check=True, env=environments["whole"])
    hit = doomed.killed("before", "sp500.training.checkpoint:Checkpoints._publish", 2, cut, environments["cut"])
    count_lost()
    for step in sorted(chance.sample(range(2 * EVERY, STEPS), kills)):
        kill_at_step([*cut, "--resume"], environments["cut"], step)
        count_lost()
    argv = [sys.executable, *cut, "--resume"]
    subprocess.run(argv, capture_output=True, check=True, env=environments["cut"])
    differ = last_weights(folder / "whole") != last_weights(folder / "cut")
    most = {"most_steps_lost": max(lost), "other_weights": int(differ)}
    return {"kills": kills, "kills_in_a_checkpoint": int(hit), **most}


def kill_at_step(argv: list[str], environment: dict[str, str], step: int) -> None:
    """Kill a training when it has counted so many steps."""
    counted, quiet = Path(environment["COUNTED_STEPS"]), {"stderr": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    process = subprocess.Popen([sys.executable, *argv], env=environment, **quiet)
    while counted.stat().st_size < step:
        assert process.poll() is None
        time.sleep(0.0005)
    process.kill()
    assert process.wait() == -9, "the run ended before it was killed"


def wrong_steps(found: dict[str, int]) -> bool:
    """Whether more steps were lost than lie between two checkpoints, weights differ, or none was killed in one."""
    spoiled = found["other_weights"] or not 0 <= found["most_steps_lost"] <= EVERY
    return bool(spoiled or not (found["kills"] and found["kills_in_a_checkpoint"]))


def last_step(checkpoints: Path) -> int:
    """Step of the newest checkpoint; 0 where there is none."""
    manifest = checkpoints / "last" / "manifest.json"
    return int(json.loads(manifest.read_text())["progress"]["step"]) if manifest.exists() else 0
