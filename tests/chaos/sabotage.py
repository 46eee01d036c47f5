"""Programs on a copy of the project with a fault in it, `sabotage/PROGRAM.patch`, which they have to find."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATCHES = Path(__file__).with_name("sabotage")
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
    subprocess.run(["git", "apply", "--unsafe-paths", PATCHES / f"{program}.patch"], cwd=folder, check=True)


def measured(program: str, seed: int, folder: Path) -> dict[str, object]:
    """What the program prints of the copy, and whether its exit code says that something is wrong."""
    copy_with_fault(program, folder)
    argv = [sys.executable, "-m", "tests.chaos", "--quick", "--json", "--seed", str(seed), program]
    environment = {**os.environ, "PYTHONPATH": str(folder), "GIT_CEILING_DIRECTORIES": str(folder.parent)}
    done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if not done.stdout.startswith("{"):
        raise AssertionError(f"{program} measured nothing: {done.stderr[-2000:]}")
    return {"caught": done.returncode == 1, **json.loads(done.stdout)[program]}
