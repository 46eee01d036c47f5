"""A job's workers reach the experiment that it runs: as SP500_WORLD_SIZE, under every flag and setting."""

from pathlib import Path

import pytest
import yaml

from sp500.commands.experiments import scale, train, tune, walk_forward
from sp500.commands.submission import submit
from sp500.console import entry
from sp500.errors import ConfigError
from sp500.jobs.spec import JobSpec

ROOT = Path(__file__).parents[2]


@pytest.fixture
def workers(monkeypatch):
    """Workers that an experiment would train on, with these words, in a job of that world size."""

    def parsed(model, *words, size=None):
        monkeypatch.delenv("SP500_WORLD_SIZE", raising=False)
        if size is not None:
            monkeypatch.setenv("SP500_WORLD_SIZE", size)
        return entry.parse(model, words).num_workers

    return parsed


@pytest.mark.parametrize(
    ("given", "size"),
    [
        ({}, 1),
        ({"workers": 3}, 3),
        ({"workers": 2, "gpus": 4}, 8),
        ({"workers": 2, "gpus": 4, "processes_per_node": 1}, 2),
    ],
)
def test_world_size_is_nodes_times_processes_on_each(make, given, size):
    assert make(**given).world_size == size


@pytest.mark.parametrize(
    ("model", "alone", "in_job"),
    [(train.Train, 0, 3), (walk_forward.WalkForward, 0, 3), (scale.Scale, (2,), (3,)), (tune.Tune, 0, 0)],
)
def test_job_of_three_workers_trains_on_three(workers, model, alone, in_job):
    assert workers(model) == alone
    assert workers(model, size="") == alone
    assert workers(model, size="3") == in_job


def test_experiment_of_a_job_has_its_project_unless_a_flag_says_another(monkeypatch):
    monkeypatch.setenv("SP500_PROJECT", "fx")
    assert entry.parse(train.Train, ()).io.project == "fx"
    assert entry.parse(train.Train, ("--io.project", "own")).io.project == "own"


def test_flag_and_settings_go_over_the_jobs_workers(workers, tmp_path):
    assert workers(train.Train, "--num-workers", "0", size="3") == 0
    assert workers(scale.Scale, "--num-workers", "1", "2", size="3") == (1, 2)
    file = tmp_path / "settings.yaml"
    file.write_text("num_workers: 2")
    assert workers(train.Train, "--config", str(file), size="3") == 2
    file.write_text("train: {epochs: 2}")
    assert workers(train.Train, "--config", str(file), size="3") == 3


def test_config_that_walk_forward_takes_from_a_run_leaves_the_jobs_workers(workers):
    assert workers(walk_forward.build_settings_class(["--folds", "2"]), size="2") == 2


@pytest.mark.parametrize("size", ["0", "-1", "two", "1.5"])
def test_size_that_is_no_number_of_workers_is_refused(workers, size):
    with pytest.raises(ConfigError, match=rf"SP500_WORLD_SIZE='{size}'.*at least 1"):
        workers(train.Train, size=size)


@pytest.fixture
def dry(tmp_path, monkeypatch, capfd):
    """What `submit --dry-run` prints."""

    def run(*words):
        monkeypatch.chdir(ROOT)
        code = submit.main(["--dry-run", "--state-dir", str(tmp_path), *words, "--", "python", "experiments/train.py"])
        assert code == 0
        return list(yaml.safe_load_all(capfd.readouterr().out))

    return run


def test_rayjob_gives_the_size_to_head_and_workers(dry):
    (job,) = dry("--on", "kuberay", "--workers", "2")
    cluster = job["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        env = group["template"]["spec"]["containers"][0]["env"]
        assert [one["value"] for one in env if one["name"] == "SP500_WORLD_SIZE"] == ["2"]


def test_variable_that_the_job_sets_itself_counts(dry):
    (job,) = dry("--on", "kuberay", "--workers", "2", "--env", "SP500_WORLD_SIZE=6")
    env = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["env"]
    assert [one["value"] for one in env if one["name"] == "SP500_WORLD_SIZE"] == ["6"]


@pytest.mark.parametrize("workers", [1, 2])
def test_job_of_a_running_cluster_has_the_size_in_its_runtime_environment(dry, workers):
    (told,) = dry("--on", "ray", "--address", "http://127.0.0.1:8265", "--workers", str(workers))
    assert told["request"]["runtime_env"]["env_vars"]["SP500_WORLD_SIZE"] == str(workers)


def test_on_this_machine_one_worker_is_the_process_itself(dry):
    (told,) = dry("--workers", "1")
    assert "SP500_WORLD_SIZE" not in told["request"]["environment"]
    (told,) = dry("--workers", "2")
    assert told["request"]["environment"]["SP500_WORLD_SIZE"] == "2"


def test_size_is_in_the_text_of_submit(make):
    from sp500.commands.submission import text
    from sp500.jobs.target import find

    assert text.world_size(make(workers=2), find("local")) == 2
    assert text.world_size(make(), find("local")) is None
    assert text.world_size(make(), find("kuberay")) == 1
    assert text.world_size(JobSpec(argv=("a",), env={"SP500_WORLD_SIZE": "5"}), find("kuberay")) == 5
