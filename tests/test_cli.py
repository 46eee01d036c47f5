"""`sp500` as a user calls it: a process, its streams, its exit code."""

import json
import subprocess
import sys
from pathlib import Path

import forks
import pytest
import yaml

from sp500 import cli
from sp500.formatting import name_command

ROOT = Path(__file__).parent.parent
JOBS = ROOT / "tests" / "jobs"
COMMAND = ("--", "python", "experiments/tune.py", "--space", "grid 18", "--json")


@pytest.fixture(scope="module")
def sp500():
    """Runs the command to its end."""
    return lambda *words: forks.run(["sp500", *map(str, words)], cwd=ROOT)


@pytest.fixture(scope="module")
def render(sp500):
    """Runs `sp500 jobs render` on the tests' cluster."""
    return lambda *words: sp500("jobs", "render", "--cluster", JOBS / "raycluster.yaml", *words)


def test_rendered_yaml_is_the_job_asked_for(render):
    done = render("--workers", "4", "--env", "A=1", "B=x=y", "--secrets", "HF_TOKEN=hf/token", *COMMAND)
    (job,) = yaml.safe_load_all(done.stdout)
    (group,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    env = group["template"]["spec"]["containers"][0]["env"]
    assert (done.returncode, done.stderr) == (0, "")
    assert (job["kind"], job["metadata"]["name"], group["replicas"]) == ("RayJob", "tune", 4)
    assert job["spec"]["entrypoint"] == "python experiments/tune.py --space 'grid 18' --json"
    assert {"name": "B", "value": "x=y"} in env


def test_flags_stand_above_the_file_and_the_words_after_dashes_above_its_argv(render, tmp_path):
    file, settings = tmp_path / "job.yaml", tmp_path / "settings.yaml"
    file.write_text("argv: [python, train.py]\nworkers: 3\ncpus: 2\nsettings: {a: 1}\n")
    settings.write_text("train: {epochs: 3}\n")
    done = render("--file", file, "--workers", "5", "--settings", settings, "--json", "--", "python", "scale.py")
    config_map, job = json.loads(done.stdout)["documents"]
    (group,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert (job["metadata"]["name"], group["replicas"]) == ("scale", 5)
    assert group["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"] == "2"
    assert [yaml.safe_load(text) for text in config_map["data"].values()] == [{"train": {"epochs": 3}}]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "argv: is empty"),
        (("--name", "Tune", *COMMAND), "name: invalid job name 'Tune'"),
        (("--workers", "0", *COMMAND), "workers: Input should be greater than 0, got 0"),
        (("--wokers", "3", *COMMAND), "--workers"),
        (("--env", "A", *COMMAND), "--env NAME=VALUE"),
        (("--env", "A=1", "--env", "B=2", *COMMAND), "duplicate flag --env"),
        (("--settings", "nowhere.yaml", *COMMAND), "--settings nowhere.yaml: cannot be read"),
        (("--file", "nowhere.yaml", *COMMAND), "--file nowhere.yaml: cannot be read"),
        (("--file", JOBS / "raycluster.yaml", *COMMAND), "expected a job"),
    ],
)
def test_wrong_job_exits_2_and_says_what(render, words, said):
    done = render(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_wrong_file_of_a_job_names_file_key_and_nearest_key(render, tmp_path):
    file = tmp_path / "job.yaml"
    file.write_text("wokers: 3\n")
    assert f"--file {file}: unknown key wokers; did you mean workers?" in render("--file", file, *COMMAND).stderr


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--env HF_TOKEN=hf_abcdef", "HF_TOKEN looks like"),
        ("--secrets HF_TOKEN=hf_abcdef", "HF_TOKEN is not"),
        ("--secrets HF_TOKEN hf_abcdef", "--secrets NAME=SECRET/KEY"),
        ("--file job.yaml", "secrets.HF_TOKEN"),
    ],
)
def test_secret_given_by_value_is_refused_and_not_shown(render, tmp_path, given, said):
    (tmp_path / "job.yaml").write_text("secrets: {HF_TOKEN: {value: hf_abcdef}}\n")
    done = render(*given.replace("job.yaml", str(tmp_path / "job.yaml")).split(), *COMMAND)
    assert done.returncode == 2
    assert said in done.stderr
    assert "hf_abcdef" not in done.stdout + done.stderr


def test_cluster_that_breaks_rules_exits_2_with_each_of_them(sp500, tmp_path):
    file = tmp_path / "cluster.yaml"
    text = (JOBS / "raycluster.yaml").read_text()
    file.write_text(text.replace("mode: token", "secretName: mine").replace("rayVersion", "version"))
    done = sp500("jobs", "render", "--cluster", file, *COMMAND)
    assert done.returncode == 2
    assert "RayCluster sp500: spec.authOptions.mode" in done.stderr
    assert "RayCluster sp500: spec.rayVersion" in done.stderr


def test_file_without_a_cluster_exits_2(sp500, tmp_path):
    (tmp_path / "empty.yaml").write_text("")
    done = sp500("jobs", "render", "--cluster", tmp_path / "empty.yaml", *COMMAND)
    assert (done.returncode, "kind RayCluster" in done.stderr) == (2, True)


def test_cluster_on_stdin_is_rendered_from():
    text = (JOBS / "raycluster.yaml").read_text().replace("groupName: workers", "groupName: others")
    command = [sys.executable, "-m", "sp500.cli", "jobs", "render", "--cluster", "-", *COMMAND]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)
    (job,) = yaml.safe_load_all(done.stdout)
    assert [one["groupName"] for one in job["spec"]["rayClusterSpec"]["workerGroupSpecs"]] == ["others"]


def test_help_of_the_verb_shows_its_flags(sp500):
    done = sp500("jobs", "render", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert {"--workers", "--secrets", "--cluster", "--file"} <= set(done.stdout.split())
    assert "--argv" not in done.stdout


@pytest.mark.parametrize("words", [(), ("--help",), ("jobs",), ("jobs", "-h")])
def test_verbs_are_listed_where_none_is_given(capsys, words):
    assert cli.main(words) == 0
    assert "sp500 jobs render" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("job", "render"), "did you mean sp500 jobs render?"),
        (("jobs", "rendr"), "did you mean sp500 jobs render?"),
        (("jobs", "statsu", "tune-4f2a"), "did you mean sp500 jobs status?"),
        (("jobs", "lgos", "serve", "--", "tune"), "did you mean sp500 jobs logs?"),
        (("score", "returns"), "did you mean sp500 models score?"),
        (("rehears",), "did you mean sp500 jobs rehearse?"),
        (("list",), "did you mean sp500 jobs list or sp500 runs list or sp500 models list?"),
        (("walk_forward",), "did you mean sp500 walk-forward?"),
        (("--loud",), "commands: prepare, "),
    ],
)
def test_unknown_verb_exits_2_and_names_the_nearest(capsys, words, hint):
    assert cli.main(words) == 2
    assert hint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("folder", "command"),
    [("experiments", "python experiments/walk_forward.py --folds 3"), ("mine", "sp500 walk-forward --folds 3")],
)
def test_hint_names_a_script_only_if_one_began_the_process(folder, command, tmp_path, monkeypatch):
    (tmp_path / folder).mkdir()
    for name in ("tune.py", "walk_forward.py"):
        (tmp_path / folder / name).touch()
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(tmp_path / folder / "tune.py"), raising=False)
    assert name_command("walk-forward", "--folds 3") == command


def test_every_script_of_an_experiment_is_a_verb():
    assert {path.stem.replace("_", "-") for path in (ROOT / "experiments").glob("*.py")} < set(cli.VERBS)


@pytest.mark.parametrize("verb", cli.VERBS)
def test_every_verb_has_a_main(verb):
    assert callable(cli.load(verb))


def test_reader_that_has_seen_enough_ends_the_listing_in_silence():
    command = [sys.executable, "-m", "sp500.cli", "--help"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
    process.stdout.close()
    assert (process.wait(60), process.stderr.read()) == (0, b"")
