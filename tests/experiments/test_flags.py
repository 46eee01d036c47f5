"""Flags and settings files: what is wrong is told in one message, with the way out."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from help_text import empty_defaults

from sp500.commands.experiments.train import Train
from sp500.console import entry
from sp500.data.images.settings import ImagesConfig

ROOT = Path(__file__).parent.parent.parent
SCRIPTS = sorted(path.stem for path in (ROOT / "experiments").glob("*.py"))


HELP = """
import contextlib, io, json, runpy, sys
found = {}
for path in sys.argv[1:]:
    sys.argv = [path, "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as text:
        try:
            runpy.run_path(path, run_name="__main__")
        except SystemExit as end:
            found[path] = end.code, text.getvalue(), [*sys.modules]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def helps():
    """Exit code, text and loaded modules of each script's --help, one after the other in one process."""
    paths = [str(ROOT / "experiments" / f"{name}.py") for name in SCRIPTS]
    done = subprocess.run([sys.executable, "-c", HELP, *paths], stdout=subprocess.PIPE, check=True)
    return {Path(path).stem: found for path, found in json.loads(done.stdout).items()}


@pytest.mark.parametrize("name", SCRIPTS)
def test_help_loads_nothing_that_takes_long(helps, name):
    code, text, loaded = helps[name]
    assert code == 0
    assert "--runs-dir" in text
    assert {"torch", "ray", "pandas", "numpy"}.isdisjoint(loaded)


@pytest.mark.parametrize("name", SCRIPTS)
def test_help_shows_no_default_that_says_nothing(helps, name):
    assert empty_defaults(helps[name][1]) == []


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--train.epoch", "3"], "--train.epochs"),
        (["--modle.hidden", "3"], "--model.hidden"),
        (["--train.epochs", "many"], "--train.epochs"),
        (["--train.epochs", "0"], "greater than 0"),
        (["--model.kind", "gru"], "lstm"),
        (["--name", "../out"], "--name: run name '../out'"),
        (["--seed", "-1"], "--seed: Input should be greater than or equal to 0, got -1"),
        (["--train.keep", "0"], "--train.keep: Input should be 'best' or 'all'; or: Input should be greater"),
        (["--data.gap", "5"], "window + horizon"),
        (["--model.kind", "linear", "--model.hidden", "8"], "model.hidden"),
        (["--config", "nowhere.yaml"], "nowhere.yaml"),
    ],
)
def test_wrong_flag_exits_2_and_names_it(script, tmp_path, flags, said):
    done = script("train", "--runs-dir", tmp_path / "runs", *flags)
    assert done.returncode == 2
    assert said in done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()


def test_resume_of_a_run_that_is_missing_starts_it(script, tmp_path):
    flags = ("--runs-dir", tmp_path, "--train.epochs", "3", "--resume", "--dry-run", "--json")
    done = script("train", *flags, "--name", "new")
    assert done.returncode == 0
    assert json.loads(done.stdout)["config"]["train"]["epochs"] == 3


def test_run_of_another_script_is_not_resumed_and_the_message_says_why(script, tmp_path):
    flags = ("--runs-dir", tmp_path, "--name", "a", "--task", "synthetic")
    assert script("train", *flags, "--train.epochs", "1").returncode == 0
    (tmp_path / "a" / "record.json").unlink()
    refused = script("tune", "--runs-dir", tmp_path, "--name", "a", "--resume")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 2)
    assert "--resume a: " in refused.stderr
    assert "unknown key seeds" in refused.stderr
    assert "another script began" in refused.stderr


def test_resumed_run_is_where_it_was_found_whatever_folder_it_was_made_in(script, tmp_path):
    made = tmp_path / "runs" / "fetched"
    made.mkdir(parents=True)
    (made / "config.yaml").write_text("io: {save_dir: /elsewhere}\n")
    flags = ("--runs-dir", tmp_path / "runs", "--name", "fetched", "--resume", "--dry-run", "--json")
    assert json.loads(script("train", *flags).stdout)["folder"] == str(made)


def test_search_has_the_patience_of_a_training_unless_it_began_with_another(script, tmp_path):
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "config.yaml").write_text("train: {early_stop_patience: 0}\n")
    flags = ("--runs-dir", tmp_path, "--resume", "--print-config", "--name")
    printed = {name: script("tune", *flags, name).stdout for name in ("new", "begun")}
    patience = {name: yaml.safe_load(text)["train"]["early_stop_patience"] for name, text in printed.items()}
    assert patience == {"new": 5, "begun": 0}


def test_resume_without_a_name_asks_for_one(script, tmp_path):
    done = script("train", "--runs-dir", tmp_path, "--resume", "--dry-run")
    assert (done.returncode, "--name" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"train": {"epoch": 3}}, "unknown key train.epoch; did you mean train.epochs?"),
        ({"trian": {"epochs": 3}}, "unknown key trian; did you mean train?"),
        ({"train": {"epochs": "many"}}, "train.epochs"),
        ({"train": {"epochs": 0}}, "train.epochs: Input should be greater than 0, got 0"),
        ({"train": 3}, "train"),
        (["train"], "expected sections"),
    ],
)
def test_wrong_key_in_a_settings_file_exits_2_and_names_file_and_key(script, tmp_path, settings, said):
    path = tmp_path / "settings.yaml"
    path.write_text(yaml.safe_dump(settings))
    done = script("train", "--config", path, "--runs-dir", tmp_path / "runs")
    assert done.returncode == 2
    assert str(path) in done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_flags_stand_above_the_file_and_the_file_above_the_defaults(script, tmp_path):
    path = tmp_path / "settings.yaml"
    path.write_text("train: {epochs: 7, lr: 1e-2}\nmodel: {kind: lstm}\n")
    done = script("train", "--config", path, "--train.epochs", "3", "--seed", "5", "--runs-dir", "x", "--print-config")
    shown = yaml.safe_load(done.stdout)
    assert (shown["train"]["epochs"], shown["train"]["lr"], shown["model"]["kind"]) == (3, 0.01, "lstm")
    assert (shown["train"]["seed"], shown["io"]["save_dir"]) == (5, "x")
    assert shown["train"]["batch_size"] == 256


def test_dry_run_tells_the_plan_and_does_nothing(script, tmp_path):
    done = script("scale", "--runs-dir", tmp_path / "runs", "--name", "plan", "--dry-run")
    assert done.returncode == 0
    assert yaml.safe_load(done.stdout)["run"] == "plan"
    assert not (tmp_path / "runs").exists()


def test_faulty_csv_exits_3_and_names_rule_ticker_and_date(script, tmp_path):
    path = tmp_path / "prices.csv"
    path.write_text("date,ticker,close\n2020-01-02,KO,54.99\n2020-01-03,KO,-54.69\n2020-01-06,KO,54.67\n")
    done = script("train", "--data.source", path, "--runs-dir", tmp_path / "runs")
    assert done.returncode == 3
    assert "not_positive: KO 2020-01-03" in done.stderr
    assert "Traceback" not in done.stderr


def test_last_task_and_kind_of_model_count_with_their_settings(tmp_path):
    words = ["--model.kind", "linear", "--model.kind", "lstm", "--model.hidden", "8"]
    config = entry.parse(Train, words)
    assert (config.model.kind, type(config.model).__name__, config.model.used["hidden"]) == ("lstm", "LSTM", 8)
    assert entry.parse(Train, ["--task", "returns", "--task", "images"]).model.kind == "cnn"
    assert entry.parse(Train, ["--task", "images", "--task", "returns"]).model.kind == "mlp"


def test_flag_of_a_task_is_over_that_of_the_file(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("task: returns\nimages:\ntext:\ntrain: {epochs: 3}\n")
    config = entry.parse(Train, ["--config", str(file), "--task", "images"])
    assert (config.task, config.model.kind, config.train.epochs, config.train.lr) == ("images", "cnn", 3, 3e-3)


def test_task_of_ones_own_has_the_section_of_another_by_its_flag(tmp_path):
    (tmp_path / "mine.py").touch()
    config = entry.parse(Train, ["--task", f"{tmp_path}/mine.py:Task", "--images.shift", "2"])
    assert config.section(ImagesConfig).shift == 2
