"""What may run: nothing that a folder of runs from another person names, and all that its user gave here before.

The sender of a run wrote all of its files, so the records here are sealed again after each change.
"""

from __future__ import annotations

import inspect
import re
import shutil
import site
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml
import your_own

import sp500
from sp500.agent.requests import SubmitJob
from sp500.cli import main as cli
from sp500.commands.experiments import compare, prepare, scale, train, tune, walk_forward
from sp500.errors import ConfigError
from sp500.plugins import admission, source
from sp500.plugins.reference import parse
from sp500.runs import checksums
from sp500.runs.archive import copying
from sp500.runs.record import RunRecord
from sp500.runs.store import Run
from sp500.serving import registry
from sp500.serving.models import open_model

QUICK: dict[str, Any] = {"train": {"epochs": 1}}
EVIL = Path("runs/evil")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a task and a model of its sender."""
    folder = tmp_path_factory.mktemp("theirs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(admission, "KNOWN", folder / "own-sources")
        your_own.write(folder)
        model = {"kind": "biopsies.py:Residual", "options": {"width": 8}}
        sp500.train(name="evil", task="biopsies.py:Biopsies", model=model, **QUICK)
    return folder / "runs" / "evil"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine on which nothing was ever given, and whose servers end at once."""
    import uvicorn

    monkeypatch.setattr(admission, "KNOWN", tmp_path / "home" / "own-sources")
    monkeypatch.setattr(admission, "_given", set())
    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets: None)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    your_own.write(tmp_path)
    Path("forecasts.csv").write_text("date,ticker,forecast\n2020-01-02,^GSPC,0.001\n")
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] in {"shop", "elsewhere"}]:
        del sys.modules[name]


MINE = """
import sp500


class Mine(sp500.PriceTask):
    features = ("log_return",)


def leave_mark(method):
    open(f"{MARK}-{method}", "w").close()


class Looped(Biopsies):
    def prepare(self, config):
        leave_mark("prepare")
        rows = [(row, target) for row, target in zip(*load_breast_cancer(return_X_y=True))]
        return sp500.from_torch(rows[:300], rows[300:400], rows[400:], config=config)

    def transform(self, x, target, rng):
        leave_mark("transform")
        return x + rng.normal(), target

    def step(self, trainer, batch):
        leave_mark("step")
        loss = self.loss(trainer.forward(trainer.model, batch.x), batch.y)
        trainer.update(loss, batch.total)
        return loss

    def measure(self, outputs, targets):
        leave_mark("measure")
        return {"top1": sp500.Sums((outputs.argmax(dim=1) == targets).sum(), len(targets))}
"""
CLASSES = {"price task": "Mine", "task of the loop": "Looped"}


def payload(mark: Path, end: str = "raise ImportError") -> str:
    """The Python of the run, which leaves a mark when it is imported, and then ends whatever trains."""
    return Path("biopsies.py").read_text() + f"MARK = {str(mark)!r}\n{MINE}\n\nopen(MARK, 'w')\n{end}\n"


DOORS = {
    "file": "source/payload.py",
    "file without config.yaml": "source/payload.py",
    "file without a checksum": "source/payload.py",
    "module in the folder of runs": "runs.evil.payload",
    "module in a folder of the run with __init__.py": "runs.evil.package.payload",
    "module among the copies": "runs.evil.source.payload",
    "module in the current folder": "elsewhere.payload",
}


def forge(theirs: Path, door: str, part: str, **more: str) -> Path:
    """The run as it was sent, with its task or its model behind a door; the mark of its Python."""
    place, mark = DOORS[door], Path.cwd() / "mark"
    shutil.copytree(theirs, EVIL, symlinks=True)
    shutil.rmtree(EVIL / "source")
    file = Path("elsewhere/payload.py") if "elsewhere" in place else EVIL / place.removeprefix("runs.evil.")
    if not place.endswith(".py"):
        file = Path(*place.split(".")).with_suffix(".py")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(payload(mark, **more))
    if "package" in place:
        (file.parent / "__init__.py").write_text(f"open({str(mark)!r}, 'w')\n")
    if door == "file":
        (file.parent / "SHA256SUMS").write_text(f"{admission.Reference(file, '').sha256}  {file.name}\n")
    for name in ("record.json", "started.json"):
        record = RunRecord.model_validate_json(checksums.unseal((EVIL / name).read_bytes()))
        config = name_parts(record.config, place, part)
        (EVIL / name).write_text(checksums.seal(record.model_copy(update={"config": config})))
    settings = yaml.safe_load((EVIL / "config.yaml").read_text())
    del settings["seeds"], settings["num_workers"]  # of train.py, and of another type in scale.py
    text = yaml.safe_dump(name_parts(settings, place, part))
    (EVIL / "config.yaml").write_text(text)
    (EVIL / "settings.yaml").write_text(text)
    if door == "file without config.yaml":
        (EVIL / "config.yaml").unlink()
    return mark


def name_parts(settings: dict[str, Any], place: str, part: str) -> dict[str, Any]:
    """Settings with the task or the model from this place, and a built-in one as the other."""
    if part in CLASSES:
        return {**settings, "task": f"{place}:{CLASSES[part]}", "model": {"kind": "mlp"}}
    if part == "task":
        return {**settings, "task": f"{place}:Biopsies", "model": {"kind": "mlp"}}
    return {**settings, "task": "returns", "model": {**settings["model"], "kind": f"{place}:Residual"}}


def killed(verb: Callable[[list[str]], object]) -> Callable[[list[str]], object]:
    """A verb on the run without its record, as after a kill: an ended run is only shown."""

    def act(flags: list[str]) -> object:
        (EVIL / "record.json").unlink()
        return verb(flags)

    return act


def experiment(module: Any, *words: str) -> Callable[[list[str]], object]:
    return lambda flags: module.main([*words, *flags])


def promoted(flags: list[str]) -> object:
    """Serve the model for which the sender promoted the run."""
    weights = yaml.safe_load((EVIL / "recipe.json").read_text())["weights_sha256"]
    registry.Registry(Path("runs")).promote("main", "evil", weights, "any", canary=None, shadow=False)
    return cli(["serve", *flags])


def fetched(flags: list[str]) -> object:
    """Fetch the run from an archive and serve it."""
    with copying.copy_run(f"file://{Path.cwd()}/archive", Run(EVIL.absolute()), "any"):
        pass
    shutil.rmtree(EVIL)
    assert cli(["runs", "fetch", "evil", "--from", f"file://{Path.cwd()}/archive"]) == 0
    return cli(["serve", "evil", *flags])


def predictor(flags: list[str]) -> object:
    """Load the run in Python."""
    return sp500.Predictor(EVIL, trust_source=bool(flags))


def best_of(flags: list[str]) -> object:
    """Take the run's config in Python."""
    return sp500.walk_forward(name="two", best_of="evil", folds=2, trust_source=bool(flags))


def judged(flags: list[str]) -> object:
    """Judge again what a run of `sp500 judge` judged, as it would be if the sender's were one."""
    with (EVIL / "config.yaml").open("a") as file:
        file.write("file: forecasts.csv\n")
    return cli(["judge", "forecasts.csv", "--name", "evil", "--resume", *flags])


RUNNING: dict[str, Callable[[list[str]], object]] = {
    "train --resume": killed(experiment(train, "--name", "evil", "--resume", "--train.epochs", "1")),
    "train --config": experiment(train, "--name", "two", "--config", str(EVIL / "config.yaml")),
    "train --config FILE": experiment(train, "--name", "two", "--config", str(EVIL / "settings.yaml")),
    "prepare --config": experiment(prepare, "--name", "two", "--config", str(EVIL / "config.yaml")),
    "tune --resume": killed(experiment(tune, "--name", "evil", "--resume")),
    "scale --config": experiment(
        scale,
        "--name",
        "two",
        "--config",
        str(EVIL / "config.yaml"),
        "--arms",
        "streaming",
        "--multipliers",
        "1",
    ),
    "walk_forward --best-of": lambda flags: walk_forward.main(
        ["--name", "two", "--best-of", "evil", "--folds", "2", *flags]
    ),
    "best_of in Python": best_of,
    "serve": lambda flags: cli(["serve", "evil", *flags]),
    "serve, promoted": promoted,
    "models promote": lambda flags: cli(["models", "promote", "evil", *flags]),
    "runs fetch, serve": fetched,
    "Predictor": predictor,
    "judge --config": lambda flags: cli(
        ["judge", "forecasts.csv", "--name", "two", "--config", str(EVIL / "config.yaml"), *flags]
    ),
    "judge --resume": killed(judged),
    "importance": lambda flags: cli(["importance", "evil", *flags]),
}
"""What would run the Python of a run that is trusted."""
READING: dict[str, Callable[[list[str]], object]] = {
    "compare": lambda flags: compare.main([]),
    "train --dry-run": experiment(train, "--config", str(EVIL / "config.yaml"), "--dry-run"),
    "train --resume --dry-run": killed(experiment(train, "--name", "evil", "--resume", "--dry-run")),
    "tune --dry-run": experiment(tune, "--config", str(EVIL / "config.yaml"), "--dry-run"),
    "scale --dry-run": experiment(scale, "--config", str(EVIL / "config.yaml"), "--dry-run"),
    "walk_forward --dry-run": lambda flags: walk_forward.main(["--best-of", "evil", "--dry-run"]),
    "jobs submit --dry-run": lambda flags: cli(
        ["jobs", "submit", "--dry-run", "--", "python", "experiments/train.py", "--name", "evil", "--resume"]
    ),
    "jobs forecast": lambda flags: cli(["jobs", "forecast"]),
    "judge --dry-run": lambda flags: cli(
        ["judge", "forecasts.csv", "--name", "two", "--config", str(EVIL / "config.yaml"), "--dry-run"]
    ),
    "models list": lambda flags: cli(["models", "list"]),
}
"""What imports nothing of a user's, trusted or not."""


def act(verb: Callable[[list[str]], object], *flags: str) -> object:
    """What a verb returns, or its error."""
    try:
        return verb(list(flags))
    except (SystemExit, sp500.errors.SP500Error) as error:
        return error


def reads_config(verb: str) -> bool:
    """Whether a verb reads config.yaml."""
    return "--resume" in verb or "config" in verb or verb.endswith("--dry-run")


@pytest.mark.parametrize(
    ("verb", "door", "part"),
    [
        (verb, door, part)
        for verb in (*RUNNING, *READING)
        for door in DOORS
        for part in ("task", "model", *(CLASSES if door == "file" else []))
        if door != "file without config.yaml" or not reads_config(verb)
    ],
)
def test_python_of_a_run_that_did_not_begin_here_does_not_run(verb, door, part, theirs, capfd, caplog):
    mark = forge(theirs, door, part)
    said = f"{act((RUNNING | READING)[verb])} {capfd.readouterr().err} {caplog.text}"
    assert not mark.exists()
    assert not admission.KNOWN.exists()
    if verb in RUNNING:
        assert re.search("was never given here|is not the file that its run was trained with", said)


@pytest.mark.parametrize("part", ["model", *CLASSES])
@pytest.mark.parametrize("verb", RUNNING)
def test_python_of_a_run_that_is_trusted_runs(verb, part, theirs):
    """Each verb of the test above would run it."""
    mark = forge(theirs, "file", part)
    act(RUNNING[verb], "--trust-source")
    assert mark.exists()


def test_methods_of_a_task_of_the_loop_run_only_if_it_is_trusted(theirs):
    """Its file can be imported here."""
    mark = forge(theirs, "file", "task of the loop", end="")
    assert act(RUNNING["train --config FILE"]) == 2
    assert not list(mark.parent.glob("mark*"))
    assert act(RUNNING["train --config FILE"], "--trust-source") == 0
    ran = {path.name for path in mark.parent.glob("mark*")}
    assert ran == {"mark", "mark-prepare", "mark-transform", "mark-step", "mark-measure"}


@pytest.mark.parametrize("door", [door for door in DOORS if "module" in door])
def test_module_that_is_trusted_runs_from_no_folder_of_runs_and_is_not_remembered(door, theirs):
    mark = forge(theirs, door, "model")
    act(predictor, "--trust-source")
    assert mark.exists() == (door == "module in the current folder")
    assert not admission.KNOWN.exists()


SUGGESTER = """
open({mark!r}, "w")

class Draws:
    def __init__(self, axes, seed):
        self.axes, self.shares = axes, iter(range(1, 100))

    def ask(self, count):
        share = next(self.shares) / 100
        return [{{key: axis.at(share) for key, axis in self.axes.items()}}]

    def tell(self, values, score):
        pass
"""


def test_method_of_a_search_that_did_not_begin_here_does_not_run():
    mark = Path("mark").absolute()
    Path("draws.py").write_text(SUGGESTER.format(mark=str(mark)))
    Path("space.yaml").write_text("train.lr: {low: 0.001, high: 0.01}\n")
    words = ["--task", "synthetic", "--space", "space.yaml", "--trials", "2", "--mode", "sequential"]
    search = experiment(tune, "--name", "evil", *words, "--train.epochs", "1", "--method", "draws.py:Draws")
    assert search([]) == 0
    Path("draws.py").unlink()
    other, resume = (
        experiment(tune, *flags)
        for flags in (("--name", "two", "--config", str(EVIL / "config.yaml")), ("--name", "evil", "--resume"))
    )
    for verb in (other, killed(resume)):
        mark.unlink()
        admission.KNOWN.unlink(missing_ok=True)
        forget_process()
        act(experiment(tune, "--config", str(EVIL / "config.yaml"), "--dry-run"))
        assert act(verb) == 2
        assert not mark.exists()
        source._modules.clear()
        act(verb if verb is other else resume, "--trust-source")
        assert mark.exists()


def forget_process() -> None:
    """As in the next command of the same user."""
    admission._given.clear()


@pytest.fixture
def shop() -> dict[str, Any]:
    """Settings with a task and a model from a module in the user's own folder."""
    Path("shop").mkdir()
    shutil.copy("biopsies.py", "shop/churn.py")
    return {"task": "shop.churn:Biopsies", "model": {"kind": "shop.churn:Residual", "options": {"width": 8}}}


def test_own_module_goes_on_working_once_it_was_given(shop):
    words = ["--task", shop["task"], "--model.kind", shop["model"]["kind"], "--model.options.width", "8"]
    assert train.main(["--name", "one", "--train.epochs", "1", *words]) == 0
    forget_process()
    Path("runs/one/record.json").unlink()
    assert train.main(["--name", "one", "--resume"]) == 0
    forget_process()
    with Path("shop/churn.py").open("a") as file:
        file.write("# edited\n")
    assert cli(["models", "promote", "one"]) == 0
    assert open_model(Path("runs"), "main")[0].choice.champion is not None
    assert admission.KNOWN.read_text() == f"{Path('shop/churn.py').resolve()}\n"


def test_own_module_that_a_file_of_settings_names_is_given(shop):
    Path("mine.yaml").write_text(yaml.safe_dump({**shop, **QUICK}))
    assert train.main(["--name", "one", "--config", "mine.yaml"]) == 0
    forget_process()
    assert sp500.Predictor("runs/one").config.task == "shop.churn:Biopsies"


def test_own_module_in_a_folder_that_is_also_that_of_the_runs_runs_when_it_is_named(shop):
    assert sp500.train(name="one", runs_dir=".", **shop, **QUICK).status == "ok"
    assert sp500.Predictor("one").config.task == "shop.churn:Biopsies"
    forget_process()
    with pytest.raises(ConfigError, match=r"was never given here.*--task or --model\.kind, or install it"):
        sp500.Predictor("one")


def test_module_of_an_installed_package_needs_no_question(shop, here, monkeypatch):
    package = here / "site"
    shutil.move("shop", package / "shop")
    monkeypatch.syspath_prepend(package)
    assert sp500.train(name="one", **shop, **QUICK).status == "ok"
    forget_process()
    admission.KNOWN.unlink()
    with pytest.raises(ConfigError, match="was never given here"):
        sp500.Predictor("runs/one")
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(package)])
    assert sp500.Predictor("runs/one").config.task == "shop.churn:Biopsies"
    assert not admission.KNOWN.exists()


@pytest.mark.parametrize("place", ["site", "."])
def test_entry_point_counts_as_installed_where_its_metadata_does(place, shop, here, monkeypatch):
    metadata = here / place / "shop-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: shop\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[sp500.tasks]\nchurn = shop.churn:Biopsies\n")
    monkeypatch.syspath_prepend(here / place)
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(here / "site")])
    sp500.train(name="one", task="churn", model={"kind": "linear"}, **QUICK)
    forget_process()
    admission.KNOWN.unlink(missing_ok=True)
    with nullcontext() if place == "site" else pytest.raises(ConfigError, match="was never given here"):
        sp500.Predictor("runs/one")


def test_home_that_cannot_be_written_only_forgets(here, monkeypatch):
    (here / "file").touch()
    monkeypatch.setattr(admission, "KNOWN", here / "file" / "own-sources")
    assert sp500.train(name="one", task="biopsies.py:Biopsies", **QUICK).status == "ok"
    forget_process()
    with pytest.raises(ConfigError, match="was never given here"):
        sp500.Predictor("runs/one")


@pytest.mark.parametrize("file", ["mine.yaml", "config.yaml"])
def test_settings_below_the_folder_of_runs_are_a_runs(file, here):
    """Whatever lies next to them."""
    Path("runs/sent").mkdir(parents=True)
    Path("runs/sent", file).write_text("task: elsewhere.payload:Biopsies\n")
    Path("elsewhere").mkdir()
    Path("elsewhere/payload.py").write_text(payload(here / "mark"))
    assert train.main(["--name", "two", "--config", f"runs/sent/{file}"]) == 2
    assert not (here / "mark").exists()


def test_module_is_found_where_an_import_finds_it(here, monkeypatch):
    """What is checked has to be what is imported."""
    for folder in ("installed", "."):
        (here / folder / "shop").mkdir(parents=True)
        shutil.copy("biopsies.py", here / folder / "shop" / "churn.py")
    monkeypatch.syspath_prepend(here / "installed")
    found = parse("shop.churn:Biopsies", "task", ())
    assert inspect.getfile(source.load(found)) == str(found.path) == str(here / "installed/shop/churn.py")


@pytest.fixture
def sent(tmp_path_factory: pytest.TempPathFactory, here: Path) -> Path:
    """A run of a program that another user ran, and a search; their command leaves a mark."""
    folder = tmp_path_factory.mktemp("sent")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(admission, "KNOWN", folder / "own-sources")
        assert train.main(["--command", "touch mark", "--name", "evil"]) == 0
        Path("space.yaml").write_text("x: [mark]\n")
        assert (
            tune.main(["--command", "touch {x}", "--space", str(folder / "space.yaml"), "--name", "evil-search"]) == 1
        )
    shutil.copytree(folder / "runs", "runs")
    for run in Path("runs").iterdir():
        shutil.copy(run / "config.yaml", run / "settings.yaml")
    forget_process()
    return folder


COMMANDS: dict[str, tuple[Callable[[list[str]], int], list[str]]] = {
    "train --resume": (train.main, ["--name", "evil", "--resume"]),
    "train --config": (train.main, ["--name", "two", "--config", "runs/evil/config.yaml"]),
    "train --config FILE": (train.main, ["--name", "two", "--config", "runs/evil/settings.yaml"]),
    "tune --resume": (tune.main, ["--name", "evil-search", "--resume"]),
    "tune --config": (tune.main, ["--name", "two", "--config", "runs/evil-search/config.yaml"]),
}


@pytest.mark.parametrize("verb", COMMANDS)
def test_command_of_a_run_that_did_not_begin_here_runs_only_if_it_is_trusted_and_is_shown(verb, sent, capfd):
    run, words = COMMANDS[verb]
    for record in Path("runs").glob("*/record.json"):
        record.unlink()
    text = "touch {x}" if "tune" in verb else "touch mark"
    assert run([*words, "--dry-run"]) == 0
    assert run(words) == 2
    shown = capfd.readouterr().err
    assert "was never given here" in shown
    assert f"It is: {text}" in shown
    assert not Path("mark").exists()
    assert not admission.KNOWN.exists()
    for trials in Path("runs").glob("*/trials.jsonl"):
        trials.unlink()
    run([*words, *(["--resume"] if "--resume" not in words else []), "--trust-source"])
    assert f": {text}\n" in capfd.readouterr().err
    assert Path("mark").exists()


def test_command_that_was_given_here_runs_again_without_a_question(sent):
    assert train.main(["--command", "touch mark", "--name", "mine"]) == 0
    forget_process()
    Path("mark").unlink()
    assert train.main(["--name", "two", "--config", "runs/evil/config.yaml"]) == 0
    assert Path("mark").exists()


def test_agents_cannot_give_a_command():
    for experiment in ("train", "tune"):
        with pytest.raises(ValueError, match="--command is not a flag of"):
            SubmitJob(experiment=experiment, arguments=("--command", "ls"))
