"""What an agent may ask for: words, world sizes, and the job that is made of them."""

import pytest
from pydantic import ValidationError

from sp500.agent import requests
from sp500.agent.requests import SubmitJob


def submit(*arguments, experiment="train", **fields):
    return SubmitJob(experiment=experiment, arguments=arguments, **fields)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--name", "a;b"], "contains ';'"),
        (["--name", "$(id)"], "contains '$'"),
        (["--name", "`id`"], "contains '`'"),
        (["--name=a|b"], "contains '|'"),
        (["--name", "a&"], "contains '&'"),
        (["--name", "a b"], "contains ' '"),
        (["--name", "a\nb"], r"contains '\n'"),
        (["--name", "~root"], "contains '~'"),
        (["--name", "*"], "contains '*'"),
        (["--na\nme", "a"], "contains '\\n'"),
        (["--name", "a" * 201], "has 201 characters"),
        (["--name", ""], "neither a flag nor a value"),
        (["--name", "--"], "neither a flag nor a value"),
        (["--name", "-x"], "neither a flag nor a value"),
        (["first"], "follows no flag"),
        (["--data.source", "/etc/passwd"], "leads out of the project"),
        (["--data.source=/etc/passwd"], "leads out of the project"),
        (["--data.source", "../prices.csv"], "leads out of the project"),
        (["--data.source", "runs/../../prices.csv"], "leads out of the project"),
        (["--data.source", "s3://bucket/prices.csv"], "leads out of the project"),
        (["--data.source", ".env"], "names a hidden file or folder"),
        (["--data.source=prices/.env"], "names a hidden file or folder"),
        (["--data.source", ".git/config"], "names a hidden file or folder"),
        (["--data.source", "secrets.yaml"], "end in .csv, .parquet, .pq"),
        (["--data.source=conf/secrets"], "end in .csv, .parquet, .pq"),
        (["--data.source", "credentials"], "end in .csv, .parquet, .pq"),
        (["--data.npz-path", "a.csv"], "end in .npz"),
        (["--rates", "x.yaml"], "--rates is closed to agents"),
        (["--config", "x.yaml"], "--config is closed to agents: reads a file of settings"),
        (["--runs-dir", "x"], "--runs-dir is closed to agents: the server says where runs go"),
        (["--runs_dir=x"], "--runs-dir is closed to agents"),
        (["--io.save_dir", "x"], "--io.save-dir is closed to agents"),
        (["--data.cache-dir", "x"], "names a folder to write to"),
        (["--num-workers", "2"], "set it as workers"),
        (["--train.threads", "9"], "uses more than the job requests from the queue"),
        (["--tyro-write-completion", "bash", "x"], "not a flag of train that is available to agents"),
        (["--multipliers", "2"], "did you mean --multiplier?"),
        (["--model.hiden", "2"], "did you mean --model.hidden?"),
    ],
)
def test_word_that_could_do_harm_is_refused_with_its_reason(arguments, why):
    with pytest.raises(ValidationError) as refused:
        submit(*arguments)
    assert why in str(refused.value)


@pytest.mark.parametrize("path", ["secrets.yaml", "cluster/secret.yaml", "spaces/keys.txt", "spaces/../secrets.yaml"])
def test_space_of_an_agent_is_a_preset_or_a_file_of_its_folder(path):
    with pytest.raises(ValidationError, match=r"spaces/|leads out"):
        submit("--space", path, experiment="tune")
    submit("--space", "spaces/mine.yaml", experiment="tune")
    submit("--space", "grid18", "--train.lr", ".5", experiment="tune")


def test_words_that_experiments_need_are_taken_as_they_are():
    words = ("--data.tickers", "^GSPC", "BRK.B", "--data.real_moves", "KO:1998-09-01", "--train.lr=1e-3")
    words += ("--data.no-shuffle-train", "--data.source", "prices/2024.csv", "--resume", "--name", "night-1")
    assert requests.job(submit(*words), here=True).argv == ("sp500", "train", *words)


@pytest.mark.parametrize(
    ("experiment", "workers", "on", "behind", "wide"),
    [
        ("train", None, "local", (), 1),
        ("train", 2, "local", ("--num-workers", "2"), 2),
        ("train", None, "kuberay", ("--num-workers", "1"), 1),
        ("scale", None, "local", ("--num-workers", "1"), 1),
        ("tune", 3, "kuberay", (), 3),
        ("compare", None, "local", (), 1),
    ],
)
def test_world_size_stands_behind_the_arguments_of_those_that_train_on_workers(experiment, workers, on, behind, wide):
    job = requests.job(submit("--json", experiment=experiment, workers=workers), here=on == "local")
    assert job.argv == ("sp500", experiment, "--json", *behind)
    assert job.workers == wide


@pytest.mark.parametrize("experiment", ["prepare", "compare"])
def test_workers_of_what_is_one_process_are_refused(experiment):
    with pytest.raises(ValidationError, match=f"{experiment} is one process"):
        submit(experiment=experiment, workers=2)
