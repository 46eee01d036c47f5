"""Make the runs of this folder again: `CHECKOUT/.venv/bin/python make_runs.py CHECKOUT FOLDER`, see README.md.

FOLDER is new. All commands run in it, on relative paths and with an environment of three variables, so that the runs
hold nothing of the machine but its kernel, its cores and its memory.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import yaml

HERE = Path(__file__).parent
KILLED = {
    "returns-killed": ("after", "sp500.training.checkpoint:Checkpoints._publish", 8),
    "own-killed": ("after", "sp500.training.checkpoint:Checkpoints._publish", 2),
    "search-killed": ("after", "sp500.runs.trials:Ledger.add", 2),
    "guesses-killed": ("after", "sp500.runs.trials:Ledger.add", 3),
    "folds-killed": ("after", "sp500.studies.walk_forward_folds:append_line", 2),
}
"""Where SIGKILL ends a run: after the N-th call of a function."""
JOBS = {"good": "exit 0", "bad": "exit 3"}


def main(checkout: Path, folder: Path) -> None:
    """Run all commands, pack the folder, and keep what the same code then says of it."""
    shutil.copytree(HERE / "inputs", folder, ignore=shutil.ignore_patterns("__pycache__"))
    write_inputs(folder)
    commands = {name: shlex.split(line) for name, line in yaml.safe_load((HERE / "commands.yaml").read_text()).items()}
    environment = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": str(folder / ".home")}

    def call(*argv: str, code: int = 0) -> str:
        command = [sys.executable, *argv]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == code, f"{argv}: exit code {done.returncode}\n{done.stderr}"
        return done.stdout

    effective = {}
    for name, (script, *flags) in commands.items():
        argv = [str(checkout / "experiments" / f"{script}.py"), *flags, *place(name, flags)]
        effective[name] = yaml.safe_load(call(*argv, "--print-config"))
        if name in KILLED:
            doomed, death = str(checkout / "tests" / "chaos" / "doomed.py"), map(str, KILLED[name])
            call(doomed, *death, *argv, code=-signal.SIGKILL)
        else:
            call(*argv)
        print(name, flush=True)
    queue_jobs(call)
    pack(folder)

    expected = HERE / "expected"
    expected.mkdir(exist_ok=True)
    (expected / "effective.yaml").write_text(yaml.safe_dump(effective, sort_keys=False, width=120))
    shutil.rmtree(folder / "runs")
    shutil.rmtree(folder / "state")
    unpack(folder)
    compare = ("--runs-dir", "runs", "--out", "report", "--rates", "rates.yaml")
    call(str(checkout / "experiments" / "compare.py"), *compare)
    shutil.copy(folder / "report" / "report.json", expected / "report.json")
    keep(expected / "jobs.json", json.loads(call("-m", "sp500.cli", "jobs", "list", "--all", "--json", *STATE)))
    os.environ |= environment
    os.chdir(folder)
    keep(expected / "outputs.json", outputs(Path("runs")))
    for name in KILLED:
        resume = ("--name", name, "--runs-dir", "runs", "--resume", "--trust-source")
        call(str(checkout / "experiments" / f"{commands[name][0]}.py"), *resume)
    keep(expected / "resumed.json", {name: numbers(Path("runs", name)) for name in KILLED})


STATE = ("--state-dir", "state")


def place(name: str, flags: list[str]) -> list[str]:
    """The flags that name a run and its folder."""
    return [] if "--config" in flags else ["--runs-dir", "runs", "--name", name]


def write_inputs(folder: Path) -> None:
    """A text and windows, both made by rule."""
    words = re.findall(r"\w+", "the price of a share goes up and down and nobody knows where it goes next")
    text = " ".join(words[(number * number + number // 7) % len(words)] for number in range(1500))
    (folder / "text.txt").write_text(text.replace(" and down", ".\n\n") + "\n")
    numbers = np.random.default_rng(0)
    x = numbers.standard_normal((240, 5, 3)).astype(np.float32)
    y = (x[:, -1, 0] > 0).astype(np.int64)
    np.savez(folder / "windows.npz", X_train=x[:200], y_train=y[:200], X_test=x[200:], y_test=y[200:])


def queue_jobs(call: Any) -> None:
    """A queue with an ended job of each kind."""
    for name, command in JOBS.items():
        printed = call("-m", "sp500.cli", "jobs", "submit", "--json", *STATE, "--name", name, "--", "sh", "-c", command)
        id = json.loads(printed)["id"]
        call("-m", "sp500.cli", "jobs", "wait", id, *STATE, code=int(command.split()[1]))


def pack(folder: Path) -> None:
    """Write runs.tar.gz: runs, queue and what they were made from, without owner, hidden files and locks."""

    def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        hidden = any(part.startswith(".") for part in Path(member.name).parts)
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return None if hidden or Path(member.name).name.startswith("manager.") else member

    with tarfile.open(HERE / "runs.tar.gz", "w:gz", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(folder.glob("[!.]*")):
            archive.add(path, path.name, filter=anonymous)


def unpack(folder: Path) -> None:
    """Extract runs.tar.gz, with the times of its files."""
    with tarfile.open(HERE / "runs.tar.gz") as archive:
        archive.extractall(folder, filter="data")


def outputs(runs: Path) -> dict[str, dict[str, object]]:
    """What each trained model answers to windows that are made by rule."""
    from sp500 import Predictor
    from sp500.errors import SP500Error

    answers = {}
    for path in sorted(runs.iterdir()):
        try:
            predictor = Predictor(path, trust_source=True)
        except SP500Error as error:
            print(f"{path.name} is not served: {error}")
            continue
        recipe = predictor.recipe
        output = predictor.outputs(windows((3, recipe.window, *recipe.row), recipe.row_dtype))
        data = base64.b64encode(np.ascontiguousarray(output).tobytes()).decode()
        answers[path.name] = {"dtype": str(output.dtype), "shape": list(output.shape), "base64": data}
    return answers


def windows(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Windows of that shape, the same on every machine."""
    numbers = np.arange(np.prod(shape)).reshape(shape) * 37 % 101
    return numbers.astype(dtype) if np.dtype(dtype).kind in "ui" else ((numbers - 50) / 50).astype(dtype)


def numbers(run: Path) -> dict[str, object]:
    """What decides whether a resumed run came to the same end: losses, metrics, and trials and folds in any order."""
    record = json.loads((run / "record.json").read_text())
    epochs = [json.loads(line) for line in lines(run / "epochs.jsonl")]
    trials = [json.loads(line) for line in lines(run / "trials.jsonl")]
    folds = [json.loads(line) for line in lines(run / "folds.jsonl")]
    return {
        "fingerprint": record["fingerprint"],
        "status": record["status"],
        "metrics": record["metrics"],
        "best": [record["best_epoch"], record["best_loss"]],
        "seeds": record["seeds"],
        "epochs": [[row["epoch"], row["train_loss"], row["valid_loss"]] for row in epochs],
        "trials": sorted([row["id"], row["overrides"], row["valid_loss"], row["best_epoch"]] for row in trials),
        "folds": sorted(
            ({key: value for key, value in row.items() if key not in MEASURED} for row in folds),
            key=lambda row: row["fold"],
        ),
    }


MEASURED = ("seconds", "peak_worker_bytes", "sha256")
"""Of a fold: what differs from one time to the next, and the checksum over it."""


def lines(path: Path) -> list[str]:
    """The lines of a file; none where it is missing."""
    return path.read_text().splitlines() if path.exists() else []


def keep(path: Path, content: object) -> None:
    """Write JSON that git shows line by line."""
    path.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
