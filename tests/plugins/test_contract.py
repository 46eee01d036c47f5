"""Wrong tasks and models: refused by their signature, with the line to write, before there is a run or any data."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sp500.errors import ConfigError, DataError
from sp500.plugins import source
from sp500.plugins.contract import load_model, load_task
from sp500.plugins.reference import Reference, parse

ROOT = Path(__file__).parent.parent.parent
TASK = """
from sp500 import Task

class Good(Task):
    def prepare(self, config):
        return None

    def loss(self, output, target):
        return None

    def judge(self, outputs, dataset):
        return {}
"""
MODEL = """
from torch import nn

class Net(nn.Module):
    def __init__(self, config, dataset, *, width=3, depth):
        super().__init__()

    def forward(self, x):
        return x
"""


def file_of(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "text",
    [
        TASK,
        TASK.replace("config)", "settings)").replace("output, target)", "a, b, scale=1.0)"),
        TASK.replace("class Good(Task)", "class Base(Task):\n    pass\n\nclass Good(Base)"),
        "from sp500.tasks.returns import Returns\n\nclass Good(Returns):\n    def loss(self, a, b):\n        pass\n",
        TASK + "\n    def __init__(self, config):\n        self.config = config\n",
        TASK.replace("(self, outputs, dataset)", "(self, *parts)"),
        TASK.replace("(self, output, target)", "(this, output, target)"),
    ],
    ids=["plain", "other names", "base in the file", "of another file", "takes the settings", "any number", "this"],
)
def test_task_that_has_what_it_takes_is_accepted(tmp_path, text):
    assert load_task(Reference(file_of(tmp_path, text), "Good")).__name__ == "Good"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("Good(Task)", "God(Task)", "has no Good once it is imported; did you mean God"),
        ("Good(Task)", "Good", "does not inherit from sp500.Task; write 'class Good\\(Task\\):'"),
        ("class Good(Task):", "def Good(config):", "Good is a function; a task is a class"),
        ("def loss", "def lost", "has no method loss; add 'def loss\\(self, output: Tensor, target: Tensor\\)"),
        ("def judge", "def _judge", "has no method judge; add 'def judge"),
        (
            "(self, output, target)",
            "(self, output)",
            "class Good: loss takes \\(self, output\\), not \\(self, output, t",
        ),
        ("(self, config)", "(self, config, path)", "prepare takes \\(self, config, path\\)"),
        ("(self, config)", "(self, config, *, path)", "prepare requires path="),
        ("(self, output, target)", "(self, target, output)", "loss takes \\(self, target, output\\), not \\(self, out"),
        ("def prepare", "async def prepare", "prepare is async"),
        ("return {}", "return {", "mine.py.*SyntaxError"),
        ("return {}", "return {}\n\n    def kept(self, output):\n        return output", "kept takes"),
        ("return {}", "return {}\n\n    def predictoins(self):\n        pass", "did you mean predictions"),
        ("return {}", "return {}\n\n    def __init__(self, a, b):\n        pass", "__init__ takes \\(a, b\\)"),
    ],
)
def test_task_that_breaks_the_contract_is_refused_with_the_way_out(tmp_path, old, new, said):
    assert old in TASK
    with pytest.raises(ConfigError, match=said):
        load_task(Reference(file_of(tmp_path, TASK.replace(old, new)), "Good"))


LOSS = "    def loss(self, output, target):\n        return output.sum()\n"
JUDGE = "    def judge(self, outputs, dataset):\n        return super().judge(outputs, dataset)\n"
MIXIN = f"class Mixin:\n{LOSS}\n\n"
OTHER_LOSS = {
    "overridden": f"class Mine(Direction):\n{LOSS}",
    "overridden, of images": f"from sp500.tasks.images import Images\nclass Mine(Images):\n{LOSS}",
    "from a mixin": f"{MIXIN}class Mine(Mixin, Direction):\n    pass\n",
    "from a base in the file": f"class Base(Direction):\n{LOSS}\n\nclass Mine(Base):\n    pass\n",
    "of another task": "class Mine(Direction):\n    loss = Returns.loss\n",
    "assigned": "import torch\nclass Mine(Direction):\n    loss = staticmethod(lambda output, target: output.sum())\n",
    "of the instance": "class Mine(Direction):\n    def __init__(self, config):\n        super().__init__(config)\n"
    "        object.__setattr__(self, 'loss', lambda output, target: output.sum())\n",
    "by another name": f"from sp500.tasks import returns\nR = returns.Direction\nclass Mine(R):\n{LOSS}",
}
JUDGED = {
    "not overridden": "class Mine(Returns):\n    pass\n",
    "no loss": "class Mine(Direction):\n    def kept(self, output, target):\n        return output\n",
    "overridden, of a number, whose judge asks it": f"class Mine(Returns):\n{LOSS}",
    "with a judge": f"class Mine(Direction):\n{LOSS}\n{JUDGE}",
    "judge from a mixin": f"class Mixin:\n{LOSS}\n{JUDGE}\n\nclass Mine(Mixin, Direction):\n    pass\n",
}


@pytest.mark.parametrize(
    ("method", "train", "said"),
    [
        ("def optimizer(self, model, config)", {"weight_decay": 0.1}, "weight_decay is not used .* its own optimizer"),
        ("def lr_factor(self, step, steps)", {"schedule": "cosine"}, "schedule is not used .* its own lr_factor"),
    ],
)
def test_setting_that_a_method_of_the_task_replaces_is_refused(tmp_path, method, train, said):
    from sp500.config import RunConfig

    path = file_of(tmp_path, f"{TASK}\n    {method}:\n        pass\n")
    config = RunConfig.model_validate({"task": f"{path}:Good", "train": train})
    with pytest.raises(ConfigError, match=said):
        config.check_judge(source.load(config.own_task))


@pytest.mark.parametrize("where", [*OTHER_LOSS, *JUDGED])
def test_task_whose_loss_a_built_in_judge_does_not_know_is_refused_before_its_data(where, tmp_path, monkeypatch):
    from sp500.config import RunConfig
    from sp500.tasks import catalog

    class Loaded(Exception):
        """The data was asked for."""

    def load(*_: object, **__: object) -> None:
        raise Loaded

    monkeypatch.setattr("sp500.tasks.prices.PriceTask.prepare", load)
    monkeypatch.setattr("sp500.tasks.images.Images.prepare", load)
    head = "from __future__ import annotations\nfrom sp500.tasks.returns import Direction, Returns\n\n\n"
    path = file_of(tmp_path, head + (OTHER_LOSS | JUDGED)[where])
    config = RunConfig(task=f"{path}:Mine")
    if where in JUDGED:
        config.check_judge(source.load(config.own_task))
        with pytest.raises(DataError, match="Loaded"):
            catalog.prepare(catalog.task(config), config)
        return
    with pytest.raises(ConfigError, match=r"has a loss of its own and inherits judge from .*Add 'def judge"):
        catalog.prepare(catalog.task(config), config)
    if where != "of the instance":  # seen before the run has a folder
        config.give({"task": config.task})
        with pytest.raises(ConfigError, match=r"mine.py: class Mine has a loss"):
            config.check_own()


def test_model_with_its_options_is_accepted(tmp_path):
    load_model(Reference(file_of(tmp_path, MODEL), "Net"), {"width": 5, "depth": 2})
    function = "def Net(config, dataset, **options):\n    return None\n"
    load_model(Reference(file_of(tmp_path, function), "Net"), {"anything": 1})


@pytest.mark.parametrize(
    ("old", "new", "options", "said"),
    [
        ("class Net", "class Nett", {"depth": 2}, "did you mean Nett"),
        ("nn.Module", "", {"depth": 2}, "does not inherit from torch.nn.Module"),
        ("", "", {"depth": 2, "widht": 3}, "has no option widht; did you mean width"),
        ("", "", {}, "requires depth; set it with --model.options.depth VALUE"),
        ("config, dataset", "size", {"depth": 2}, "takes \\(size\\), not \\(config, dataset\\)"),
        ("config, dataset", "dataset, config", {"depth": 2}, "takes \\(dataset, config\\), not"),
        ("__init__", "make", {"depth": 2}, "has no method __init__; add"),
        ("forward", "forwards", {"depth": 2}, "has no method forward"),
        ("config, dataset", "config, dataset, units", {"depth": 2}, "takes \\(config, dataset, units\\)"),
    ],
)
def test_model_that_breaks_the_contract_is_refused_with_the_way_out(tmp_path, old, new, options, said):
    assert old in MODEL
    text = MODEL.replace(old, new, 1) if old else MODEL
    with pytest.raises(ConfigError, match=said):
        load_model(Reference(file_of(tmp_path, text), "Net"), options)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("retruns", "unknown task 'retruns'.*did you mean returns"),
        ("mine.py:", "'' is not the name of a class"),
        ("folder/mine:Good", "'folder/mine' is neither a .py file nor the name of a module"),
        ("no.such.package:Good", "no module named 'no'"),
        ("xml.none:Good", "no module named 'xml.none'"),
        ("math:Good", "is not a Python file"),
    ],
)
def test_reference_to_nothing_is_refused_by_name(text, said):
    with pytest.raises(ConfigError, match=said):
        parse(text, "task", ("returns", "direction"))


def test_module_is_found_without_being_imported(tmp_path, monkeypatch):
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (tmp_path / "shop" / "churn.py").write_text(TASK)
    monkeypatch.chdir(tmp_path)
    found = parse("shop.churn:Good", "task", ())
    assert (found.path, found.name, found.module) == (tmp_path / "shop" / "churn.py", "Good", "shop.churn")


def test_names_of_installed_packages_are_known(tmp_path, monkeypatch):
    (tmp_path / "shop.py").write_text(TASK)
    installed = tmp_path / "shop-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: shop\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text("[sp500.tasks]\nchurn = shop:Good\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = parse("churn", "task", ("returns",))
    assert (found.path, found.name, found.module) == (tmp_path / "shop.py", "Good", "shop")


def test_command_with_a_wrong_task_ends_with_code_2_and_leaves_no_run(tmp_path):
    file_of(tmp_path, TASK.replace("def loss", "def lost"))
    code = "import sys\nfrom sp500.commands.experiments.train import main\nsys.exit(main(['--task', 'mine.py:Good']))\n"
    environment = {"PYTHONPATH": str(ROOT), "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=environment, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("ConfigError: mine.py: class Good has no method loss; add 'def loss(")
    assert not (tmp_path / "runs").exists()
