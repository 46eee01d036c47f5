"""The benchmark for GPUs, as far as a CPU goes: the same lines, with the few packages that such a machine has."""

import json
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu.py"
PACKAGES = {"torch", "numpy", "pandas", "pydantic", "safetensors", "jaxtyping"}


def name_distribution(text: str) -> str:
    return re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", text)[0]).lower()


def link_packages(site: Path) -> None:
    """Fill a folder with `PACKAGES` and all that they require: what `python -S` finds there and nowhere else."""
    installed = {name_distribution(one.name): one for one in metadata.distributions()}
    wanted, left = set(), set(PACKAGES)
    while left:
        wanted |= left
        lines = [line for name in left for line in installed[name].requires or [] if "extra ==" not in line]
        left = ({name_distribution(line) for line in lines} & installed.keys()) - wanted
    site.mkdir()
    files = (file for name in wanted for file in installed[name].files)
    # One folder may belong to many, as nvidia does in torch's build for CUDA.
    tops = {file.parts[0]: Path(file.locate()).parents[len(file.parts) - 1] for file in files}
    for top in tops.keys() - {"..", "__pycache__"}:
        (site / top).symlink_to(tops[top] / top)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_section_runs_on_a_cpu_without_any_other_package(tmp_path):
    site = tmp_path / "site"
    link_packages(site)
    for name in ("ray", "optuna", "pyarrow", "exchange_calendars", "scipy", "yaml", "psutil"):
        assert not (site / name).exists()
    # As in tests/training/test_step.py; and threads that wait leave the cores to other tests.
    inductor = {"COMPILE_THREADS": "1", "VEC_ISA_OK": "1", "CPP_CACHE_PRECOMPILE_HEADERS": "0"}
    environment = os.environ | {f"TORCHINDUCTOR_{name}": value for name, value in inductor.items()}
    environment |= {"OMP_WAIT_POLICY": "PASSIVE", "PYTHONPATH": str(site)}
    command = [sys.executable, "-S", str(SCRIPT), "--device", "cpu", "--quick", "--json"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    machine, *sections = map(json.loads, done.stdout.splitlines())
    assert machine["gpu"] is None
    rows = {section["section"]: {row["name"]: row for row in section["rows"]} for section in sections}
    assert len(rows["training"]) == 9
    assert all(row["train_loss"] > 0 and 0 < row["mfu"] < 1 for row in rows["training"].values())
    assert [row["loss_gap_to_alone"] < 1e-5 > row["loss_gap_to_vmap"] for row in rows["packs"].values()] == [True, True]
    assert [row["gap"] < 1e-9 for row in rows["numbers"].values()] == [True, True]
    assert {row["share_of_memory"] > 0.25 for row in rows["large data"].values()} == {True}
    assert [name for section in sections for name in section["left_out"]] == [
        *(f"{name}, CPU and GPU" for name in ("mlp", "lstm", "gpt")),
        "copies",
    ]
