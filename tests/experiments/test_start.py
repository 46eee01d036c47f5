"""What a process imports to train a built-in model: nothing that such a training does not use."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
KINDS = ("linear", "mlp", "lstm", "transformer")
COMPILER = ("torch._dynamo", "torch._inductor", "sympy", "torch.utils.flop_counter", "torch.onnx")
SHARDING = ("torch.distributed.fsdp", "torch.distributed.tensor", "torch.distributed.checkpoint")
OTHERS = ("matplotlib", "scipy.optimize", "scipy.stats", "sklearn", "ray", "optuna", "sqlalchemy", "fastapi")
TRAIN = """
import sys
from pathlib import Path
from experiments.train import Train, main, run_experiment

folder, *kinds = sys.argv[1:]
for kind in kinds:
    flags = ["--model.kind", kind, "--train.epochs", "1", "--train.max-steps", "3", "--data.start", "2014-01-01"]
    code = run_experiment(Train, main, [*flags, "--runs-dir", folder, "--name", kind])
    assert code == 0, code
Path(folder, "modules").write_text(chr(10).join(sys.modules))
"""


def test_training_of_built_in_models_imports_no_compiler_no_sharding_and_no_figures(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TRAIN, str(tmp_path), *KINDS], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for kind in KINDS:
        throughput = json.loads((tmp_path / kind / "record.json").read_text())["throughput"]
        assert throughput["flops_per_window"] > 0
    modules = set((tmp_path / "modules").read_text().splitlines())
    assert modules.isdisjoint(COMPILER + SHARDING + OTHERS)
    assert modules > {"torch", "sp500.training.loop", "sp500.report.terminal"}  # the list is of the right process
