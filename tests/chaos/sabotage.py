"""Programs on a copy of the project with a fault in it, `sabotage/PROGRAM.patch`, which they have to find."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PATCHES = Path(__file__).with_name("sabotage")
SPOILED: dict[str, Callable[[dict[str, Any]], bool]] = {
    "managers": lambda found: found["run_twice"] > 0,
    "searches": lambda found: all(arm["run_twice"] > 0 for arm in found.values()),
    "training": lambda found: found["other_epochs"] > 0 and found["other_weights"] > 0,
    "steps": lambda found: found["other_weights"] > 0,
    "archive": lambda found: found["partial_versions"] > 0,
    "serving": lambda found: found["server"]["heads"]["above_idle_mib"] > 1000,
}
"""What the fault of each program does."""
NEEDED = "sp500", "experiments", "tests", "pyproject.toml"


def copy_with_fault(program: str, folder: Path) -> None:
    """Copy what the programs need, and put the fault in. Raises CalledProcessError for a patch that does not apply."""
    for name in NEEDED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / name)
    if (ROOT / ".venv-moto").exists():
        (folder / ".venv-moto").symlink_to(ROOT / ".venv-moto")
    subprocess.run(["git", "apply", PATCHES / f"{program}.patch"], cwd=folder, env=alone(folder), check=True)


def alone(folder: Path) -> dict[str, str]:
    """The environment in which git takes the folder for no part of a repository around it."""
    return {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)}


def measured(program: str, seed: int, folder: Path) -> dict[str, object]:
    """What the program prints of the copy, and whether its exit code says that something is wrong."""
    copy_with_fault(program, folder)
    argv = [sys.executable, "-m", "tests.chaos", "--quick", "--json", "--seed", str(seed), program]
    environment = alone(folder) | {"PYTHONPATH": str(folder)}
    done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if not done.stdout.startswith("{"):
        raise AssertionError(f"{program} measured nothing: {done.stderr[-2000:]}")
    found = json.loads(done.stdout)[program]
    # Not by the exit code alone, which also says that a kill missed its line.
    return {"caught": done.returncode == 1 and SPOILED[program](found), **found}
