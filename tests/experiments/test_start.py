"""What a process imports to train a built-in model: nothing that such a training does not use."""

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
from sp500.commands.experiments.train import main

folder, *kinds = sys.argv[1:]
for kind in kinds:
    flags = ["--model.kind", kind, "--train.epochs", "1", "--train.max-steps", "3", "--data.start", "2014-01-01"]
    code = main([*flags, "--runs-dir", folder, "--name", kind])
    assert code == 0, code
Path(folder, "modules").write_text(chr(10).join(sys.modules))
"""


def test_training_of_built_in_models_imports_no_compiler_no_sharding_and_no_figures(tmp_path):
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


SEARCH = """
import sys
from pathlib import Path
from sp500.commands.experiments.tune import main
from sp500.tuning.packing import scheduler

folder, space = sys.argv[1:]
train = scheduler._train


def watched(sender, data, pack, *others):
    before = set(sys.modules)
    train(sender, data, pack, *others)
    kind = pack[0].config.model.kind
    Path(folder, f"{kind}-{len(pack)}").write_text(chr(10).join(sys.modules.keys() - before))


scheduler._train, scheduler.count_processes = watched, lambda config: 2
short = ["--train.epochs", "1", "--train.max-steps", "3", "--data.start", "2014-01-01"]
code = main(["--space", space, "--mode", "packed", *short, "--runs-dir", folder, "--name", "run"])
assert code == 0, code
"""


def test_forked_trials_import_what_their_parent_has_imported(tmp_path):
    space = tmp_path / "space.yaml"
    space.write_text("model.kind: [mlp, lstm, transformer]\nmodel.hidden: [8]\ntrain.lr: [0.001, 0.003]\n")
    done = subprocess.run(
        [sys.executable, "-c", SEARCH, str(tmp_path), str(space)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "optuna.db").exists()
    imported = {path.name: path.read_text().split() for path in tmp_path.glob("*-*")}
    assert imported.keys() >= {"lstm-1", "transformer-1"}
    for pack, modules in imported.items():
        assert len(modules) <= 5, (pack, modules)
        assert not [module for module in modules if module.startswith("sp500.")]
