"""The programs of three parts: searches, starts, and training with two workers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.turns import PEERS, ROOT, Arm, Figures, Part, Table, execute
from sp500.config import DataConfig, RunConfig
from sp500.data.sources import load
from sp500.data.windows import Windows
from sp500.machine.cores import usable_cores
from sp500.tasks import catalog
from sp500.tuning import presets

EPOCHS, PATIENCE, WORKERS = 25, 5, 2
IMPORT_LINE = re.compile(r"^import time:\s+(\d+) \|", re.MULTILINE)


def search(base: Path, trees: Mapping[str, Path], *, quick: bool) -> Part:
    """Return searches over the 108 MLPs of grid108, or over four of them."""
    axes = {key: list(axis.points) for key, axis in presets.grid108().axes.items()}
    if quick:
        axes = {key: values[: 1 if key in ("model.hidden", "train.seed") else 2] for key, values in axes.items()}
    (base / "space.yaml").write_text(yaml.safe_dump(axes, sort_keys=False))
    cores = usable_cores()
    job: dict[str, Any] = {
        "data": _write_windows(base),
        "axes": {key.split(".")[-1]: values for key, values in axes.items()},
    }
    job |= {"epochs": EPOCHS, "processes": cores}
    peers: Sequence[tuple[str, str, dict[str, Any]]] = (
        ("plain PyTorch loop", "plain", {}),
        ("plain PyTorch loop, fused AdamW", "plain", {"fused": True}),
        (f"pool of {cores} processes", "process_pool", {}),
        (f"pool of {cores} processes, fused AdamW", "process_pool", {"fused": True}),
        (f"Optuna in {cores} processes", "optuna_processes", {}),
        ("Ray Tune, defaults", "tune_defaults", {}),
        ("Ray Tune, actors reused, data shared", "tune_reused", {}),
        ("GridSearchCV of MLPRegressor", "grid_search", {}),
    )
    arms = list[Arm]()
    for table, patience in ((f"{EPOCHS} epochs", 0), (f"patience {PATIENCE}", PATIENCE)):
        flags = ["--space", str(base / "space.yaml"), "--train.epochs", str(EPOCHS)]
        flags += ["--train.early-stop-patience", str(patience)]
        for name, tree in trees.items():
            for mode in ("packed", "ray", "sequential"):
                measure = _tune(table, tree, ["--mode", mode, *flags])
                arms.append(Arm(f"{name} {mode}", (table,), measure, ours=True))
        for label, script, more in peers:
            another = "another model" if script == "grid_search" else ""
            settings = {"fused": False, "patience": patience, **job, **more}
            arms.append(Arm(label, (table,), _peer(table, script, settings), another=another))
    full = Table(f"{EPOCHS} epochs", "seconds", "tune.py packed", equal={"trials": 0.0, "epochs": 0.0, "loss": 2e-3})
    return Part(
        arms, [full, replace(full, name=f"patience {PATIENCE}", equal={"trials": 0.0, "epochs": 0.25, "loss": 2e-3})]
    )


def _tune(table: str, tree: Path, flags: Sequence[str]) -> Callable[[Path], Mapping[str, Figures]]:
    def measure(folder: Path) -> Mapping[str, Figures]:
        """Return seconds, and means over the trials."""
        argv = [str(tree / "experiments" / "tune.py"), *flags, "--name", "run", "--json"]
        seconds, done = execute(argv, folder, tree=tree)
        lines = (folder / "runs" / "run" / "trials.jsonl").read_text().splitlines()
        results = [(row["valid_loss"], row["epochs"]) for row in map(json.loads, lines)]
        return {table: {"seconds": seconds, "setup": json.loads(done.stdout)["seconds"]["setup"], **_mean(results)}}

    return measure


def _mean(results: Sequence[Sequence[float]]) -> Figures:
    loss, epochs = np.mean(results, axis=0).tolist()
    return {"trials": len(results), "loss": loss, "epochs": epochs}


def _peer(
    table: str, script: str, settings: Mapping[str, Any], *before: str
) -> Callable[[Path], Mapping[str, Figures]]:
    """Return how to run a peer on a job. Its results are pairs of loss and epochs, or figures."""

    def measure(folder: Path) -> Mapping[str, Figures]:
        """Return seconds, and what the peer wrote."""
        out, job = folder / "out.json", folder / "job.json"
        job.write_text(json.dumps({**settings, "out": str(out)}))
        seconds, _ = execute([*before, str(PEERS / f"{script}.py"), str(job)], folder)
        results = json.loads(out.read_text())
        return {table: {"seconds": seconds, **(results if isinstance(results, dict) else _mean(results))}}

    return measure


def _write_windows(base: Path) -> str:
    """Write the windows that ours trains on, as peers read them: scaled already, each copied out."""
    config = RunConfig()
    dataset = catalog.task(config).prepare(config)

    def copy(part: Windows | None) -> np.ndarray:
        assert part is not None
        views = np.lib.stride_tricks.sliding_window_view(part.rows, part.length, axis=0)[part.starts]
        return np.ascontiguousarray(views.transpose(0, 2, 1).reshape(len(part), -1), np.float32)

    assert dataset.valid
    arrays = {"train_x": copy(dataset.train), "train_y": dataset.train.targets}
    arrays |= {"valid_x": copy(dataset.valid), "valid_y": dataset.valid.targets}
    np.savez(base / "windows.npz", allow_pickle=False, **arrays)
    return str(base / "windows.npz")


def start(base: Path, trees: Mapping[str, Path], *, quick: bool) -> Part:
    """Return a linear model from prices to test error, next to a plain script and to imports; and a search's set-up."""
    linear, setup, prices = "a linear model", "set-up of a search of 18 MLPs", base / "closes.csv"
    close = load(DataConfig()).close.iloc[:, 0]
    close.rename("close").rename_axis("date").to_csv(prices)

    def train(tree: Path) -> Callable[[Path], Mapping[str, Figures]]:
        argv = [str(tree / "experiments" / "train.py"), "--model.kind", "linear", "--json"]

        def measure(folder: Path) -> Mapping[str, Figures]:
            """Return seconds, share of the imports, and losses."""
            figures = _run_train(argv, folder, tree)
            return {linear: figures | {"import_share": _import_share([*argv, "--name", "again"], folder, tree)}}

        return measure

    def plain(folder: Path) -> Mapping[str, Figures]:
        """Return the same of the plain script."""
        argv, out = [str(PEERS / "linear.py"), str(prices), str(folder / "out.json")], folder / "out.json"
        seconds, _ = execute(argv, folder)
        figures = json.loads(out.read_text())
        return {linear: {"seconds": seconds, **figures, "import_share": _import_share(argv, folder, ROOT)}}

    def imports(folder: Path) -> Mapping[str, Figures]:
        """Return the seconds of three imports."""
        return {linear: {"seconds": execute(["-c", "import torch, numpy, pandas"], folder)[0], "import_share": 1.0}}

    def tune(tree: Path) -> Callable[[Path], Mapping[str, Figures]]:
        flags = ["--space", "grid18", "--mode", "packed", *(["--train.epochs", "1"] if quick else [])]
        return _tune(setup, tree, flags)

    arms = [Arm(f"{name} --model.kind linear", (linear,), train(tree), ours=True) for name, tree in _of(trees, "train")]
    arms += [
        Arm("plain script", (linear,), plain),
        Arm("import torch, numpy, pandas", (linear,), imports, another="imports alone"),
    ]
    arms += [Arm(f"{name} packed", (setup,), tune(tree), ours=True) for name, tree in _of(trees, "tune")]
    same = {"epochs": 0.0, "loss": 1e-3, "train_loss": 1e-2}
    first = Table(linear, "seconds", arms[0].name, equal=same)
    return Part(arms, [first, Table(setup, "setup", "tune.py packed")])


def _of(trees: Mapping[str, Path], script: str) -> list[tuple[str, Path]]:
    return [(name.replace("tune", script), tree) for name, tree in trees.items()]


def _run_train(argv: Sequence[str], folder: Path, tree: Path) -> Figures:
    seconds, done = execute([*argv, "--name", "run"], folder, tree=tree)
    lines = (folder / "runs" / "run" / "epochs.jsonl").read_text().splitlines()
    train_loss = json.loads(lines[-1])["train_loss"]
    return {
        "seconds": seconds,
        "loss": json.loads(done.stdout)["best_loss"],
        "epochs": len(lines),
        "train_loss": train_loss,
    }


def _import_share(argv: Sequence[str], folder: Path, tree: Path) -> float:
    """Return the share of the seconds that go into imports, in a run of its own that counts them."""
    seconds, done = execute(["-X", "importtime", *argv], folder, tree=tree)
    return sum(map(int, IMPORT_LINE.findall(done.stderr))) / 1e6 / seconds


def train(base: Path, trees: Mapping[str, Path], *, quick: bool) -> Part:
    """Return training with two workers: ours, a bare TorchTrainer, and torchrun."""
    table, epochs = f"{WORKERS} workers", 3 if quick else EPOCHS
    flags = ["--num-workers", str(WORKERS), "--train.epochs", str(epochs), "--train.early-stop-patience", "0", "--json"]

    def ours(tree: Path) -> Callable[[Path], Mapping[str, Figures]]:
        argv = [str(tree / "experiments" / "train.py"), *flags]
        return lambda folder: {table: _run_train(argv, folder, tree)}

    job: dict[str, Any] = {"data": _write_windows(base), "epochs": epochs, "workers": WORKERS}
    job |= {"hidden": 64, "dropout": 0.1, "lr": 1e-3}
    arms = [
        Arm(f"{name} --num-workers {WORKERS}", (table,), ours(tree), ours=True) for name, tree in _of(trees, "train")
    ]
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(WORKERS))
    arms.append(Arm("bare TorchTrainer", (table,), _peer(table, "train_ray", job)))
    arms.append(Arm("torchrun, gloo", (table,), _peer(table, "train_gloo", job, *torchrun)))
    same = {"epochs": 0.0, "loss": 1e-2, "train_loss": 3e-2}
    return Part(arms, [Table(table, "seconds", arms[0].name, equal=same)])
