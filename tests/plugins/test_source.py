"""A brought file in a run: copied, imported once, the same when resumed, and not run for a stranger."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import forks
import pytest
import your_own

import sp500
from sp500.commands.experiments.train import Train
from sp500.config import RunConfig
from sp500.console import entry
from sp500.errors import ConfigError, DataError
from sp500.plugins import admission, source
from sp500.plugins.reference import Reference
from sp500.runs.record import RunRecord
from sp500.runs.store import RunStore
from sp500.tasks import catalog

QUICK: dict[str, Any] = {"train": {"epochs": 2}}


@pytest.fixture(autouse=True)
def _stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was ever given here, and references are relative to the test's folder."""
    monkeypatch.setattr(admission, "KNOWN", tmp_path / "home" / "own-sources")
    monkeypatch.setattr(admission, "_given", set())
    monkeypatch.chdir(tmp_path)
    your_own.write(tmp_path)


def trained(name: str, **settings: Any) -> RunRecord:
    own = {"task": "biopsies.py:Biopsies", "model": {"kind": "biopsies.py:Residual", "options": {"width": 8}}}
    return sp500.train(name=name, **{**own, **QUICK, **settings})


def forget() -> None:
    admission.KNOWN.unlink()
    admission._given.clear()


def test_example_of_the_documentation_is_short_and_learns():
    assert len(Path("biopsies.py").read_text().splitlines()) <= 60
    record = trained("one", train={"epochs": 25})
    test = record.metrics["test"]
    assert test["accuracy"] > record.metrics["naive"]["majority"]["accuracy"] + 0.1
    assert record.data["windows"] == {"train": 400, "valid": 84, "test": 85}
    assert len(record.data["sha256"]) == 64


def test_run_uses_a_copy_which_its_files_name_without_the_place():
    record = trained("one")
    copy = Path("runs/one/source/biopsies.py")
    assert copy.read_bytes() == Path("biopsies.py").read_bytes()
    assert (copy.parent / "SHA256SUMS").read_text().split()[1] == "biopsies.py"
    assert record.config["task"] == "source/biopsies.py:Biopsies"
    assert "task: source/biopsies.py:Biopsies" in Path("runs/one/config.yaml").read_text()
    Path("runs").rename("elsewhere")
    moved = RunStore(Path("elsewhere")).record("one")
    assert moved is not None
    config = moved.best_config(Path("elsewhere/one").absolute())
    assert config.fingerprint == record.fingerprint
    assert config.own_task is not None
    assert config.own_task.path == Path("elsewhere/one/source/biopsies.py").absolute()


def test_fingerprint_follows_the_source_and_its_options_and_not_the_place():
    Path("there").mkdir()
    shutil.copy("biopsies.py", "there")
    shutil.copy("biopsies.py", "changed.py")
    Path("changed.py").write_text(Path("changed.py").read_text() + "\n# another\n")

    def fingerprint(file: str, **options: int) -> str:
        return RunConfig.model_validate(
            {"task": f"{file}:Biopsies", "model": {"kind": f"{file}:Residual", "options": options}}
        ).fingerprint

    same = {fingerprint("biopsies.py"), fingerprint("there/biopsies.py")}
    assert len(same | {fingerprint("changed.py"), fingerprint("biopsies.py", width=8)}) == 3


def test_resumed_run_goes_on_with_its_copy_and_refuses_another_file():
    record = trained("one")
    original = Path("biopsies.py").read_text()
    Path("biopsies.py").write_text(original.replace("ReLU", "Tanh"))
    with pytest.raises(ConfigError, match=r"other settings.*biopsies.py differs from the run's .*source/biopsies.py"):
        trained("one", resume=True)
    Path("runs/one/record.json").unlink()
    own = {"task": "runs/one/source/biopsies.py:Biopsies"}
    model = {"kind": "runs/one/source/biopsies.py:Residual", "options": {"width": 8}}
    again = sp500.train(name="one", resume=True, model=model, **own, **QUICK)
    assert (again.fingerprint, again.metrics) == (record.fingerprint, record.metrics)


def test_two_files_of_one_name_in_a_run_are_refused():
    Path("nets").mkdir()
    Path("nets/biopsies.py").write_text(Path("biopsies.py").read_text() + "\n")
    with pytest.raises(ConfigError, match="need different names"):
        trained("one", model={"kind": "nets/biopsies.py:Residual"})


def test_source_of_a_strangers_run_needs_a_flag():
    trained("one")
    forget()
    shutil.copytree("runs", "theirs")
    own = {"task": "theirs/one/source/biopsies.py:Biopsies"}
    with pytest.raises(ConfigError, match=r"was never given here.*--trust-source"):
        sp500.train(name="two", **own, **QUICK)
    assert not Path("runs/two/source").exists()
    assert sp500.train(name="three", trust_source=True, **own, **QUICK).status == "ok"
    assert sp500.train(name="four", **own, **QUICK).status == "ok"  # it is known now


@pytest.mark.parametrize(
    "place", ["extra/evil.py", "../evil.py", "source/../evil.py", "{here}/evil.py", "source/a/b.py"]
)
def test_settings_of_a_run_name_no_file_but_its_copies(place):
    trained("one")
    here = Path("runs/one")
    place = place.format(here=Path.cwd())
    (here / place).parent.mkdir(parents=True, exist_ok=True)
    (here / place).write_text("raise SystemExit('it ran')\n")
    text = (here / "config.yaml").read_text()
    (here / "config.yaml").write_text(text.replace("source/biopsies.py:Biopsies", f"{place}:Biopsies"))
    for words in (["--resume", "--name", "one"], ["--config", "runs/one/config.yaml", "--name", "two"]):
        with pytest.raises(ConfigError, match="only in source/"):
            entry.parse(Train, words)


def test_settings_of_ones_own_name_files_beside_them():
    Path("sub").mkdir()
    Path("biopsies.py").rename("sub/biopsies.py")
    Path("sub/mine.yaml").write_text("task: biopsies.py:Biopsies\n")
    config = entry.parse(Train, ["--config", "sub/mine.yaml"])
    assert config.own_task is not None
    assert config.own_task.path == Path("sub/biopsies.py").absolute()


def test_copy_that_was_changed_is_refused():
    trained("one")
    copy = Path("runs/one/source/biopsies.py")
    copy.write_text(copy.read_text() + "\nprint('changed')\n")
    with pytest.raises(ConfigError, match="is not the file that its run was trained with"):
        sp500.train(name="two", task=f"{copy}:Biopsies", trust_source=True, **QUICK)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("import no_such_module", "biopsies.py:\\d+: ModuleNotFoundError.*biopsies:(Biopsies|Residual) in"),
        ("1 / 0", "biopsies.py:\\d+: ZeroDivisionError"),
        ("del Biopsies", "has no Biopsies once it is imported"),
        ("Biopsies = 3", "Biopsies is a int; a task is a class"),
        ("Residual = dict", "does not inherit from torch.nn.Module"),
        ("del Biopsies.judge; Biopsies.__abstractmethods__ = frozenset({'judge'})", "has no method judge"),
    ],
)
def test_file_that_cannot_be_imported_is_refused_by_line_before_data_is_loaded(line, said):
    text = (
        Path("biopsies.py")
        .read_text()
        .replace("x, y = load", "raise AssertionError('data was loaded')\n        x, y = load")
    )
    Path("biopsies.py").write_text(f"{text}\n\n{line}\n")
    with pytest.raises(ConfigError, match=said):
        trained("one")


@pytest.mark.parametrize(
    ("returned", "said"), [("3", "returned int, not a torch.nn.Module"), ("nn.ReLU()", "has no weights to train")]
)
def test_model_function_that_returns_no_model_is_refused(returned, said):
    Path("nets.py").write_text(f"from torch import nn\n\ndef net(config, dataset):\n    return {returned}\n")
    with pytest.raises(ConfigError, match=said):
        trained("one", model={"kind": "nets.py:net"})


def test_task_travels_to_a_process_that_does_not_have_its_file():
    from ray import cloudpickle

    task = catalog.task(RunConfig(task="biopsies.py:Biopsies"))
    Path("task.pickle").write_bytes(cloudpickle.dumps(task))
    Path("biopsies.py").unlink()
    code = "import pickle, torch\ntask = pickle.load(open('task.pickle', 'rb'))\n"
    Path("away.py").write_text(f"{code}print(float(task.loss(torch.zeros(2, 2), torch.tensor([0, 1]))))\n")
    done = forks.run(["away.py"])
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(2 * math.log(2), rel=1e-6)


def test_file_is_imported_once_for_all_who_ask():
    Path("biopsies.py").write_text(Path("biopsies.py").read_text() + "\n# its own hash\n")
    shutil.copy("biopsies.py", "copy.py")
    first, second = (source.load(Reference(Path(name).absolute(), "Biopsies")) for name in ("biopsies.py", "copy.py"))
    assert first is second


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('reduction="sum"', 'reduction="mean"', "has to be a sum over the batch"),
        ('reduction="sum")', 'reduction="sum") * float("nan")', "is nan, before any step"),
        ('reduction="sum"', 'reduction="none"', "expected one number that has a gradient"),
        ("return F.cross", "return 0 * F.cross", None),
        ("return F.cross", "return ((output[:, :1] - target) ** 2).sum() #", r"output \[3, 2\] and targets \[3\] is"),
        (
            "targets=y[first:last]",
            "targets=y[first:last] + 1",
            r"biopsies.py:\d+: IndexError: Target 2 .* from 1 to 2; N",
        ),
        (".astype(config.train.dtype)", "", "train.rows are float64: write .astype"),
        ("starts=np.arange(len(rows))", "starts=np.arange(len(rows)) + 5", "a window of 1 rows has to lie within 400"),
        ("targets=y[first:last]", "targets=y[first : last - 1]", "400 windows and 399 targets"),
        ("targets=y[first:last]", "targets=y[first:last].astype(str)", "train.targets is <U"),
        ("outputs=2)", "outputs=2).train", "prepare returned Windows, expected sp500.Dataset"),
        ("x = (x - x[", "x[7, 3] = np.nan\n        x = (x - x[", r"train.rows\[\d+\] is not finite"),
        ("return self.head(hidden)", "return self.head(hidden)[:1]", r"gives \[1, 2\] for 3 windows"),
        ("return self.head(hidden)", "return self.head(hidden), x", "gives tuple for 3 windows"),
        ("super().__init__()", "pass", r"biopsies.py:\d+: AttributeError: cannot assign module before"),
        ("return_X_y=True", "return_X=True", r"biopsies.py:\d+: InvalidParameter|biopsies.py:\d+: TypeError"),
        ('{**found, "naive"', '{**found, "naives"', "judge returned no naive, expected {'valid'"),
        ("return {**found,", "found['test'].pop('f1', 0)\n        return {'test': found['test'],", "returned no valid"),
        ('"over": "majority"', '"over": "chance"', "over 'chance', expected one of its naive answers: majority"),
        ('"metric": "error_rate", **gain', '"metric": "error_rate"', "has no value"),
        (
            "return {**found,",
            "found['test']['hits'] = wrong.sum()\n        return {**found,",
            r"test.hits as int64; write f",
        ),
        ("found = {name:", "found = {name.up():", r"biopsies.py:\d+: AttributeError: 'str' object"),
    ],
)
def test_task_whose_numbers_do_not_fit_is_refused_by_part(old, new, said):
    text = Path("biopsies.py").read_text()
    assert old in text
    Path("biopsies.py").write_text(text.replace(old, new))
    if said is None:
        assert trained("one").status == "ok"
        return
    with pytest.raises(DataError, match=said):
        trained("one")


def test_model_whose_outputs_are_not_the_tasks_is_refused():
    text = (
        "from torch import nn\n\ndef net(config, dataset):\n    return nn.Sequential(nn.Flatten(), nn.LazyLinear(7))\n"
    )
    Path("nets.py").write_text(text.replace("nn.LazyLinear(7)", "nn.Linear(dataset.window * dataset.features, 7)"))
    with pytest.raises(DataError, match=r"the model gives \[3, 7\] for 3 windows, expected \[3, 1\]"):
        sp500.train(name="one", model={"kind": "nets.py:net"}, data={"start": "2015-01-01"}, **QUICK)


def test_language_takes_a_model_of_ones_own_and_no_other_of_ours():
    Path("nets.py").write_text(
        "from torch import nn\n\n\nclass Bytes(nn.Module):\n    def __init__(self, config, dataset):\n"
        "        super().__init__()\n        self.embed = nn.Embedding(256, 256)\n\n"
        "    def forward(self, x):\n        return self.embed(x.long())\n"
    )
    text = {"max_bytes": 20_000, "context": 16}
    assert sp500.train(name="one", task="language", text=text, model={"kind": "nets.py:Bytes"}, **QUICK).status == "ok"
    with pytest.raises(ConfigError, match="not for task language"):
        sp500.train(name="two", task="language", text=text, model={"kind": "mlp"})
